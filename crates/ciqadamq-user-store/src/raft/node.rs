//! The raft of this node: opened with its checks, started, watched, and started again after a disk that was full.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ciqadamq_core::{Condition, Health, NodeId, Peers, UserDirectory};
use openraft::{
    CommittedLeaderId, EntryPayload, LogId, Membership, ServerState, SnapshotPolicy, StoredMembership, Vote,
};
use parking_lot::RwLock;
use tokio::task::JoinHandle;

use super::directory::StartError;
use super::log::LogStore;
use super::machine::{Machine, Progress};
use super::network::Network;
use super::proposed::Proposed;
use super::proposer::VISIBLE_WAIT;
use super::types::{Applied, Entry, Incarnation, Member, Metrics, Raft, Reign};
use crate::{OpenError, UserStore};

/// Directory of the log, in that of the users: they belong together.
const LOG_DIRECTORY: &str = "raft";
/// Entries after which a snapshot is made.
const SNAPSHOT_EVERY: u64 = 5000;
/// Entries sent at once; with the bound on a batch this stays below the bound on a call.
const PAYLOAD_ENTRIES: u64 = 32;
const SNAPSHOT_CHUNK_BYTES: u64 = 1024 * 1024;
/// Time to send a piece of a snapshot, and to install it after the last.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(15);
/// Pause before a raft that broke off is started again.
const RESTART_EVERY: Duration = Duration::from_secs(1);
/// How often this process notes that it runs, and after what pause it may have been given up: as long as others wait for it to show a
/// change.
const PULSE: Duration = Duration::from_millis(100);
const STOOD_STILL: Duration = VISIBLE_WAIT;
/// Name of the condition of readiness.
const CONDITION: &str = "users";

/// How patient the members are with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// between heartbeats of the leader; also the time a member has to answer one
    pub heartbeat: Duration,
    /// A leader that is silent is given up after the second, and the first to ask for votes does so between the first
    /// and the second later.
    pub election: (Duration, Duration),
}

impl Default for Timing {
    /// A leader that dies is replaced within about two seconds; one that is slow for a second is not.
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(250),
            election: (Duration::from_millis(600), Duration::from_millis(1200)),
        }
    }
}

/// This node among others.
#[derive(Debug, Clone)]
pub struct RaftConfig {
    /// this node; 0 outside a cluster
    pub node: NodeId,
    /// the API of each configured node, this one included; empty outside a cluster
    pub nodes: BTreeMap<NodeId, String>,
    /// the node that forms the cluster at the first start
    pub founder: NodeId,
    /// how patient
    pub timing: Timing,
    /// Entries after which a snapshot is made and the log before it dropped, except for a fifth. Each holds up to 256
    /// changes.
    pub snapshot_every: u64,
}

impl RaftConfig {
    /// A node alone.
    pub fn alone(node: NodeId) -> Self {
        Self { node, nodes: BTreeMap::new(), founder: node, timing: Timing::default(), snapshot_every: SNAPSHOT_EVERY }
    }

    /// A node of a cluster: all its nodes with their APIs, this one included, and the one that forms it.
    pub fn clustered(node: NodeId, nodes: BTreeMap<NodeId, String>, founder: NodeId) -> Self {
        Self { nodes, founder, ..Self::alone(node) }
    }

    pub(crate) fn is_clustered(&self) -> bool {
        !self.nodes.is_empty()
    }
}

/// What runs while the raft runs.
struct Running {
    raft: Raft,
    log: LogStore,
}

/// The raft of this node.
pub(crate) struct Node {
    pub(crate) config: RaftConfig,
    pub(crate) store: Arc<UserStore>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) network: Network,
    health: Arc<Health>,
    path: PathBuf,
    running: RwLock<Option<Running>>,
    problem: RwLock<Option<String>>,
    caught_up: AtomicBool,
    /// why others may know of changes that this node does not, since it caught up
    missed: parking_lot::Mutex<Option<String>>,
    /// when this process was last seen to run, since `begun`: milliseconds
    pulse: AtomicU64,
    begun: Instant,
    /// held while the members are being changed
    pub(crate) changing: tokio::sync::Mutex<()>,
    pub(crate) proposed: parking_lot::Mutex<Proposed>,
    watch: RwLock<Option<JoinHandle<()>>>,
}

