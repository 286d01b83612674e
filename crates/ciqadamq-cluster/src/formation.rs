//! Finding the routing cluster, or starting it: once, whatever the order in which nodes come.
//!
//! `rmqtt-cluster-raft` keeps its log and its votes in memory and decides by itself, from whoever answers first, whether
//! it leads or joins. Left alone it makes clusters of one, joins itself, or ends the process. So it is started only when
//! the decision is safe:
//!
//! - Somebody else leads, and says so itself: **join**.
//! - Nobody leads, a majority of all nodes is here, waits, and has promised not to follow another starter: **lead**. Two
//!   starters cannot both have a majority's promise.
//! - Anything else: **wait**, and say why in `/ready`.
//!
//! Only members of the user directory come that far, once they have caught up with it: whoever starts the plugin is a voter of its
//! raft. A majority is one of the members, too: they are agreed on, on disk, while the configurations of the nodes differ for as
//! long as one after the other is changed.
//!
//! A node that takes part and has lost its leader for good is not waited for: it notices by itself, see [`crate::watch`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::bail;
use ciqadamq_core::NodeId;
use parking_lot::Mutex;
use tracing::{info, warn};

use crate::cluster::Cluster;
use crate::config::ClusterConfig;
use crate::liveness::{View, call};
use crate::wire::{Answer, Ask, NodeState, Phase};

/// How long a promise binds: longer than a starter needs from it until it leads.
const PROMISE: Duration = Duration::from_secs(15);
/// Time for an answer to the question for a promise.
const ANSWER: Duration = Duration::from_secs(1);
/// How long the configured starter is waited for before another one takes its part.
const STARTER_GRACE: Duration = Duration::from_secs(3);
/// Between two looks at the others.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// What a node waits for before it looks for a cluster at all.
const OUTSIDE: &str =
    "this node takes part as soon as it is a member of the user directory and has caught up, see `users`";

/// What to do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// join the cluster that this node leads
    Join(NodeId),
    /// ask the others for their promise, and lead
    Start,
    /// not yet, and why
    Wait(String),
}

/// Looks at what the others say. `members` are all that may take part, this node included; `waited` is how long it has been
/// waiting.
pub fn decide(
    config: &ClusterConfig,
    members: &[NodeId],
    views: &BTreeMap<NodeId, View>,
    waited: Duration,
) -> Decision {
    let me = config.node;
    let alive: BTreeMap<NodeId, &NodeState> =
        views.iter().filter_map(|(node, view)| Some((*node, view.alive()?))).collect();
    let leads =
        |node: &NodeId| alive.get(node).is_some_and(|state| state.phase == Phase::Running && state.leader == *node);
    if let Some(leader) = alive.keys().find(|node| leads(node)) {
        return Decision::Join(*leader);
    }
    let running = alive.values().find(|state| state.phase == Phase::Running);
    if let Some(running) = running {
        let why = match running.leader {
            0 => "has no leader".into(),
            leader if leader == me => "has not noticed yet that this node was restarted".into(),
            leader => format!("names node {leader} as leader, which does not answer"),
        };
        return Decision::Wait(format!("node {} takes part in a cluster and {why}", running.node));
    }
    if let Some(state) = alive.values().find(|state| state.phase == Phase::Starting) {
        return Decision::Wait(format!("node {} is starting the cluster", state.node));
    }
    let waiting: Vec<NodeId> = std::iter::once(me)
        .chain(alive.values().filter(|state| state.phase == Phase::Waiting).map(|state| state.node))
        .filter(|node| members.contains(node))
        .collect();
    let (here, needed) = (waiting.len(), majority(members));
    if here < needed {
        return Decision::Wait(format!("{here} of {} nodes are here, {needed} are needed", members.len()));
    }
    if waiting.contains(&config.starter) {
        return match config.starter == me {
            true => Decision::Start,
            false => Decision::Wait(format!("node {} is to start the cluster", config.starter)),
        };
    }
    if waited < STARTER_GRACE {
        return Decision::Wait(format!("node {} is to start the cluster and does not answer yet", config.starter));
    }
    match waiting.iter().min() {
        Some(first) if *first == me => Decision::Start,
        first => Decision::Wait(format!("node {} is to start the cluster", first.unwrap_or(&me))),
    }
}

/// How many nodes are more than half.
pub fn majority(members: &[NodeId]) -> usize {
    members.len() / 2 + 1
}

/// To whom this node has promised not to follow another starter.
#[derive(Debug, Default)]
pub struct Promise(Mutex<Option<(NodeId, u64, Instant)>>);

