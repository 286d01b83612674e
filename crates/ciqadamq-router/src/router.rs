//! The engine's router with a memory.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;

use async_trait::async_trait;
use rmqtt::Result;
use rmqtt::context::ServerContext;
use rmqtt::router::{DefaultRouter, Router};
use rmqtt::trie::VecToTopic;
use rmqtt::types::*;
use rmqtt::utils::Counter;

use crate::memo::{Known, Memo};
use crate::recipients::{Groups, Recipients};

type Counters = HashMap<NodeId, Counter, ahash::RandomState>;

/// Routes for one node.
///
/// The tree, the table of subscribers and the counters are the engine's own; what changes or reads them for a message is here.
/// What is in the table is in the tree: a filter goes into the tree first, and leaves the table first, both under the tree's lock.
pub(crate) struct RememberingRouter {
    scx: ServerContext,
    engine: DefaultRouter,
    memo: Arc<Memo>,
}

impl RememberingRouter {
    pub(crate) fn new(scx: ServerContext, memo: Arc<Memo>) -> Self {
        Self { engine: DefaultRouter::new(Some(scx.clone())), scx, memo }
    }

    /// The filters that a Topic Name matches. A filter that was in the tree before this was called is among them.
    async fn filters(&self, topic: &str) -> Result<Arc<Known>> {
        if let Some(known) = self.memo.get(topic) {
            return Ok(known);
        }
        let levels = Topic::from_str(topic)?;
        let search = self.memo.search(topic);
        let tree = self.engine.topics.read().await;
        let matches = tree.matches(&levels);
        let found = matches.iter().map(|(filter, _)| self.own(filter.to_topic_filter())).collect();
        Ok(self.memo.found(topic, search, found))
    }

    /// A filter as the table has it, so that its text is in memory once.
    fn own(&self, filter: TopicFilter) -> TopicFilter {
        self.engine.relations.get(&filter).map(|entry| entry.key().clone()).unwrap_or(filter)
    }

    /// Adds the members of shared subscriptions that the engine chooses.
    async fn choose(&self, topic: &TopicName, filter: &TopicFilter, groups: Groups, to: &mut Recipients<'_>) {
        for (group, mut members) in groups {
            for (node, client_id, _, _, is_online) in &mut members {
                *is_online = Some(self.is_online(*node, client_id).await);
            }
            let clients = members.iter().map(|(_, client_id, _, _, _)| client_id.clone()).collect();
            // Whoever chooses stands behind this lock, and may ask other parts before it answers.
            let chooser = self.scx.extends.shared_subscription().await;
            let chosen = chooser.choice(&self.scx, &group, to.publisher(), topic, &members).await;
            if let Some((at, is_online)) = chosen.filter(|(at, _)| *at < members.len()) {
                to.add_member(filter, members.swap_remove(at), (group, is_online, clients));
            }
        }
    }
}

#[async_trait]
impl Router for RememberingRouter {
    async fn add(&self, topic_filter: &str, id: Id, opts: SubscriptionOptions) -> Result<()> {
        let engine = &self.engine;
        let client_id = id.client_id.clone();
        // Who has subscribers is in the tree, and all who publish know it.
        if let Some(mut subscribers) = engine.relations.get_mut(topic_filter) {
            if subscribers.insert(client_id, (id, opts)).is_none() {
                engine.relations_count.inc();
            }
            return Ok(());
        }
        let levels = Topic::from_str(topic_filter)?;
        let mut tree = engine.topics.write().await;
        tree.insert(&levels, ());
        self.memo.filter_added(topic_filter);
        let mut subscribers = engine.relations.entry(topic_filter.into()).or_insert_with(|| {
            engine.topics_count.inc();
            Default::default()
        });
        if subscribers.insert(client_id, (id, opts)).is_none() {
            engine.relations_count.inc();
        }
        Ok(())
    }

    async fn remove(&self, topic_filter: &str, id: Id) -> Result<bool> {
        let engine = &self.engine;
        let is_last = {
            let Some(mut subscribers) = engine.relations.get_mut(topic_filter) else { return Ok(false) };
            // It may be a successor's subscription under the same Client Identifier. A predecessor's goes with this one: the engine does
            // not take it over if the client leaves the moment it is in, and whoever has the Client Identifier next would get what it
            // was for.
            let is_successors = |of: &Id| *of != id && of.create_time >= id.create_time;
            if subscribers.get(&id.client_id).is_none_or(|(of, _)| is_successors(of)) {
                return Ok(false);
            }
            subscribers.remove(&id.client_id);
            engine.relations_count.dec();
            subscribers.is_empty()
        };
        if is_last {
            let levels = Topic::from_str(topic_filter)?;
            let mut tree = engine.topics.write().await;
            // Somebody may have subscribed meanwhile.
            if engine.relations.remove_if(topic_filter, |_, subscribers| subscribers.is_empty()).is_some() {
                engine.topics_count.dec();
                tree.remove(&levels, &());
            }
        }
        Ok(true)
    }

    async fn matches(&self, id: Id, topic: &TopicName) -> Result<SubRelationsMap> {
        let known = self.filters(topic).await?;
        let mut recipients = Recipients::of(&id);
        let mut is_stale = false;
        for filter in &known.filters {
            let groups = match self.engine.relations.get(filter) {
                Some(subscribers) => recipients.add_filter(filter, &subscribers),
                None => {
                    is_stale = true;
                    continue;
                }
            };
            if !groups.is_empty() {
                self.choose(topic, filter, groups, &mut recipients).await;
            }
        }
        if is_stale {
            self.memo.forget(&known);
        }
        Ok(recipients.into_map())
    }

    async fn is_online(&self, node_id: NodeId, client_id: &str) -> bool {
        self.engine.is_online(node_id, client_id).await
    }
    async fn gets(&self, limit: usize) -> Vec<Route> {
        self.engine.gets(limit).await
    }
    async fn get(&self, topic: &str) -> Result<Vec<Route>> {
        self.engine.get(topic).await
    }
    async fn query_subscriptions(&self, q: &SubsSearchParams) -> Vec<SubsSearchResult> {
        self.engine.query_subscriptions(q).await
    }
    async fn topics_tree(&self) -> usize {
        self.engine.topics_tree().await
    }
    fn topics(&self) -> Counter {
        self.engine.topics()
    }
    fn routes(&self) -> Counter {
        self.engine.routes()
    }
    fn merge_topics(&self, topics_map: &Counters) -> Counter {
        self.engine.merge_topics(topics_map)
    }
    fn merge_routes(&self, routes_map: &Counters) -> Counter {
        self.engine.merge_routes(routes_map)
    }
    async fn list_topics(&self, top: usize) -> Vec<String> {
        self.engine.list_topics(top).await
    }
    async fn list_relations(&self, top: usize) -> Vec<serde_json::Value> {
        self.engine.list_relations(top).await
    }
    fn relations(&self) -> &AllRelationsMap {
        self.engine.relations()
    }
}