impl Node {
    /// Opens the log and starts the raft. Blocks for the disk.
    pub(crate) async fn start(
        config: RaftConfig,
        store: Arc<UserStore>,
        peers: Arc<dyn Peers>,
        health: Arc<Health>,
    ) -> Result<Arc<Self>, StartError> {
        let path = store.config().path.join(LOG_DIRECTORY);
        let log = LogStore::open(&path)?;
        let corrupt = |reason: String| OpenError::Corrupt { path: store.config().path.clone(), reason };
        let progress = Progress::new(store.clone()).map_err(corrupt)?;
        let network = Network { peers, me: (config.node, log.incarnation()) };
        let reign = log.vote().map_err(corrupt)?.map(|vote| Reign::by(&vote));
        health.set(CONDITION, Condition::Unmet("not caught up yet".into()));
        let node = Arc::new(Self {
            config,
            store,
            progress,
            network,
            health,
            path,
            running: RwLock::new(None),
            problem: RwLock::new(None),
            caught_up: AtomicBool::new(false),
            missed: parking_lot::Mutex::default(),
            pulse: AtomicU64::new(0),
            begun: Instant::now(),
            changing: tokio::sync::Mutex::default(),
            proposed: parking_lot::Mutex::new(Proposed::since(reign)),
            watch: RwLock::new(None),
        });
        node.prepare(&log).await?;
        node.run(log).await.map_err(StartError::Raft)?;
        let watch = tokio::spawn(node.clone().watch());
        *node.watch.write() = Some(watch);
        Ok(node)
    }

    pub(crate) fn id(&self) -> NodeId {
        self.config.node
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.network.me.1
    }

    /// The raft, or why there is none now.
    pub(crate) fn raft(&self) -> Result<Raft, String> {
        match &*self.running.read() {
            Some(running) => Ok(running.raft.clone()),
            None => Err(self.problem().unwrap_or_else(|| "the replicated log is closed".into())),
        }
    }

    pub(crate) fn metrics(&self) -> Option<Metrics> {
        self.running.read().as_ref().map(|running| running.raft.metrics().borrow().clone())
    }

    /// All members, as far as this node knows.
    pub(crate) fn members(&self) -> BTreeMap<NodeId, Member> {
        let running = self.running.read();
        let Some(running) = &*running else { return BTreeMap::new() };
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow();
        metrics.membership_config.nodes().map(|(id, member)| (*id, member.clone())).collect()
    }

    /// All members but this node.
    pub(crate) fn other_members(&self) -> BTreeMap<NodeId, Member> {
        let mut members = self.members();
        members.remove(&self.id());
        members
    }

    /// One member.
    pub(crate) fn member(&self, id: NodeId) -> Option<Member> {
        self.members().remove(&id)
    }

    /// Why the users here take no changes, if they do not.
    pub(crate) fn store_problem(&self) -> Option<String> {
        self.store.status().read_only
    }

    /// Why the raft does not run, if it does not.
    pub(crate) fn problem(&self) -> Option<String> {
        self.problem.read().clone()
    }

    /// Why nothing may be added to the log here.
    pub(crate) fn space_problem(&self) -> Option<String> {
        self.running.read().as_ref().and_then(|running| running.log.space_problem())
    }

    /// Whether logins may be answered: since this process began, it has seen everything acknowledged before that, and nothing
    /// has happened by which it may have missed a change.
    pub(crate) fn has_caught_up(&self) -> bool {
        self.caught_up.load(Ordering::Acquire) && (!self.config.is_clustered() || self.stood_still() < STOOD_STILL)
    }

    /// Others may know of changes that this node does not: it serves no logins before it has caught up again.
    pub(crate) fn miss(&self, reason: String) {
        *self.missed.lock() = Some(reason.clone());
        if self.caught_up.load(Ordering::Acquire) {
            self.set_caught_up(Err(reason));
        }
    }

    /// Why it has to catch up again, if it does; asked once.
    pub(crate) fn take_missed(&self) -> Option<String> {
        self.missed.lock().take()
    }

    fn stood_still(&self) -> Duration {
        self.begun.elapsed().saturating_sub(Duration::from_millis(self.pulse.load(Ordering::Acquire)))
    }

