//! Nodes, and the network between them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ciqadamq_core::{
    Command, Health, InternalServices, Lane, NodeId, PasswordHash, PeerError, Peers, Reachability, ServiceError, User,
    UserDirectory, UserId, UserQuery, Username,
};
use ciqadamq_user_store::{RaftConfig, ReplicatedUsers, StartError, StoreConfig, Timing, UserStore};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

/// Nothing here may take longer.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Quick, and patient enough for a machine with other work.
pub const TIMING: Timing = Timing {
    heartbeat: Duration::from_millis(100),
    election: (Duration::from_millis(300), Duration::from_millis(600)),
};

/// Who can be called by whom.
#[derive(Default)]
pub struct Net {
    services: Mutex<BTreeMap<NodeId, Arc<InternalServices>>>,
    /// ordered pairs: calls from the first to the second do not arrive
    cut: Mutex<BTreeSet<(NodeId, NodeId)>>,
    /// calls that are made and whose answers get lost: from, to, how many
    deaf: Mutex<Option<(NodeId, NodeId)>>,
    /// the same for calls that do not even arrive
    mute: Mutex<Option<(NodeId, NodeId)>>,
    pub lost: AtomicUsize,
}

impl Net {
    /// Cuts a node off from all others, in both directions.
    pub fn isolate(&self, node: NodeId) {
        let mut cut = self.cut.lock();
        for other in 1..=9 {
            cut.insert((node, other));
            cut.insert((other, node));
        }
    }

    pub fn heal(&self) {
        self.cut.lock().clear();
        *self.deaf.lock() = None;
    }

    /// The next long call of `from` to `to` does not arrive.
    pub fn lose_call(&self, from: NodeId, to: NodeId) {
        *self.mute.lock() = Some((from, to));
    }

    /// Answers of `to` to calls of `from` get lost, except small ones: heartbeats and the like go on.
    pub fn lose_answers(&self, from: NodeId, to: NodeId) {
        *self.deaf.lock() = Some((from, to));
    }
}

struct TestPeers {
    net: Arc<Net>,
    this: NodeId,
    /// since when a node does not answer; `None`: it does
    reach: Mutex<BTreeMap<NodeId, Option<Instant>>>,
}

impl TestPeers {
    async fn deliver(
        &self,
        node: NodeId,
        service: &str,
        body: Vec<u8>,
        patience: Duration,
    ) -> Result<Vec<u8>, PeerError> {
        let is_long = body.len() > 100;
        if self.net.cut.lock().contains(&(self.this, node)) {
            sleep(patience).await;
            return Err(PeerError::NoAnswer("cut".into()));
        }
        if is_long && self.net.mute.lock().take_if(|way| *way == (self.this, node)).is_some() {
            self.net.lost.fetch_add(1, Ordering::Relaxed);
            return Err(PeerError::NoAnswer("lost".into()));
        }
        let service = self.net.services.lock().get(&node).and_then(|services| services.get(service));
        let service = service.ok_or_else(|| PeerError::Unreachable("nobody there".into()))?;
        let is_lost = is_long && *self.net.deaf.lock() == Some((self.this, node));
        if is_lost {
            self.net.lost.fetch_add(1, Ordering::Relaxed);
        }
        let answer = timeout(patience, service.call(body)).await.map_err(|_| PeerError::NoAnswer("late".into()))?;
        if self.net.cut.lock().contains(&(node, self.this)) {
            return Err(PeerError::NoAnswer("cut".into()));
        }
        if is_lost {
            return Err(PeerError::NoAnswer("lost".into()));
        }
        answer.map_err(|error| match error {
            ServiceError::BadRequest(text) => PeerError::Refused(text),
            ServiceError::Unavailable(text) => PeerError::Unavailable(text),
        })
    }
}

#[async_trait]
impl Peers for TestPeers {
    fn others(&self) -> Vec<NodeId> {
        self.reach.lock().keys().copied().collect()
    }

    fn url(&self, node: NodeId) -> Option<String> {
        Some(url(node))
    }

    fn learn(&self, _node: NodeId, _url: &str) {}

    fn reachability(&self, node: NodeId) -> Reachability {
        match self.reach.lock().get(&node) {
            None => Reachability::Unknown,
            Some(None) => Reachability::Reachable,
            Some(Some(since)) => Reachability::Unreachable { since: since.elapsed(), reason: String::new() },
        }
    }

    async fn call(
        &self,
        node: NodeId,
        service: &str,
        _: Lane,
        body: Vec<u8>,
        patience: Duration,
    ) -> Result<Vec<u8>, PeerError> {
        let outcome = self.deliver(node, service, body, patience).await;
        let mut reach = self.reach.lock();
        let since = reach.entry(node).or_default();
        match &outcome {
            Err(PeerError::Unreachable(_) | PeerError::NoAnswer(_)) => drop(since.get_or_insert_with(Instant::now)),
            _ => *since = None,
        }
        drop(reach);
        outcome
    }

