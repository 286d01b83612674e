//! Messages for a session that left its node just before that node ended.
//!
//! Routes follow a session through the routing cluster, a moment later, or seconds later where a leader has to be elected first. Until
//! then messages go to the node where it was, which sends them on. If that node dies, or begins anew and knows nothing of it, whoever
//! has such a message asks the others which sessions came to them from there, and sends it to those. Once for a death, and once
//! for a start.
//!
//! The heir may have the message: it came with the session, or was sent on. So it remembers what came that way, by content, and
//! drops what is sent for the second time (`dup`). All of it is memory, for [`KEEP`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ciqadamq_core::{Arrival, NodeId};
use dashmap::DashMap;
use futures::future::join_all;
use parking_lot::Mutex;
use rmqtt::codec::types::QoS;
use rmqtt::session::OfflineInfo;
use rmqtt::types::{ClientId, From, MsgID, Publish, SubRelations, SubRelationsMap};
use tokio::sync::OnceCell;
use tracing::{debug, warn};

use crate::cluster::Cluster;
use crate::wire::{Answer, Ask};

/// How long it is remembered where a session came from: longer than messages are kept for a dead node.
const KEEP: Duration = Duration::from_secs(120);
/// Sessions of which it is remembered, so that the answer stays far shorter than what nodes take from each other. Of further ones
/// messages are lost if the node where they were dies within a moment.
const SESSIONS_MAX: usize = 50_000;
/// How often a node is asked that gives no answer.
const TRIES: usize = 3;

/// Which node has the sessions that left another one.
type Table = HashMap<ClientId, NodeId>;

/// The same as it was asked for once.
type Asked = Arc<OnceCell<Arc<Table>>>;

pub(crate) struct Heirs {
    /// Sessions that came here.
    came: DashMap<ClientId, Came>,
    /// Whether there is any: most often not, on the publish path.
    is_any: AtomicBool,
    /// What the others have answered, by the node that was left and the moment of its end.
    known: Mutex<BTreeMap<NodeId, (Instant, Asked)>>,
    began: Instant,
}

struct Came {
    from: NodeId,
    at: Instant,
    /// What came with it or after it.
    messages: HashSet<u64>,
}

impl Default for Heirs {
    fn default() -> Self {
        Self { came: DashMap::new(), is_any: AtomicBool::new(false), known: Mutex::default(), began: Instant::now() }
    }
}

impl Heirs {
    /// A session has come from another node.
    pub(crate) fn note(&self, info: &OfflineInfo) {
        let client_id = info.id.client_id.clone();
        if self.came.len() >= SESSIONS_MAX && !self.came.contains_key(&client_id) {
            return;
        }
        let in_flight = info.inflight_messages.iter().map(|message| content(&message.from, &message.publish));
        let queued = info.offline_messages.iter().map(|(from, publish)| content(from, publish));
        let messages = in_flight.chain(queued).collect();
        self.came.insert(client_id, Came { from: info.id.node_id, at: Instant::now(), messages });
        self.is_any.store(true, Ordering::Release);
    }

    /// The sessions that came from that node.
    pub(crate) fn of(&self, node: NodeId) -> Vec<String> {
        self.came.iter().filter(|came| came.from == node).map(|came| came.key().to_string()).collect()
    }

    /// A message has come for these. Those are left out that have it, if it was sent again.
    pub(crate) fn without_known(
        &self,
        arrival: Arrival,
        from: &From,
        publish: &Publish,
        mut relations: SubRelations,
    ) -> SubRelations {
        if !self.is_any.load(Ordering::Acquire) {
            return relations;
        }
        relations.retain(|(_, client_id, ..)| match self.came.get_mut(client_id) {
            Some(mut came) if arrival.is_again => came.messages.insert(content(from, publish)),
            Some(mut came) if came.from == arrival.node => {
                came.messages.insert(content(from, publish));
                true
            }
            _ => true,
        });
        relations
    }

    /// Forgets what is over.
    pub(crate) fn sweep(&self) {
        if !self.is_any.load(Ordering::Acquire) {
            return;
        }
        self.came.retain(|_, came| came.at.elapsed() < KEEP);
        if self.came.is_empty() {
            self.is_any.store(false, Ordering::Release);
            // One may have come in between.
            if !self.came.is_empty() {
                self.is_any.store(true, Ordering::Release);
            }
        }
    }

    fn cell(&self, node: NodeId, since: Instant) -> Asked {
        let mut known = self.known.lock();
        let (at, cell) = known.entry(node).or_insert_with(|| (since, Arc::default()));
        if *at != since {
            (*at, *cell) = (since, Arc::default());
        }
        cell.clone()
    }
}

/// Tells messages apart. Two of one publisher are taken for one if they were published in the same millisecond and are the same.
fn content(from: &From, publish: &Publish) -> u64 {
    let mut hasher = DefaultHasher::new();
    from.id.client_id.hash(&mut hasher);
    publish.create_time.hash(&mut hasher);
    publish.topic.hash(&mut hasher);
    publish.payload.hash(&mut hasher);
    hasher.finish()
}

impl Cluster {
    /// A message was for sessions of a node that is dead: those that had left it get it.
    pub(crate) async fn give_to_heirs(
        &self,
        dead: NodeId,
        from: &From,
        publish: &Publish,
        relations: SubRelations,
        msg_id: Option<MsgID>,
    ) {
        let Some(since) = self.liveness.dead_since(dead) else { return };
        let publish = again(publish);
        for (heir, relations) in self.by_heir(dead, since, relations).await {
            debug!(dead, heir, sessions = relations.len(), "message of a dead node's sessions goes to where they are");
            if heir == self.config.node {
                let arrival = Arrival { node: dead, boot: 0, number: 0, origin: None, is_again: true };
                let relations = self.heirs.without_known(arrival, from, &publish, relations);
                let (fresh, _) = self.without_stale(&publish.topic, relations).await;
                self.hand_out(from.clone(), &publish, fresh, msg_id).await;
                continue;
            }
            let (number, _) = self.forward(heir, from.clone(), publish.clone(), relations, msg_id).await;
            if let Some(number) = number {
                self.arrived(heir, number).await;
            }
        }
    }