    /// Notes that this process runs, for ever. One that stood still (stopped, or on a machine that was) was given up by the others, who
    /// acknowledge changes without it.
    pub(crate) async fn beat(self: Arc<Self>) {
        loop {
            let stood_still = self.stood_still();
            if stood_still >= STOOD_STILL {
                self.miss(format!("this process stood still for {} ms", stood_still.as_millis()));
            }
            self.pulse.store(self.begun.elapsed().as_millis() as u64, Ordering::Release);
            tokio::time::sleep(PULSE).await;
        }
    }

    /// It has, or why not.
    pub(crate) fn set_caught_up(&self, so_far: Result<(), String>) {
        self.caught_up.store(so_far.is_ok(), Ordering::Release);
        self.health.set(CONDITION, so_far.map_or_else(Condition::Unmet, |()| Condition::Met));
    }

    /// Stops the raft; the store stays open.
    pub(crate) async fn stop(&self) {
        if let Some(watch) = self.watch.write().take() {
            watch.abort();
        }
        *self.problem.write() = Some("the broker is going down".into());
        let running = self.running.write().take();
        if let Some(running) = running
            && running.raft.shutdown().await.is_err()
        {
            tracing::warn!("the replicated log broke off while it was stopped");
        }
    }

    /// Sees to it that log and users fit, and that a node alone is its own cluster.
    async fn prepare(&self, log: &LogStore) -> Result<(), StartError> {
        let corrupt = |reason: String| OpenError::Corrupt { path: self.store.config().path.clone(), reason };
        let state = self.progress.state().map_err(corrupt)?;
        let vote = log.vote().map_err(corrupt)?;
        if state.last.is_some_and(|last| last.index > 0) && vote.is_none() {
            return Err(corrupt("its replicated log is missing".into()).into());
        }
        if log.purged() > state.last {
            return Err(corrupt("its replicated log begins after what was applied".into()).into());
        }
        let rest = log.entries_after(state.last.map(|last| last.index)).map_err(corrupt)?;
        let in_log = rest.iter().rev().find_map(|entry| match &entry.payload {
            EntryPayload::Membership(membership) => Some(membership.clone()),
            _ => None,
        });
        let membership = in_log.unwrap_or_else(|| state.membership.membership().clone());
        let voters: BTreeSet<NodeId> = membership.voter_ids().collect();
        let (me, mine) = (self.id(), self.incarnation());

        if voters.is_empty() {
            let has_users = self.store.raft_state().is_none() && self.store.last_applied().0 > 0;
            // Users from before there was a replicated log, or none in a node alone: it is its own cluster. Empty nodes
            // of a cluster form it together.
            if !self.config.is_clustered() || has_users {
                return self.found_alone().await;
            }
            return Ok(());
        }
        let sole = if voters.len() == 1 { voters.first().copied() } else { None };
        let twin = membership.nodes().find(|(id, member)| **id != me && member.incarnation == mine).map(|(id, _)| *id);
        if let Some(of) = twin.filter(|_| sole != twin) {
            return Err(StartError::Copied { path: self.store.config().path.clone(), of, node: me });
        }
        if let Some(member) = membership.get_node(&me)
            && member.incarnation != mine
        {
            return Err(corrupt("its replicated log is not the one these users belong to".into()).into());
        }
        if voters.len() > 1 && !self.config.is_clustered() {
            return Err(StartError::Clustered(voters.into_iter().collect()));
        }
        match sole {
            Some(old) if old != me && membership.get_node(&old).is_some_and(|m| m.incarnation == mine) => {
                tracing::info!(from = old, to = me, "the only member of the user directory has another number now");
                self.become_sole_member(log, vote, state.last).map_err(|e| corrupt(e).into())
            }
            _ => Ok(()),
        }
    }

    /// Begins the history here: this node is the only member, and what users there are count as a snapshot.
    async fn found_alone(&self) -> Result<(), StartError> {
        let origin = LogId::new(CommittedLeaderId::new(0, 0), 0);
        let membership = StoredMembership::new(Some(origin), self.only_me());
        let state = Applied { last: Some(origin), membership }.encode().map_err(StartError::Raft)?;
        let written = self.store.apply_agreed(Vec::new(), state).await;
        written.map(drop).map_err(StartError::Raft)
    }