impl Promise {
    /// Promises, unless another process has a promise that still binds.
    pub fn give(&self, candidate: NodeId, boot: u64) -> bool {
        let mut given = self.0.lock();
        match &*given {
            Some((node, at_boot, since)) if (*node, *at_boot) != (candidate, boot) && since.elapsed() < PROMISE => {
                false
            }
            _ => {
                *given = Some((candidate, boot, Instant::now()));
                true
            }
        }
    }

    /// Takes the promise to oneself back.
    fn withdraw(&self, candidate: NodeId) {
        let mut given = self.0.lock();
        if given.as_ref().is_some_and(|(node, ..)| *node == candidate) {
            *given = None;
        }
    }
}

/// What is waited for, said where people look, and in the log at every try.
struct Waiting<'a, S> {
    config: &'a ClusterConfig,
    say: S,
    why: String,
    logged: Instant,
    tries: u32,
}

impl<'a, S: Fn(String)> Waiting<'a, S> {
    fn new(config: &'a ClusterConfig, say: S) -> Self {
        Self { config, say, why: String::new(), logged: Instant::now(), tries: 0 }
    }

    /// Fails after the last try.
    fn note(&mut self, why: String) -> anyhow::Result<()> {
        (self.say)(why.clone());
        if why != self.why {
            info!(reason = why, "waiting for the routing cluster");
            (self.why, self.logged) = (why, Instant::now());
        } else if self.logged.elapsed() >= self.config.join_retry {
            self.tries += 1;
            let tries = self.tries;
            warn!(reason = why, tries, "still waiting for the routing cluster");
            self.logged = Instant::now();
            if self.config.join_max_retries > 0 && tries >= self.config.join_max_retries {
                bail!("no routing cluster after cluster.join_max_retries = {tries} tries: {why}");
            }
        }
        Ok(())
    }
}

