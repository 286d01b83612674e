//! A [`Router`] in front of the cluster plugin's own: a subscription waits for a new leader instead of failing, what
//! is told without it counts too, and routes that have outlived their session lead to nobody else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rmqtt::Result;
use rmqtt::router::Router;
use rmqtt::types::*;
use rmqtt::utils::Counter;

use crate::cluster::Cluster;
use crate::failover::{PATIENCE, RETRY};

type Counters = std::collections::HashMap<NodeId, Counter, ahash::RandomState>;

pub(crate) struct FailoverRouter {
    pub(crate) inner: Arc<dyn Router>,
    pub(crate) cluster: Arc<Cluster>,
}

/// How long a subscription is waited for to be known on its own node, and between two looks.
const KNOWN: Duration = Duration::from_secs(1);
const KNOWN_RETRY: Duration = Duration::from_millis(1);

impl FailoverRouter {
    /// The leader has the subscription when it answers. Its client may publish as soon as it has SUBACK, and expects to get that.
    async fn wait_known(&self, topic_filter: &str, id: &Id) {
        let since = Instant::now();
        let is_known = || {
            let routes = self.inner.relations().get(topic_filter);
            routes.is_some_and(|routes| routes.get(&id.client_id).is_some_and(|(known, _)| known == id))
        };
        while id.node_id == self.cluster.config.node && !is_known() && since.elapsed() < KNOWN {
            tokio::time::sleep(KNOWN_RETRY).await;
        }
    }
}

#[async_trait]
impl Router for FailoverRouter {
    async fn add(&self, topic_filter: &str, id: Id, opts: SubscriptionOptions) -> Result<()> {
        let since = Instant::now();
        loop {
            match self.inner.add(topic_filter, id.clone(), opts.clone()).await {
                Ok(()) => {
                    self.wait_known(topic_filter, &id).await;
                    return Ok(());
                }
                Err(error) if since.elapsed() >= PATIENCE => return Err(error),
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }
    async fn remove(&self, topic_filter: &str, id: Id) -> Result<bool> {
        self.inner.remove(topic_filter, id).await
    }
    async fn matches(&self, id: Id, topic: &TopicName) -> Result<SubRelationsMap> {
        let mut relations = self.inner.matches(id.clone(), topic).await?;
        self.cluster.unrouted.add_to(&mut relations, &id, topic).await?;
        let me = self.cluster.config.node;
        if let Some(own) = relations.remove(&me) {
            let (own, stale) = self.cluster.without_stale(topic, own).await;
            if !own.is_empty() {
                relations.insert(me, own);
            }
            self.cluster.add_heirs(&mut relations, stale).await;
        }
        Ok(relations)
    }
    /// A dead node's clients are not, whatever the cluster's state says still: others of their groups get the messages.
    async fn is_online(&self, node_id: NodeId, client_id: &str) -> bool {
        !self.cluster.liveness.is_dead(node_id) && self.inner.is_online(node_id, client_id).await
    }
    async fn gets(&self, limit: usize) -> Vec<Route> {
        self.inner.gets(limit).await
    }
    async fn get(&self, topic: &str) -> Result<Vec<Route>> {
        self.inner.get(topic).await
    }
    async fn query_subscriptions(&self, q: &SubsSearchParams) -> Vec<SubsSearchResult> {
        self.inner.query_subscriptions(q).await
    }
    async fn topics_tree(&self) -> usize {
        self.inner.topics_tree().await
    }
    fn topics(&self) -> Counter {
        self.inner.topics()
    }
    fn routes(&self) -> Counter {
        self.inner.routes()
    }
    fn merge_topics(&self, topics_map: &Counters) -> Counter {
        self.inner.merge_topics(topics_map)
    }
    fn merge_routes(&self, routes_map: &Counters) -> Counter {
        self.inner.merge_routes(routes_map)
    }
    async fn list_topics(&self, top: usize) -> Vec<String> {
        self.inner.list_topics(top).await
    }
    async fn list_relations(&self, top: usize) -> Vec<serde_json::Value> {
        self.inner.list_relations(top).await
    }
    fn relations(&self) -> &AllRelationsMap {
        self.inner.relations()
    }
}
