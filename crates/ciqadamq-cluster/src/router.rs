//! A [`Router`] in front of the cluster plugin's own: a subscription waits for a new leader instead of failing.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use rmqtt::Result;
use rmqtt::router::Router;
use rmqtt::types::*;
use rmqtt::utils::Counter;

use crate::failover::{PATIENCE, RETRY};

type Counters = std::collections::HashMap<NodeId, Counter, ahash::RandomState>;

pub(crate) struct FailoverRouter(pub(crate) Arc<dyn Router>);

#[async_trait]
impl Router for FailoverRouter {
    async fn add(&self, topic_filter: &str, id: Id, opts: SubscriptionOptions) -> Result<()> {
        let since = Instant::now();
        loop {
            match self.0.add(topic_filter, id.clone(), opts.clone()).await {
                Ok(()) => return Ok(()),
                Err(error) if since.elapsed() >= PATIENCE => return Err(error),
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }
    async fn remove(&self, topic_filter: &str, id: Id) -> Result<bool> {
        self.0.remove(topic_filter, id).await
    }
    async fn matches(&self, id: Id, topic: &TopicName) -> Result<SubRelationsMap> {
        self.0.matches(id, topic).await
    }
    async fn is_online(&self, node_id: NodeId, client_id: &str) -> bool {
        self.0.is_online(node_id, client_id).await
    }
    async fn gets(&self, limit: usize) -> Vec<Route> {
        self.0.gets(limit).await
    }
    async fn get(&self, topic: &str) -> Result<Vec<Route>> {
        self.0.get(topic).await
    }
    async fn query_subscriptions(&self, q: &SubsSearchParams) -> Vec<SubsSearchResult> {
        self.0.query_subscriptions(q).await
    }
    async fn topics_tree(&self) -> usize {
        self.0.topics_tree().await
    }
    fn topics(&self) -> Counter {
        self.0.topics()
    }
    fn routes(&self) -> Counter {
        self.0.routes()
    }
    fn merge_topics(&self, topics_map: &Counters) -> Counter {
        self.0.merge_topics(topics_map)
    }
    fn merge_routes(&self, routes_map: &Counters) -> Counter {
        self.0.merge_routes(routes_map)
    }
    async fn list_topics(&self, top: usize) -> Vec<String> {
        self.0.list_topics(top).await
    }
    async fn list_relations(&self, top: usize) -> Vec<serde_json::Value> {
        self.0.list_relations(top).await
    }
    fn relations(&self) -> &AllRelationsMap {
        self.0.relations()
    }
}
