//! Sessions on their way from one node to another.
//!
//! The engine asks the node that has the session to give it up (`Kick`), and takes what comes back. That answer has room for
//! a session or for none; what else an owner may have to say ([`Verdict`]) travels in the place of a session.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ciqadamq_core::{NodeId, filter_matches};
use dashmap::{DashMap, Entry};
use rmqtt::session::OfflineInfo;
use rmqtt::types::{ClientId, From, Id, OfflineSession, Publish, TopicFilter};
use tokio::sync::{OnceCell, RwLock, RwLockReadGuard};

/// How long messages that come late are sent after a session that moved to another node.
const FOLLOW: Duration = Duration::from_secs(10);
/// How long an owner remembers what it answered: longer than anybody asks again.
const REPLAY: Duration = Duration::from_secs(15);
/// How long a node remembers where the session is whose place a refused login holds.
const DISPLACED: Duration = Duration::from_secs(60);

/// Messages kept for a session during one takeover, which takes milliseconds. Further ones are dropped.
const HELD_MAX: usize = 10_000;

/// No client has this id.
const MARK: &str = "\0verdict";

/// What the owner of a session answers to who wants it.
#[derive(Debug, Clone)]
pub(crate) enum Verdict {
    /// Here is the session.
    Session(Box<OfflineInfo>),
    /// It was ended; there is nothing to inherit.
    Ended,
    /// There is none.
    Nothing,
    /// It belongs to somebody else.
    Refused(String),
    /// There is none here; ask that node.
    Ask(NodeId),
}

impl Verdict {
    /// In the form of the engine's answer. A bare `NotExist` is never used: the engine makes it up where no answer came.
    pub(crate) fn encode(self) -> OfflineSession {
        let mark = |word: &str, node: NodeId, text: &str| {
            let username = format!("{word}:{text}");
            let id = Id::new(node, 0, None, None, ClientId::from_static(MARK), Some(username.into()));
            OfflineSession::Exist(Some(OfflineInfo {
                id,
                subscriptions: Vec::new(),
                offline_messages: Default::default(),
                inflight_messages: Vec::new(),
                created_at: 0,
            }))
        };
        match self {
            Self::Session(info) => OfflineSession::Exist(Some(*info)),
            Self::Ended => mark("ended", 0, ""),
            Self::Nothing => mark("nothing", 0, ""),
            Self::Refused(why) => mark("refused", 0, &why),
            Self::Ask(node) => mark("ask", node, ""),
        }
    }

    /// `None`: no answer came, or a node without this plugin answered that there is none.
    pub(crate) fn decode(answer: OfflineSession) -> Option<Self> {
        match answer {
            OfflineSession::Exist(Some(info)) if &*info.id.client_id == MARK => {
                let text = info.id.username.as_deref().unwrap_or_default();
                Some(match text.split_once(':') {
                    Some(("ended", _)) => Self::Ended,
                    Some(("nothing", _)) => Self::Nothing,
                    Some(("ask", _)) => Self::Ask(info.id.node_id),
                    Some((_, why)) => Self::Refused(why.to_owned()),
                    None => Self::Refused("answer not understood".into()),
                })
            }
            OfflineSession::Exist(Some(info)) => Some(Self::Session(Box::new(info))),
            OfflineSession::Exist(None) => Some(Self::Ended),
            OfflineSession::NotExist => None,
        }
    }
}

/// The moves under way. Entries live for seconds; bounded by the number of takeovers in that time.
#[derive(Default)]
pub(crate) struct Takeovers {
    /// Sessions that are being taken over: of this node, or by a login of this node. What arrives is for the successor.
    diverted: DashMap<ClientId, Diverted>,
    /// Sessions that moved away.
    moved: DashMap<ClientId, Moved>,
    /// Where the session is whose place in the cluster's state a refused login of this node holds.
    displaced: DashMap<ClientId, (NodeId, Instant)>,
    /// Logins whose session is being set.
    setting: DashMap<ClientId, ()>,
    /// What was answered to whom.
    answered: DashMap<Id, (Instant, Arc<OnceCell<Verdict>>)>,
    /// Entries of `diverted` and `moved`: on the publish path most often zero.
    busy: AtomicUsize,
    /// Shared by whoever puts messages into sessions' channels, and held alone for a moment by who has diverted one.
    deliveries: RwLock<()>,
}

/// What a session has subscribed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Filters(Arc<HashSet<TopicFilter>>);