    async fn call_at(&self, url: &str, service: &str, body: Vec<u8>, patience: Duration) -> Result<Vec<u8>, PeerError> {
        self.deliver(url.rsplit('/').next().unwrap().parse().unwrap(), service, body, patience).await
    }
}

pub fn url(node: NodeId) -> String {
    format!("mem://{node}")
}

pub struct TestNode {
    pub users: Arc<ReplicatedUsers>,
    pub health: Arc<Health>,
}

impl TestNode {
    pub fn reason(&self) -> String {
        format!("{:?}", self.health.conditions().get("users"))
    }
}

/// Some nodes, each with its directory, and the network between them.
pub struct Cluster {
    pub dir: TempDir,
    pub net: Arc<Net>,
    pub nodes: BTreeMap<NodeId, TestNode>,
    /// numbers of the configured nodes
    pub configured: Vec<NodeId>,
    pub snapshot_every: u64,
}

impl Cluster {
    pub fn new(configured: &[NodeId]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir, net: Arc::default(), nodes: BTreeMap::new(), configured: configured.to_vec(), snapshot_every: 5000 }
    }

    /// Three nodes that are ready.
    pub async fn of_three() -> Self {
        let mut cluster = Self::new(&[1, 2, 3]);
        for node in [1, 2, 3] {
            cluster.start(node).await;
        }
        cluster.ready(&[1, 2, 3]).await;
        cluster
    }

    pub fn path(&self, node: NodeId) -> std::path::PathBuf {
        self.dir.path().join(format!("node{node}/users"))
    }

    pub async fn try_start(&mut self, node: NodeId, configured: &[NodeId]) -> Result<(), StartError> {
        let store = UserStore::open(StoreConfig::at(self.path(node)))?;
        let nodes = configured.iter().map(|id| (*id, url(*id))).collect();
        let config = RaftConfig {
            timing: TIMING,
            snapshot_every: self.snapshot_every,
            ..RaftConfig::clustered(node, nodes, configured.first().copied().unwrap_or(node))
        };
        let peers = Arc::new(TestPeers { net: self.net.clone(), this: node, reach: Mutex::default() });
        let (services, health) = (Arc::new(InternalServices::new()), Arc::new(Health::new()));
        let users = ReplicatedUsers::start(store, config, peers, &services, health.clone()).await?;
        self.net.services.lock().insert(node, services);
        self.nodes.insert(node, TestNode { users, health });
        Ok(())
    }

    pub async fn start(&mut self, node: NodeId) {
        let configured = self.configured.clone();
        self.try_start(node, &configured).await.unwrap();
    }

    pub async fn stop(&mut self, node: NodeId) {
        self.net.services.lock().remove(&node);
        let stopped = self.nodes.remove(&node).unwrap();
        stopped.users.close().await;
    }

    pub fn users(&self, node: NodeId) -> &Arc<ReplicatedUsers> {
        &self.nodes[&node].users
    }

    /// Waits until these nodes let people in.
    pub async fn ready(&self, nodes: &[NodeId]) {
        for node in nodes {
            let node = &self.nodes[node];
            eventually(&|| format!("ready: {}", node.reason()), || node.health.is_ready()).await;
        }
    }

    /// The leader as a node sees it.
    pub async fn leader(&self, seen_by: NodeId) -> NodeId {
        use ciqadamq_core::ClusterPart;
        eventually(&|| "a leader".into(), || self.users(seen_by).raft().leader.is_some()).await;
        self.users(seen_by).raft().leader.unwrap()
    }

    /// Waits until all running nodes have the same users.
    pub async fn equal(&self) -> Vec<Arc<User>> {
        let first = self.nodes.keys().next().unwrap();
        let same = || {
            let expected = (listed(self.users(*first)), self.users(*first).revision());
            self.nodes.values().all(|node| (listed(&node.users), node.users.revision()) == expected)
        };
        eventually(&|| "equal nodes".into(), same).await;
        listed(self.users(*first))
    }
}

/// All users of a node, whether it lets people in or not.
pub fn listed(users: &ReplicatedUsers) -> Vec<Arc<User>> {
    users.store().list(&UserQuery { limit: usize::MAX, ..UserQuery::default() }).unwrap().users
}

pub async fn eventually(what: &dyn Fn() -> String, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {}", what());
        sleep(Duration::from_millis(10)).await;
    }
}

pub fn create(username: &str) -> Command {
    Command::Create {
        username: Username::new(username).unwrap(),
        userid: UserId::new("u").unwrap(),
        password: PasswordHash(format!("$argon2id$v=19$m=9216,t=2,p=1$c2FsdHNhbHRzYWx0${:0>43}", "x")),
        superuser: false,
        admin: false,
    }
}

pub fn delete(username: &str) -> Command {
    Command::Delete { username: Username::new(username).unwrap() }
}
