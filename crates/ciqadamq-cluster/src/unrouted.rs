//! Subscriptions that the routing cluster does not know of, although their sessions are there.
//!
//! A node that was held for dead has its routes removed. When it is back it proposes them anew, and while no leader takes
//! proposals (the one that did may be gone now, too) that lasts. Nobody would get what others publish meanwhile. So a node that
//! misses routes of its sessions tells the other nodes directly: they ask for the list when what it says of itself names
//! a new one ([`NodeState::unrouted`](crate::wire::NodeState)). All of them look into it besides the routing table.
//!
//! In ordinary times every list is empty, and a message costs one look at that.
//!
//! Shared subscriptions are left out: whom of a group a message goes to is decided among those in the routing table.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ciqadamq_core::NodeId;
use futures::future::join_all;
use parking_lot::{Mutex, RwLock};
use rmqtt::router::{DefaultRouter, Router as _};
use rmqtt::types::{ClientId, Id, SubRelationsMap, SubscriptionOptions, TopicFilter, TopicName};
use tracing::{debug, info};

use crate::cluster::Cluster;
use crate::liveness::call;
use crate::watch::Verdict;
use crate::wire::{Answer, Ask};

/// Between two looks at what is missing, as long as something is, and for a while after there was reason to look.
const EVERY: Duration = Duration::from_secs(1);
const AFTERMATH: Duration = Duration::from_secs(15);
/// Between two looks without a reason.
const SELDOM: Duration = Duration::from_secs(30);
/// Subscriptions told at once, so that the list is far shorter than what nodes take from each other. Those beyond wait for the
/// routing cluster.
const TOLD_MAX: usize = 50_000;
/// Subscriptions looked at before others have their turn.
const TURN: usize = 500;
/// Before a node that did not give its list is asked again.
const RETRY: Duration = Duration::from_millis(200);
/// How long a node may take to give its list.
const ANSWER: Duration = Duration::from_secs(2);

/// A subscription without its route.
pub type Subscription = (String, String, SubscriptionOptions);

/// Which list of a node it is: its process, and the number.
type Version = (u64, u64);

/// What is known of all nodes.
#[derive(Default)]
pub(crate) struct Unrouted {
    own: Mutex<Own>,
    others: Mutex<BTreeMap<NodeId, (Version, Vec<Subscription>)>>,
    /// All of it, to be searched.
    table: RwLock<Option<Arc<DefaultRouter>>>,
    is_any: AtomicBool,
    /// Held by whoever makes the table: one made of older lists must not take the place of a newer one.
    building: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Own {
    number: u64,
    list: Vec<Subscription>,
}

impl Unrouted {
    /// What this node's list is called; 0 is an empty one.
    pub(crate) fn number(&self) -> u64 {
        let own = self.own.lock();
        if own.list.is_empty() { 0 } else { own.number }
    }

    /// The list of this node.
    pub(crate) fn own(&self) -> Vec<Subscription> {
        self.own.lock().list.clone()
    }

    fn misses_own(&self) -> bool {
        !self.own.lock().list.is_empty()
    }

    /// Takes note of this node's list; whether it is another one.
    fn set_own(&self, list: Vec<Subscription>) -> bool {
        let mut own = self.own.lock();
        let differs = own.list != list;
        if differs {
            own.number += 1;
            own.list = list;
        }
        differs
    }

    /// Whether a list of that node is known by this name.
    fn has(&self, node: NodeId, version: Version) -> bool {
        match self.others.lock().get(&node) {
            Some((known, _)) => *known == version,
            None => version.1 == 0,
        }
    }

    fn set(&self, node: NodeId, version: Version, list: Vec<Subscription>) {
        let mut others = self.others.lock();
        if version.1 == 0 {
            others.remove(&node);
        } else {
            others.insert(node, (version, list));
        }
    }

    /// Makes the table from the lists.
    async fn build(&self, me: NodeId) {
        let _alone = self.building.lock().await;
        let mut all: Vec<(NodeId, Subscription)> = self.own().into_iter().map(|one| (me, one)).collect();
        for (node, (_, list)) in &*self.others.lock() {
            all.extend(list.iter().map(|one| (*node, one.clone())));
        }
        let mut table = None;
        if !all.is_empty() {
            let router = DefaultRouter::new(None);
            for (node, (filter, client_id, opts)) in all {
                // One that is no filter was never subscribed.
                if let Err(error) = router.add(&filter, Id::from(node, client_id.into()), opts).await {
                    debug!(filter, %error, "a subscription of a node is not understood");
                }
            }
            table = Some(Arc::new(router));
        }
        self.is_any.store(table.is_some(), Ordering::Release);
        *self.table.write() = table;
    }