/// Waits until this node may lead or join, and says meanwhile why it waits. It is none of those that form a cluster before it is
/// `admitted`.
pub(crate) async fn form(
    cluster: &Cluster,
    admitted: impl Future<Output = ()>,
    say: impl Fn(String),
) -> anyhow::Result<()> {
    let (config, liveness) = (&cluster.config, &cluster.liveness);
    let mut waiting = Waiting::new(config, say);
    let mut admitted = std::pin::pin!(admitted);
    while tokio::time::timeout(LOOK_EVERY, &mut admitted).await.is_err() {
        waiting.note(OUTSIDE.to_owned())?;
    }
    liveness.set_phase(Phase::Waiting);
    let since = Instant::now();
    loop {
        let why = match decide(config, &cluster.members(), &liveness.views(), since.elapsed()) {
            Decision::Join(leader) => {
                info!(leader, "joining the routing cluster");
                liveness.set_phase(Phase::Starting);
                return Ok(());
            }
            Decision::Start => match promised(cluster).await {
                Ok(by) => {
                    info!(promised = by, "starting the routing cluster");
                    liveness.set_phase(Phase::Starting);
                    return Ok(());
                }
                Err(missing) => {
                    cluster.promise.withdraw(config.node);
                    missing
                }
            },
            Decision::Wait(why) => why,
        };
        waiting.note(why)?;
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Asks all members that wait for their promise; how many gave it, this node included, or why there are too few.
async fn promised(cluster: &Cluster) -> Result<usize, String> {
    let (own, members) = (cluster.liveness.own(), cluster.members());
    if !cluster.promise.give(own.node, own.boot) {
        return Err("another node is about to start the cluster".into());
    }
    let ask = Ask::Promise { candidate: own.node, boot: own.boot };
    let views = cluster.liveness.views();
    let others = views.iter().filter(|(_, view)| view.alive().is_some()).map(|(node, _)| *node);
    let asked = others.filter(|node| members.contains(node)).map(|node| {
        let ask = &ask;
        async move { matches!(call(&*cluster.deps.peers, node, ask, ANSWER).await, Ok(Answer::Promised(true))) }
    });
    let given = 1 + futures::future::join_all(asked).await.into_iter().filter(|given| *given).count();
    if given >= majority(&members) {
        Ok(given)
    } else {
        Err(format!("{given} of {} promised to follow", members.len()))
    }
}

/// Three nodes, of which node 1 starts.
#[cfg(test)]
pub(crate) fn test_config(node: NodeId) -> ClusterConfig {
    ClusterConfig {
        node,
        nodes: vec![1, 2, 3],
        starter: 1,
        join_retry: Duration::from_secs(5),
        join_max_retries: 0,
        keep_dead: Duration::from_secs(60),
        publishers_wait: true,
        raft: crate::config::RaftSettings {
            node_grpc_addrs: Vec::new(),
            raft_peer_addrs: Vec::new(),
            laddr: ([127, 0, 0, 1], 6003).into(),
            worker_threads: 1,
            election_tick: 60,
            heartbeat_tick: 12,
            check_quorum: true,
            pre_vote: true,
            tick: Duration::from_millis(5),
            proposal_batch_size: 60,
            proposal_batch_timeout: Duration::ZERO,
            grpc_timeout: Duration::from_secs(1),
            node_grpc_timeout: Duration::from_secs(1),
            try_lock_timeout: Duration::from_secs(3),
            snapshot_interval: Duration::from_secs(600),
            more: Vec::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(node: NodeId) -> ClusterConfig {
        test_config(node)
    }

    fn views(states: &[(NodeId, Phase, NodeId)]) -> BTreeMap<NodeId, View> {
        states
            .iter()
            .map(|(node, phase, leader)| {
                let state = NodeState {
                    node: *node,
                    boot: 1,
                    phase: *phase,
                    leader: *leader,
                    unrouted: 0,
                    strays: false,
                    serves: false,
                    out: false,
                };
                (*node, View::said(state))
            })
            .collect()
    }

    const LONG: Duration = Duration::from_secs(60);
    const ALL: &[NodeId] = &[1, 2, 3];

    #[test]
    fn a_leader_that_says_so_itself_is_joined() {
        let views = views(&[(2, Phase::Running, 2), (3, Phase::Waiting, 0)]);
        assert_eq!(decide(&config(1), ALL, &views, LONG), Decision::Join(2));
    }

    #[test]
    fn a_killed_leader_that_is_back_waits_until_the_others_have_another_one() {
        let stale = views(&[(2, Phase::Running, 1), (3, Phase::Running, 1)]);
        assert!(matches!(decide(&config(1), ALL, &stale, LONG), Decision::Wait(_)));
        let elected = views(&[(2, Phase::Running, 3), (3, Phase::Running, 3)]);
        assert_eq!(decide(&config(1), ALL, &elected, LONG), Decision::Join(3));
    }

    #[test]
    fn a_minority_starts_nothing() {
        assert!(matches!(decide(&config(1), ALL, &BTreeMap::new(), LONG), Decision::Wait(_)));
    }

    #[test]
    fn the_configured_node_starts_and_another_one_only_without_it() {
        let both = [(1, Phase::Waiting, 0), (2, Phase::Waiting, 0), (3, Phase::Waiting, 0)];
        let of = |me: NodeId, states: &[(NodeId, Phase, NodeId)], waited| {
            let others: Vec<_> = states.iter().filter(|(node, ..)| *node != me).copied().collect();
            decide(&config(me), ALL, &views(&others), waited)
        };
        assert_eq!(of(1, &both, Duration::ZERO), Decision::Start);
        assert!(matches!(of(2, &both, LONG), Decision::Wait(_)));
        assert!(matches!(of(2, &both[1..], Duration::ZERO), Decision::Wait(_)));
        assert_eq!(of(2, &both[1..], LONG), Decision::Start);
        assert!(matches!(of(3, &both[1..], LONG), Decision::Wait(_)));
    }

    #[test]
    fn who_is_no_member_does_not_count() {
        let stranger = views(&[(2, Phase::Waiting, 0), (3, Phase::Outside, 0)]);
        assert_eq!(decide(&config(1), &[1], &BTreeMap::new(), LONG), Decision::Start, "it is the only member");
        assert!(matches!(decide(&config(1), &[1, 3], &stranger, LONG), Decision::Wait(_)), "half is no majority");
        assert_eq!(decide(&config(1), &[1, 2], &stranger, LONG), Decision::Start);
    }

    #[test]
    fn nobody_starts_beside_a_node_that_takes_part() {
        let views = views(&[(2, Phase::Waiting, 0), (3, Phase::Running, 0)]);
        assert!(matches!(decide(&config(1), ALL, &views, LONG), Decision::Wait(_)));
    }

    #[test]
    fn a_promise_binds_against_others_and_not_against_the_same_process() {
        let promise = Promise::default();
        assert!(promise.give(1, 7) && promise.give(1, 7));
        assert!(!promise.give(2, 7) && !promise.give(1, 8));
        promise.withdraw(1);
        assert!(promise.give(2, 7));
    }
}
