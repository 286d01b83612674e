//! Which nodes are alive, by asking them: a process that is stopped has an open port and gives no answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ciqadamq_core::{NodeId, Peers};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::wire::{Answer, Ask, NodeState, Phase, SERVICE};

/// Time between two questions to a node.
const EVERY: Duration = Duration::from_millis(250);
/// Time a node has for an answer.
const ANSWER: Duration = Duration::from_millis(500);
/// A node that gave no answer for so long, though asked so often, is dead. Half a second would do on a quiet machine.
const DEAD_AFTER: Duration = Duration::from_millis(1500);
const DEAD_MISSES: u32 = 3;
/// A node that is no member, and has been none for so long, counts as dead. It says so for a moment where the members find each other.
const OUT_AFTER: Duration = Duration::from_secs(3);
/// How long nodes that are started together may differ in being there. One that takes longer is not waited for.
const ALL_START: Duration = Duration::from_secs(30);
/// For how long a node remembers that another one held it for dead.
const THOUGHT_DEAD: Duration = Duration::from_secs(3);

/// What is known of another node.
#[derive(Debug, Clone)]
pub struct View {
    /// What it said last. `None`: it never answered.
    pub state: Option<NodeState>,
    /// Since when it is dead.
    pub dead_since: Option<Instant>,
    /// When it came, came back, or began anew.
    came: Option<Instant>,
    /// It was seen to serve, if only once.
    has_served: bool,
    answered: Instant,
    /// Since when it says that it is no member.
    out_since: Option<Instant>,
    misses: u32,
}

impl View {
    fn new() -> Self {
        Self {
            state: None,
            dead_since: None,
            came: None,
            has_served: false,
            answered: Instant::now(),
            out_since: None,
            misses: 0,
        }
    }

    /// What it said, unless it is dead.
    pub fn alive(&self) -> Option<&NodeState> {
        self.state.as_ref().filter(|_| self.dead_since.is_none())
    }

    /// Whether it says for long enough that it is no member.
    fn is_out(&mut self, now: Instant) -> bool {
        now.duration_since(*self.out_since.get_or_insert(now)) >= OUT_AFTER
    }