    /// Adds those that a message is for and that the routing table did not name.
    pub(crate) async fn add_to(
        &self,
        relations: &mut SubRelationsMap,
        publisher: &Id,
        topic: &TopicName,
    ) -> rmqtt::Result<()> {
        if !self.is_any.load(Ordering::Acquire) {
            return Ok(());
        }
        let Some(table) = self.table.read().clone() else { return Ok(()) };
        let more = table._matches(publisher.clone(), topic).await?;
        if more.is_empty() {
            return Ok(());
        }
        let named: HashSet<ClientId> =
            relations.values().flatten().map(|(_, client_id, ..)| client_id.clone()).collect();
        for (node, found) in more {
            let missing = found.into_iter().filter(|(_, client_id, opts, ..)| {
                let is_for_itself = opts.no_local() == Some(true) && *client_id == publisher.client_id;
                !is_for_itself && !named.contains(client_id)
            });
            relations.entry(node).or_default().extend(missing);
        }
        relations.retain(|_, relations| !relations.is_empty());
        Ok(())
    }
}

impl Cluster {
    /// Looks for subscriptions of this node's sessions that have no route, for ever.
    pub(crate) async fn look_for_unrouted(self: Arc<Self>) {
        let (mut troubled, mut looked) = (Instant::now(), None::<Instant>);
        loop {
            tokio::time::sleep(EVERY).await;
            if !self.serves() {
                continue;
            }
            if !matches!(self.state(), Verdict::Works { .. }) || self.liveness.was_thought_dead() {
                troubled = Instant::now();
            }
            let is_due = self.unrouted.misses_own()
                || troubled.elapsed() < AFTERMATH
                || looked.is_none_or(|looked| looked.elapsed() >= SELDOM);
            if !is_due {
                continue;
            }
            looked = Some(Instant::now());
            let list = self.without_route().await;
            let count = list.len();
            if self.unrouted.set_own(list) {
                self.liveness.set_unrouted(self.unrouted.number());
                self.metrics.unrouted.set(count as i64);
                self.unrouted.build(self.config.node).await;
                info!(count, "subscriptions without a route: told to the other nodes");
            }
        }
    }

    /// Subscriptions of this node's sessions that the routing table does not have.
    async fn without_route(&self) -> Vec<Subscription> {
        let mut missing = Vec::new();
        'all: for (turn, (client_id, subscriptions)) in self.subscribed.all().into_iter().enumerate() {
            if turn % TURN == TURN - 1 {
                tokio::task::yield_now().await;
            }
            let wanted: Vec<(TopicFilter, SubscriptionOptions)> = {
                let subscriptions = subscriptions.read().await;
                subscriptions.iter().map(|(filter, opts)| (filter.clone(), opts.clone())).collect()
            };
            let router = self.scx.extends.router().await;
            for (filter, opts) in wanted {
                // One that leads to another node is that of a session that moved there.
                let has_route = router.relations().get(&*filter).is_some_and(|routes| routes.contains_key(&client_id));
                if has_route || opts.shared_group().is_some() {
                    continue;
                }
                missing.push((filter.to_string(), client_id.to_string(), opts));
                if missing.len() == TOLD_MAX {
                    break 'all;
                }
            }
        }
        missing.sort_unstable_by(|(a, b, _), (c, d, _)| (a, b).cmp(&(c, d)));
        missing
    }

    /// The list of a node; `None` if it does not give it now.
    async fn list_of(&self, node: NodeId, (_, number): Version) -> Option<Vec<Subscription>> {
        if number == 0 {
            return Some(Vec::new());
        }
        match call(&*self.deps.peers, node, &Ask::Unrouted, ANSWER).await {
            Ok(Answer::Unrouted(list)) => Some(list),
            other => {
                debug!(node, ?other, "a node does not say which routes it misses");
                None
            }
        }
    }