impl Filters {
    /// Whether a message is for that session. Of several filters that match the router names one.
    pub(crate) fn want(&self, filter: &TopicFilter, topic: &str) -> bool {
        self.0.contains(filter) || self.match_any(topic)
    }

    fn match_any(&self, topic: &str) -> bool {
        self.0.iter().any(|filter| filter_matches(filter, topic))
    }
}

impl FromIterator<TopicFilter> for Filters {
    fn from_iter<T: IntoIterator<Item = TopicFilter>>(filters: T) -> Self {
        Self(Arc::new(filters.into_iter().collect()))
    }
}

struct Diverted {
    /// Not known before the session has come from another node.
    filters: Option<Filters>,
    /// What has arrived, in its order.
    held: Vec<(From, Publish)>,
}

struct Moved {
    to: NodeId,
    at: Instant,
    filters: Filters,
}

impl Moved {
    fn is_followed(&self) -> bool {
        self.at.elapsed() < FOLLOW
    }
}

/// Messages for a session that is being taken over, in their order.
pub(crate) type Held = Vec<(From, Publish)>;

/// Whether a message is held.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    Done,
    /// The way is another one by now.
    NotDiverted,
    TooMany,
}

/// Where a message for a session goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// to the session
    Straight,
    /// to whoever takes the session over here
    Diverted,
    /// to another node
    To(NodeId),
}

impl Takeovers {
    pub(crate) fn is_idle(&self) -> bool {
        self.busy.load(Ordering::Acquire) == 0
    }

    pub(crate) fn way(&self, client_id: &ClientId) -> Way {
        if self.diverted.contains_key(client_id) {
            return Way::Diverted;
        }
        match self.moved.get(client_id).filter(|moved| moved.is_followed()) {
            Some(moved) => Way::To(moved.to),
            None => Way::Straight,
        }
    }

    /// Whether a message is for the session of this client id that is on its way; `None` if none is.
    pub(crate) fn is_wanted(&self, client_id: &ClientId, filter: &TopicFilter, topic: &str) -> Option<bool> {
        if let Some(diverted) = self.diverted.get(client_id) {
            // As long as nobody knows, it is held, and judged later.
            return Some(diverted.filters.as_ref().is_none_or(|filters| filters.want(filter, topic)));
        }
        let moved = self.moved.get(client_id).filter(|moved| moved.is_followed())?;
        Some(moved.filters.want(filter, topic))
    }