    fn note(&mut self, answer: Result<NodeState, String>, now: Instant) -> Change {
        match answer {
            Ok(state) if state.out && self.is_out(now) => {
                (self.answered, self.misses, self.state) = (now, 0, Some(state));
                if self.dead_since.is_some() {
                    return Change::None;
                }
                self.dead_since = Some(now);
                Change::Out
            }
            Ok(state) => {
                self.out_since = self.out_since.filter(|_| state.out);
                let back = self.dead_since.take().is_some() || self.state.is_none();
                let restarted = self.state.as_ref().is_some_and(|old| old.boot != state.boot);
                self.has_served |= state.serves;
                self.state = Some(state);
                self.answered = now;
                self.misses = 0;
                if back || restarted {
                    self.came = Some(now);
                }
                match (back, restarted) {
                    (true, _) => Change::Back,
                    (_, true) => Change::Restarted,
                    _ => Change::None,
                }
            }
            Err(reason) => {
                self.out_since = None;
                self.misses = self.misses.saturating_add(1);
                let silent = now.duration_since(self.answered);
                if self.dead_since.is_none() && self.misses >= DEAD_MISSES && silent >= DEAD_AFTER {
                    self.dead_since = Some(now);
                    return Change::Died { reason, silent };
                }
                Change::None
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Change {
    None,
    /// It is no member.
    Out,
    Died {
        /// what became of the last question
        reason: String,
        silent: Duration,
    },
    Back,
    Restarted,
}

/// This node's own state, and what it knows of the others.
pub struct Liveness {
    peers: Arc<dyn Peers>,
    own: Mutex<NodeState>,
    begun: Instant,
    views: RwLock<BTreeMap<NodeId, View>>,
    /// Counts what changed in `views`.
    changed: watch::Sender<u64>,
    /// When another node last said that it held this one for dead.
    thought_dead: Mutex<Option<Instant>>,
}

impl Liveness {
    /// Of the nodes `others`; nobody was asked yet.
    pub fn new(peers: Arc<dyn Peers>, node: NodeId, others: impl Iterator<Item = NodeId>) -> Self {
        let boot = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64);
        Self {
            peers,
            own: Mutex::new(NodeState {
                node,
                boot,
                phase: Phase::Outside,
                leader: 0,
                unrouted: 0,
                strays: false,
                serves: false,
                out: false,
            }),
            begun: Instant::now(),
            views: RwLock::new(others.map(|node| (node, View::new())).collect()),
            changed: watch::Sender::new(0),
            thought_dead: Mutex::new(None),
        }
    }

    /// This node.
    pub fn own(&self) -> NodeState {
        self.own.lock().clone()
    }

    /// Changes what this node says of itself.
    pub fn set_phase(&self, phase: Phase) {
        self.own.lock().phase = phase;
    }

    /// Changes whom this node names as the leader.
    pub fn set_leader(&self, leader: NodeId) {
        self.own.lock().leader = leader;
    }

    /// Changes which list of subscriptions without a route this node says it has.
    pub fn set_unrouted(&self, number: u64) {
        self.own.lock().unrouted = number;
    }

    /// The other nodes.
    pub fn views(&self) -> BTreeMap<NodeId, View> {
        self.views.read().clone()
    }

    /// Whether a node is known to be dead. An unknown one is not.
    pub fn is_dead(&self, node: NodeId) -> bool {
        self.dead_for(node).is_some()
    }

    /// For how long a node has been dead.
    pub fn dead_for(&self, node: NodeId) -> Option<Duration> {
        self.views.read().get(&node).and_then(|view| view.dead_since).map(|since| since.elapsed())
    }

    /// Since when a node is dead.
    pub fn dead_since(&self, node: NodeId) -> Option<Instant> {
        self.views.read().get(&node).and_then(|view| view.dead_since)
    }

    /// The other nodes that are not dead.
    pub fn others_alive(&self) -> Vec<NodeId> {
        self.views.read().iter().filter(|(_, view)| view.dead_since.is_none()).map(|(node, _)| *node).collect()
    }

    /// The nodes that are dead.
    pub fn dead(&self) -> Vec<NodeId> {
        self.views.read().iter().filter(|(_, view)| view.dead_since.is_some()).map(|(node, _)| *node).collect()
    }

    /// When a node came, came back, or began anew.
    pub fn came(&self, node: NodeId) -> Option<Instant> {
        self.views.read().get(&node).and_then(|view| view.came)
    }

    /// The other nodes that may have a session of which the cluster knows nothing: on their disks and not in use, or not back from there.
    ///
    /// The cluster knows the sessions of a node that is started anew, unless all nodes are: then none has served yet since this one
    /// began.
    pub fn others_with_strays(&self) -> Vec<NodeId> {
        let all_start = self.begun.elapsed() < ALL_START;
        let has = |view: &View| view.alive().is_some_and(|state| state.strays || all_start && !view.has_served);
        self.views.read().iter().filter(|(_, view)| has(view)).map(|(node, _)| *node).collect()
    }

    /// Whether this node is the smallest of those that live: who does what only one has to do.
    pub fn is_first_alive(&self) -> bool {
        let own = self.own.lock().node;
        !self.views.read().iter().any(|(node, view)| *node < own && view.alive().is_some())
    }

    /// Counts what changed in what is known of the other nodes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Resolves when a node is dead. At once if it is.
    pub async fn died(&self, node: NodeId) {
        let mut changed = self.changed.subscribe();
        while !self.is_dead(node) {
            if changed.changed().await.is_err() {
                // The sender lives as long as `self`.
                return;
            }
        }
    }

    /// Notes that another node holds this one for dead.
    pub fn heard(&self, dead: &[NodeId]) {
        if dead.contains(&self.own.lock().node) {
            *self.thought_dead.lock() = Some(Instant::now());
        }
    }

    /// Whether another node said so a moment ago: what belongs to this node may have been given away.
    pub fn was_thought_dead(&self) -> bool {
        self.thought_dead.lock().is_some_and(|at| at.elapsed() < THOUGHT_DEAD)
    }

    /// Asks all others again and again, for ever.
    pub async fn run(self: Arc<Self>) {
        let nodes: Vec<NodeId> = self.views.read().keys().copied().collect();
        let asking: Vec<_> = nodes.into_iter().map(|node| tokio::spawn(self.clone().follow(node))).collect();
        for task in asking {
            // A panic in one would leave that node unwatched; there is nothing in it that panics.
            drop(task.await);
        }
    }

    async fn follow(self: Arc<Self>, node: NodeId) {
        loop {
            let since = Instant::now();
            let ask = Ask::State { from: self.own.lock().node, dead: self.dead() };
            let answer = match call(&*self.peers, node, &ask, ANSWER).await {
                Ok(Answer::State(state)) if state.node == node => Ok(state),
                Ok(Answer::State(state)) => Err(format!("at its address answers node {}", state.node)),
                Ok(_) => Err("it answers something else".into()),
                Err(error) => Err(format!("{error:#}")),
            };
            let (change, differs) = {
                let mut views = self.views.write();
                let Some(view) = views.get_mut(&node) else { return };
                let before = view.state.clone();
                let change = view.note(answer, Instant::now());
                (change, before != view.state)
            };
            let has_changed = change != Change::None || differs;
            match change {
                Change::Died { reason, silent } => {
                    let silent_ms = silent.as_millis() as u64;
                    warn!(node, silent_ms, reason, "node does not answer: held for dead");
                }
                Change::Out => info!(node, "node is no member: it counts as dead"),
                Change::Back => info!(node, "node answers"),
                Change::Restarted => info!(node, "node was restarted"),
                Change::None => {}
            }
            if has_changed {
                self.changed.send_modify(|count| *count = count.wrapping_add(1));
            }
            tokio::time::sleep(EVERY.saturating_sub(since.elapsed())).await;
        }
    }
}

/// Asks a node.
pub(crate) async fn call(peers: &dyn Peers, node: NodeId, ask: &Ask, timeout: Duration) -> anyhow::Result<Answer> {
    let body = postcard::to_stdvec(ask)?;
    let answer = peers.call(node, SERVICE, ask.lane(), body, timeout).await?;
    Ok(postcard::from_bytes(&answer)?)
}

#[cfg(test)]
impl View {
    /// A node that said this.
    pub(crate) fn said(state: NodeState) -> Self {
        Self { state: Some(state), ..Self::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(boot: u64) -> Result<NodeState, String> {
        Ok(NodeState {
            node: 2,
            boot,
            phase: Phase::Running,
            leader: 1,
            unrouted: 0,
            strays: false,
            serves: false,
            out: false,
        })
    }

    fn miss() -> Result<NodeState, String> {
        Err("no answer".into())
    }

    #[test]
    fn a_node_is_dead_after_several_misses_over_some_time_and_not_before() {
        let mut view = View::new();
        let start = Instant::now();
        assert_eq!(view.note(state(1), start), Change::Back);
        for miss in 1..=5 {
            assert_eq!(view.note(self::miss(), start + EVERY * miss), Change::None, "miss {miss}");
        }
        let died = view.note(miss(), start + DEAD_AFTER);
        assert_eq!(died, Change::Died { reason: "no answer".into(), silent: DEAD_AFTER });
        assert!(view.alive().is_none());
        assert_eq!(view.note(state(1), start + DEAD_AFTER * 2), Change::Back);
        assert!(view.alive().is_some());
    }

    #[test]
    fn a_node_that_is_no_member_is_dead_until_it_is_one() {
        let out = |out| state(1).map(|state| NodeState { out, ..state });
        let mut view = View::new();
        let start = Instant::now();
        assert_eq!(view.note(out(true), start), Change::Back);
        assert_eq!(view.note(out(true), start + OUT_AFTER / 2), Change::None, "it may be one in a moment");
        assert_eq!(view.note(out(true), start + OUT_AFTER), Change::Out);
        assert!(view.alive().is_none() && view.dead_since.is_some());
        assert_eq!(view.note(out(true), start + OUT_AFTER * 2), Change::None);
        assert_eq!(view.note(out(false), start + OUT_AFTER * 3), Change::Back);
        assert!(view.alive().is_some());
    }

    #[test]
    fn a_pause_of_this_process_kills_nobody() {
        let mut view = View::new();
        let start = Instant::now();
        view.note(state(1), start);
        // The question that was out when this process was stopped has timed out when it goes on.
        assert_eq!(view.note(miss(), start + Duration::from_secs(30)), Change::None);
        assert_eq!(view.note(state(1), start + Duration::from_secs(31)), Change::None);
    }

    #[test]
    fn a_restart_is_noticed_even_if_it_was_quick() {
        let mut view = View::new();
        view.note(state(1), Instant::now());
        assert_eq!(view.note(state(2), Instant::now()), Change::Restarted);
    }
}