    /// Continues the history as its only member, under this node's number. Only where there is no other member that
    /// could know better.
    fn become_sole_member(
        &self,
        log: &LogStore,
        vote: Option<Vote<NodeId>>,
        applied: Option<LogId<NodeId>>,
    ) -> Result<(), String> {
        let last = log.last().max(applied);
        let term = vote.map_or(0, |vote| vote.leader_id().term).max(last.map_or(0, |id| id.leader_id.term)) + 1;
        let log_id = LogId::new(CommittedLeaderId::new(term, self.id()), last.map_or(0, |id| id.index + 1));
        log.add(&[Entry { log_id, payload: EntryPayload::Membership(self.only_me()) }])?;
        log.save_vote_blocking(&Vote::new(term, self.id()))
    }

    fn only_me(&self) -> Membership<NodeId, Member> {
        let url = self.config.nodes.get(&self.id()).cloned().unwrap_or_default();
        let me = Member { url, incarnation: self.incarnation() };
        Membership::new(vec![BTreeSet::from([self.id()])], BTreeMap::from([(self.id(), me)]))
    }

    async fn run(&self, log: LogStore) -> Result<(), String> {
        let timing = self.config.timing;
        let millis = |duration: Duration| duration.as_millis() as u64;
        let config = openraft::Config {
            cluster_name: "users".into(),
            heartbeat_interval: millis(timing.heartbeat),
            election_timeout_min: millis(timing.election.0),
            election_timeout_max: millis(timing.election.1),
            install_snapshot_timeout: millis(SNAPSHOT_TIMEOUT),
            max_payload_entries: PAYLOAD_ENTRIES,
            snapshot_policy: SnapshotPolicy::LogsSinceLast(self.config.snapshot_every),
            replication_lag_threshold: self.config.snapshot_every + self.config.snapshot_every / 5,
            snapshot_max_chunk_size: SNAPSHOT_CHUNK_BYTES,
            max_in_snapshot_log_to_keep: self.config.snapshot_every / 5,
            ..openraft::Config::default()
        };
        let config = Arc::new(config.validate().map_err(|e| e.to_string())?);
        let machine = Machine::new(self.progress.clone());
        let raft = Raft::new(self.id(), config, self.network.clone(), log.clone(), machine).await;
        let raft = raft.map_err(|e| e.to_string())?;
        let only_voter = raft.metrics().borrow().membership_config.voter_ids().eq([self.id()]);
        if only_voter {
            // Nobody else can be leading: no need to wait for an election timeout.
            raft.trigger().elect().await.map_err(|e| e.to_string())?;
        }
        *self.running.write() = Some(Running { raft, log });
        *self.problem.write() = None;
        Ok(())
    }

    /// Waits until the raft breaks off, and starts it again. For as long as the process runs.
    async fn watch(self: Arc<Self>) {
        loop {
            let Ok(raft) = self.raft() else { return };
            let mut metrics = raft.metrics();
            let reason = match metrics.wait_for(|metrics| metrics.running_state.is_err()).await {
                Ok(metrics) => metrics.running_state.as_ref().err().map_or_else(String::new, ToString::to_string),
                Err(_) => "it broke off".to_owned(),
            };
            drop((metrics, raft));
            tracing::error!(%reason, "the replicated log of users has stopped; users can be read and not changed");
            *self.problem.write() = Some(reason);
            let ended = self.running.write().take();
            let is_lost = ended.as_ref().is_some_and(|ended| ended.log.is_lost());
            if let Some(ended) = ended {
                // It has stopped by itself; this waits for its tasks, which hold the log.
                let _ = ended.raft.shutdown().await;
            }
            if is_lost {
                return;
            }
            loop {
                tokio::time::sleep(RESTART_EVERY).await;
                let started = match LogStore::open(&self.path) {
                    Ok(log) => self.run(log).await,
                    Err(error) => Err(error.to_string()),
                };
                match started {
                    Ok(()) => break,
                    Err(reason) => *self.problem.write() = Some(reason),
                }
            }
            tracing::info!("the replicated log of users runs again");
        }
    }
}

/// What openraft calls it.
pub(crate) fn is_leader(metrics: &Metrics) -> bool {
    metrics.state == ServerState::Leader
}