    /// A message has come for sessions that are not here: those that left this node before it began anew get it.
    pub(crate) async fn send_after(
        &self,
        from: &From,
        publish: &Publish,
        relations: SubRelations,
        msg_id: Option<MsgID>,
    ) {
        if relations.is_empty() || publish.qos == QoS::AtMostOnce || self.heirs.began.elapsed() >= KEEP {
            return;
        }
        let publish = again(publish);
        for (heir, relations) in self.by_heir(self.config.node, self.heirs.began, relations).await {
            if heir != self.config.node {
                self.send_on(heir, from, &publish, relations, msg_id).await;
            }
        }
    }

    /// A message published here is for sessions that are not here: those that left this node before it began anew get it.
    pub(crate) async fn add_heirs(&self, relations: &mut SubRelationsMap, stale: SubRelations) {
        if stale.is_empty() || self.heirs.began.elapsed() >= KEEP {
            return;
        }
        for (heir, found) in self.by_heir(self.config.node, self.heirs.began, stale).await {
            if heir != self.config.node {
                relations.entry(heir).or_default().extend(found);
            }
        }
    }

    async fn by_heir(&self, left: NodeId, since: Instant, relations: SubRelations) -> BTreeMap<NodeId, SubRelations> {
        let cell = self.heirs.cell(left, since);
        let table = cell.get_or_init(|| self.ask_for_heirs(left)).await;
        let mut all = BTreeMap::<_, SubRelations>::new();
        for relation in relations {
            if let Some(heir) = table.get(&relation.1) {
                all.entry(*heir).or_default().push(relation);
            }
        }
        all
    }

    async fn ask_for_heirs(&self, left: NodeId) -> Arc<Table> {
        let asked = self.liveness.others_alive().into_iter().filter(|node| *node != left).chain([self.config.node]);
        let answers = asked.map(|node| async move {
            for _ in 0..TRIES {
                match self.ask(node, Ask::Heirs { of: left }).await {
                    Ok(Answer::Heirs(client_ids)) => return (node, client_ids),
                    Ok(other) => debug!(node, ?other, "an answer that is none"),
                    Err(error) => debug!(node, %error, "no answer to which sessions came from a node"),
                }
            }
            warn!(node, left, "node does not say which sessions came to it; messages for them may be lost");
            (node, Vec::new())
        });
        let found = join_all(answers).await.into_iter();
        Arc::new(found.flat_map(|(node, ids)| ids.into_iter().map(move |id| (ClientId::from(id), node))).collect())
    }
}

/// As it is sent for the second time. The number in this node's store tells the other one nothing: it knows it by that of its
/// other sessions.
fn again(publish: &Publish) -> Publish {
    let mut publish = publish.clone();
    (publish.dup, publish.delay_interval) = (true, None);
    publish
}

#[cfg(test)]
mod tests {
    use rmqtt::types::{Id, SubscriptionOptions};

    use super::*;
    use crate::takeover::test_message;

    #[test]
    fn an_heir_gets_what_is_sent_again_once_and_not_what_came_with_the_session() {
        let heirs = Heirs::default();
        let client_id = ClientId::from_static("phone");
        let with_it = test_message(&client_id, "chat/ua/1");
        heirs.note(&OfflineInfo {
            id: Id::new(1, 0, None, None, client_id.clone(), None),
            subscriptions: Vec::new(),
            offline_messages: [with_it.clone()].into(),
            inflight_messages: Vec::new(),
            created_at: 0,
        });
        assert_eq!((heirs.of(1), heirs.of(2)), (vec!["phone".to_owned()], Vec::new()));
        let gets = |node, is_again, message: &(From, Publish)| {
            let arrival = Arrival { node, boot: 0, number: 1, origin: None, is_again };
            let relation = |id: &ClientId| ("#".into(), id.clone(), SubscriptionOptions::default(), None, None);
            let relations = vec![relation(&client_id), relation(&ClientId::from_static("other"))];
            let left = heirs.without_known(arrival, &message.0, &message.1, relations);
            assert!(left.iter().any(|relation| relation.1 == "other"), "others are not concerned");
            left.len() == 2
        };
        assert!(!gets(3, true, &with_it));
        let later = test_message(&client_id, "chat/ua/2");
        assert!(gets(3, true, &later) && !gets(1, true, &later));
        // The session's node has sent it on before it died.
        let sent_on = test_message(&client_id, "chat/ua/3");
        assert!(gets(1, false, &sent_on) && !gets(3, true, &sent_on));
        // What is sent for the first time is never held back.
        assert!(gets(3, false, &sent_on) && gets(1, false, &with_it));
    }

    #[test]
    fn who_has_the_sessions_of_a_node_is_asked_once_for_each_of_its_ends() {
        let heirs = Heirs::default();
        let first = Instant::now();
        let cell = heirs.cell(1, first);
        assert!(Arc::ptr_eq(&cell, &heirs.cell(1, first)));
        assert!(!Arc::ptr_eq(&cell, &heirs.cell(2, first)));
        assert!(!Arc::ptr_eq(&cell, &heirs.cell(1, first + KEEP)));
    }
}