    /// Asks the other nodes for lists that are new, for ever.
    pub(crate) async fn hear_of_unrouted(self: Arc<Self>) {
        let mut changes = self.liveness.changes();
        loop {
            // Before the look, so that what changes meanwhile is looked at, too.
            changes.mark_unchanged();
            let views = self.liveness.views().into_iter();
            // A dead node's sessions get nothing.
            let versions =
                views.map(|(node, view)| (node, view.alive().map_or((0, 0), |state| (state.boot, state.unrouted))));
            let new: Vec<_> = versions.filter(|(node, version)| !self.unrouted.has(*node, *version)).collect();
            let is_new = !new.is_empty();
            // Side by side: one that is just being stopped must not keep the lists of the others back.
            let lists = new.iter().map(|(node, version)| self.list_of(*node, *version));
            let mut is_known = true;
            for ((node, version), list) in new.iter().zip(join_all(lists).await) {
                match list {
                    Some(list) => self.unrouted.set(*node, *version, list),
                    None => is_known = false,
                }
            }
            if is_new {
                self.unrouted.build(self.config.node).await;
            }
            if !is_known {
                tokio::time::sleep(RETRY).await;
            } else if changes.changed().await.is_err() {
                // The sender lives as long as `self`.
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rmqtt::types::SubscriptionOptions;

    use super::*;

    fn list(entries: &[(&str, &str)]) -> Vec<Subscription> {
        let one = |(filter, client_id): &(&str, &str)| {
            ((*filter).into(), (*client_id).into(), SubscriptionOptions::default())
        };
        entries.iter().map(one).collect()
    }

    async fn matched(
        unrouted: &Unrouted,
        mut relations: SubRelationsMap,
        topic: &'static str,
    ) -> Vec<(NodeId, String)> {
        let publisher = Id::from(1, "publisher".into());
        unrouted.add_to(&mut relations, &publisher, &TopicName::from(topic)).await.unwrap();
        let mut all: Vec<_> = relations
            .into_iter()
            .flat_map(|(node, found)| found.into_iter().map(move |(_, client_id, ..)| (node, client_id.to_string())))
            .collect();
        all.sort();
        all
    }

    #[tokio::test]
    async fn a_message_is_for_those_whose_route_is_missing_on_any_node() {
        let unrouted = Unrouted::default();
        assert!(matched(&unrouted, SubRelationsMap::default(), "chat/ua/x").await.is_empty());
        assert!(unrouted.set_own(list(&[("chat/ua/#", "here")])));
        unrouted.set(2, (7, 1), list(&[("chat/ua/+", "there"), ("chat/ub/#", "other")]));
        unrouted.build(1).await;
        let found = matched(&unrouted, SubRelationsMap::default(), "chat/ua/x").await;
        assert_eq!(found, [(1, "here".into()), (2, "there".into())]);

        // Who has a route by now gets it once.
        let opts = SubscriptionOptions::default();
        let routed = (TopicFilter::from("chat/ua/#"), ClientId::from("there"), opts, None, None);
        let relations = SubRelationsMap::from_iter([(3, vec![routed])]);
        assert_eq!(matched(&unrouted, relations, "chat/ua/x").await, [(1, "here".into()), (3, "there".into())]);

        unrouted.set(2, (7, 0), Vec::new());
        unrouted.set_own(Vec::new());
        unrouted.build(1).await;
        assert!(matched(&unrouted, SubRelationsMap::default(), "chat/ua/x").await.is_empty());
    }

    #[test]
    fn a_list_has_another_name_when_it_is_another_one_or_another_process_s() {
        let unrouted = Unrouted::default();
        assert_eq!(unrouted.number(), 0);
        assert!(unrouted.set_own(list(&[("a", "x")])) && !unrouted.set_own(list(&[("a", "x")])));
        let first = unrouted.number();
        assert!(unrouted.set_own(list(&[("b", "x")])));
        assert!(unrouted.number() > first && first > 0);
        assert!(unrouted.set_own(Vec::new()));
        assert_eq!(unrouted.number(), 0);

        assert!(unrouted.has(2, (7, 0)) && !unrouted.has(2, (7, 1)));
        unrouted.set(2, (7, 1), list(&[("a", "x")]));
        assert!(unrouted.has(2, (7, 1)) && !unrouted.has(2, (8, 1)) && !unrouted.has(2, (7, 0)));
    }
}