    /// A delivery begins: whoever finds the way straight until this is dropped gets its message into the session's channel
    /// before the session is asked to stop.
    pub(crate) async fn delivering(&self) -> RwLockReadGuard<'_, ()> {
        self.deliveries.read().await
    }

    /// Waits until the deliveries that are under way have done what they looked up.
    pub(crate) async fn deliveries_done(&self) {
        drop(self.deliveries.write().await);
    }

    /// From now on messages for this session of this node are held. What was on its way to it is in its channel when this
    /// returns: the engine does not look at what comes behind the request to stop.
    pub(crate) async fn divert(&self, client_id: &ClientId, filters: Filters) {
        self.begin_holding(client_id, Some(filters));
        self.deliveries_done().await;
    }

    /// A login of this node wants a session that may be on another one: what follows it from there is held. `false` if
    /// it is held already.
    pub(crate) fn expect(&self, client_id: &ClientId) -> bool {
        let filters = self.moved.get(client_id).map(|moved| moved.filters.clone());
        self.begin_holding(client_id, filters)
    }

    fn begin_holding(&self, client_id: &ClientId, filters: Option<Filters>) -> bool {
        match self.diverted.entry(client_id.clone()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(place) => {
                place.insert(Diverted { filters, held: Vec::new() });
                self.busy.fetch_add(1, Ordering::AcqRel);
                true
            }
        }
    }

    /// The session that was expected has come: what was held for it so far.
    pub(crate) fn has_come(&self, client_id: &ClientId, filters: Filters) -> Held {
        let Some(mut diverted) = self.diverted.get_mut(client_id) else { return Held::new() };
        let held = std::mem::take(&mut diverted.held);
        diverted.filters = Some(filters.clone());
        drop(diverted);
        wanted(held, &filters)
    }

    /// Holds a message for a session that is being taken over.
    pub(crate) fn hold(&self, client_id: &ClientId, message: impl FnOnce() -> (From, Publish)) -> Hold {
        match self.diverted.get_mut(client_id) {
            None => Hold::NotDiverted,
            Some(diverted) if diverted.held.len() >= HELD_MAX => Hold::TooMany,
            Some(mut diverted) => {
                diverted.held.push(message());
                Hold::Done
            }
        }
    }

    /// The takeover is over, or has failed: gives what was held to `to`. Nobody gets in between.
    pub(crate) fn undivert(&self, client_id: &ClientId, to: impl FnOnce(Held)) {
        let Entry::Occupied(mut place) = self.diverted.entry(client_id.clone()) else { return };
        self.busy.fetch_sub(1, Ordering::AcqRel);
        let Diverted { filters, held } = place.get_mut();
        let held = std::mem::take(held);
        to(match filters {
            Some(filters) => wanted(held, filters),
            None => held,
        });
        place.remove();
    }

    /// The session is another node's from now on, and what comes late follows it.
    pub(crate) fn move_to(&self, client_id: &ClientId, to: NodeId, filters: Filters) {
        if self.moved.insert(client_id.clone(), Moved { to, at: Instant::now(), filters }).is_none() {
            self.busy.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The session is asked for again. From here on nothing is sent after it: else two nodes might send it to each other.
    pub(crate) fn stop_following(&self, client_id: &ClientId) {
        if self.moved.remove(client_id).is_some() {
            self.busy.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// The session is here.
    pub(crate) fn settle(&self, client_id: &ClientId) {
        self.stop_following(client_id);
        self.displaced.remove(client_id);
    }

    pub(crate) fn displace(&self, client_id: &ClientId, owner: NodeId) {
        self.displaced.insert(client_id.clone(), (owner, Instant::now()));
    }

    pub(crate) fn displaced(&self, client_id: &str) -> Option<NodeId> {
        self.displaced.get(client_id).filter(|at| at.1.elapsed() < DISPLACED).map(|at| at.0)
    }

    pub(crate) fn begin_setting(&self, client_id: &ClientId) {
        self.setting.insert(client_id.clone(), ());
    }

    pub(crate) fn end_setting(&self, client_id: &ClientId) {
        self.setting.remove(client_id);
    }

    pub(crate) fn is_setting(&self, client_id: &ClientId) -> bool {
        self.setting.contains_key(client_id)
    }

    /// The place for the answer to this login: whoever asks again gets the same one.
    pub(crate) fn answer_to(&self, by: &Id) -> Arc<OnceCell<Verdict>> {
        self.answered.entry(by.clone()).or_insert_with(|| (Instant::now(), Arc::default())).1.clone()
    }

    /// Forgets what is over.
    pub(crate) fn sweep(&self) {
        let mut gone = 0;
        self.moved.retain(|_, moved| {
            let stays = moved.is_followed();
            gone += usize::from(!stays);
            stays
        });
        self.busy.fetch_sub(gone, Ordering::AcqRel);
        self.displaced.retain(|_, at| at.1.elapsed() < DISPLACED);
        self.answered.retain(|_, (since, _)| since.elapsed() < REPLAY);
    }
}

/// Those of the messages that a session has subscribed, or that are for it alone.
fn wanted(held: Held, filters: &Filters) -> Held {
    let is_wanted = |publish: &Publish| publish.target_clientid.is_some() || filters.match_any(&publish.topic);
    held.into_iter().filter(|(_, publish)| is_wanted(publish)).collect()
}

#[cfg(test)]
pub(crate) fn test_message(from: &ClientId, topic: &'static str) -> (From, Publish) {
    let publish = rmqtt::codec::types::Publish {
        dup: false,
        retain: false,
        qos: rmqtt::codec::types::QoS::AtLeastOnce,
        topic: topic.into(),
        packet_id: None,
        payload: Default::default(),
        properties: None,
    };
    (From::from_custom(Id::new(1, 0, None, None, from.clone(), None)), publish.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(verdict: Verdict) -> Option<Verdict> {
        Verdict::decode(verdict.encode())
    }

    #[test]
    fn every_verdict_survives_the_engines_answer() {
        assert!(matches!(round(Verdict::Ended), Some(Verdict::Ended)));
        assert!(matches!(round(Verdict::Nothing), Some(Verdict::Nothing)));
        assert!(matches!(round(Verdict::Ask(7)), Some(Verdict::Ask(7))));
        assert!(matches!(round(Verdict::Refused("a: b".into())), Some(Verdict::Refused(why)) if why == "a: b"));
        let info = OfflineInfo {
            id: Id::new(3, 0, None, None, ClientId::from_static("c"), Some("ended:".into())),
            subscriptions: Vec::new(),
            offline_messages: Default::default(),
            inflight_messages: Vec::new(),
            created_at: 5,
        };
        assert!(
            matches!(round(Verdict::Session(Box::new(info))), Some(Verdict::Session(info)) if info.created_at == 5)
        );
    }

    #[test]
    fn an_answer_that_the_engine_made_up_is_none() {
        assert!(Verdict::decode(OfflineSession::NotExist).is_none());
    }

    fn message(client_id: &ClientId) -> (From, Publish) {
        test_message(client_id, "t")
    }

    fn filters(all: &[&'static str]) -> Filters {
        all.iter().map(|filter| TopicFilter::from(*filter)).collect()
    }

    fn given(all: &Takeovers, id: &ClientId) -> Vec<String> {
        let mut topics = Vec::new();
        all.undivert(id, |held| topics.extend(held.iter().map(|(_, publish)| publish.topic.to_string())));
        topics
    }

    #[tokio::test]
    async fn what_arrives_while_a_session_is_taken_over_is_held_until_then_and_not_longer() {
        let all = Takeovers::default();
        let id = ClientId::from_static("c");
        assert_eq!(all.hold(&id, || message(&id)), Hold::NotDiverted);
        all.divert(&id, filters(&["t"])).await;
        for _ in 0..HELD_MAX {
            assert_eq!(all.hold(&id, || message(&id)), Hold::Done);
        }
        assert_eq!(all.hold(&id, || message(&id)), Hold::TooMany);
        // Once more, as when the session did not stop at the first request.
        all.divert(&id, filters(&["t"])).await;
        assert_eq!(given(&all, &id).len(), HELD_MAX);
        assert_eq!(all.hold(&id, || message(&id)), Hold::NotDiverted);
        assert!(all.is_idle());
    }

    #[tokio::test]
    async fn a_session_gets_of_what_was_held_what_it_has_subscribed() {
        let (all, id) = (Takeovers::default(), ClientId::from_static("c"));
        let (filter, other) = (TopicFilter::from("chat/ub/#"), TopicFilter::from("chat/ua/#"));
        assert!(all.expect(&id) && !all.expect(&id));
        // Of a session that is still on its way nobody knows it.
        assert_eq!(all.is_wanted(&id, &other, "chat/ua/x"), Some(true));
        let hold = |topic| all.hold(&id, || test_message(&id, topic));
        assert_eq!((hold("chat/ua/x"), hold("chat/ub/1")), (Hold::Done, Hold::Done));
        let held = all.has_come(&id, filters(&["chat/ub/#"]));
        assert_eq!(held.iter().map(|(_, publish)| &*publish.topic).collect::<Vec<_>>(), ["chat/ub/1"]);
        assert_eq!(all.is_wanted(&id, &other, "chat/ua/x"), Some(false));
        assert_eq!(all.is_wanted(&id, &filter, "chat/ub/x"), Some(true));
        hold("chat/ub/2");
        all.move_to(&id, 2, filters(&["chat/ub/#"]));
        assert_eq!(given(&all, &id), ["chat/ub/2"]);
        assert_eq!(all.is_wanted(&id, &other, "chat/ua/x"), Some(false), "nor is it sent after it");
    }

    #[tokio::test]
    async fn a_session_is_not_asked_to_stop_before_what_is_on_its_way_has_arrived() {
        let all = Arc::new(Takeovers::default());
        let id = ClientId::from_static("c");
        let delivery = all.delivering().await;
        assert_eq!(all.way(&id), Way::Straight);
        let (others, client_id) = (all.clone(), id.clone());
        let mut diverting = tokio::spawn(async move { others.divert(&client_id, Filters::default()).await });
        while all.is_idle() {
            tokio::task::yield_now().await;
        }
        assert!(futures::poll!(&mut diverting).is_pending());
        drop(delivery);
        diverting.await.unwrap();
        let _delivery = all.delivering().await;
        assert_eq!(all.way(&id), Way::Diverted);
    }

    #[test]
    fn a_session_that_came_back_is_not_followed_elsewhere() {
        let all = Takeovers::default();
        let id = ClientId::from_static("c");
        all.move_to(&id, 2, filters(&["t"]));
        assert_eq!(all.way(&id), Way::To(2));
        assert!(all.expect(&id));
        all.stop_following(&id);
        assert_eq!(all.way(&id), Way::Diverted);
        all.undivert(&id, drop);
        all.settle(&id);
        assert!(all.way(&id) == Way::Straight && all.is_idle());
    }
}
