//! The user directory of the broker: read here, changed through the replicated log.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ciqadamq_core::{
    Applied, ClusterPart, Command, DirectoryError, DirectoryStatus, ExecuteError, Health, InternalServices,
    MembersError, NodeId, Peers, RaftPeer, RaftRole, RaftView, Reachability, Revision, User, UserDirectory,
    UserObserver, UserPage, UserQuery,
};
use openraft::ServerState;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::task::JoinHandle;

use super::network::SERVICE;
use super::node::{Node, RaftConfig};
use super::proposer::Proposer;
use super::service::UsersService;
use super::{formation, members};
use crate::{OpenError, UserStore, store};

/// How long a node alone may take to lead itself.
const ALONE_WITHIN: Duration = Duration::from_secs(20);

/// Pause between looks at whether it has caught up.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Why the directory did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The files are not as they should be.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It is a copy of another node's.
    #[error(
        "user store {path:?}: it is a copy of node {of}'s, and this is node {node}; two nodes with one memory would vote twice: move it \
         aside, start on an empty directory, and take the node in, on another one: ciqadamq cluster remove {node}, if it was a \
         member, then ciqadamq cluster add {node} URL"
    )]
    Copied {
        /// of the database
        path: PathBuf,
        /// whose it is
        of: NodeId,
        /// this node
        node: NodeId,
    },
    /// It belongs to a cluster, and this node is configured to be alone.
    #[error(
        "the user directory belongs to a cluster of the nodes {0:?}; set cluster.enabled = true, or take the other nodes \
         out first (ciqadamq cluster remove)"
    )]
    Clustered(Vec<NodeId>),
    /// The log does not run.
    #[error("the replicated log of users does not start: {0}")]
    Raft(String),
}

/// The user directory, the same on all members.
///
/// Reads come from this node and need no other. Until it has caught up with what was acknowledged before it started, and
/// again after it may have missed something (it stood still, its disk is full, it was taken out), reads are refused: a user
/// deleted meanwhile must not be let in once more. Else it goes on with what it knows, whoever else can be reached.
pub struct ReplicatedUsers {
    node: Arc<Node>,
    proposer: Proposer,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl ReplicatedUsers {
    /// Starts the log of these users and offers the service `users` to other nodes. A node alone can be used when this
    /// returns; one of a cluster says in `health` (condition `users`) when it can.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing was emptied or replaced.
    pub async fn start(
        store: Arc<UserStore>,
        config: RaftConfig,
        peers: Arc<dyn Peers>,
        services: &InternalServices,
        health: Arc<Health>,
    ) -> Result<Arc<Self>, StartError> {
        let is_alone = !config.is_clustered();
        let node = Node::start(config, store, peers, health).await?;
        services.offer(SERVICE, Arc::new(UsersService { node: node.clone() }));
        let proposer = Proposer::start(node.clone());
        let tasks = Mutex::new(vec![tokio::spawn(formation::run(node.clone())), tokio::spawn(node.clone().beat())]);
        if is_alone {
            let caught_up = async {
                while !node.has_caught_up() {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            };
            if tokio::time::timeout(ALONE_WITHIN, caught_up).await.is_err() {
                let problem = node.problem().unwrap_or_else(|| "it does not lead itself".into());
                return Err(StartError::Raft(problem));
            }
        }
        Ok(Arc::new(Self { node, proposer, tasks }))
    }

    /// Waits until this node may be asked about users. In a cluster without a quorum this does not end.
    pub async fn caught_up(&self) {
        while !self.node.has_caught_up() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Takes no more changes, stops the log, and closes the store; reads go on.
    pub async fn close(&self) {
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
        self.node.stop().await;
        let store = self.node.store.clone();
        if tokio::task::spawn_blocking(move || store.close()).await.is_err() {
            tracing::error!("closing the user store panicked");
        }
    }

    /// The users of this node.
    pub fn store(&self) -> &Arc<UserStore> {
        &self.node.store
    }

    fn readable(&self) -> Result<(), DirectoryError> {
        match self.node.has_caught_up() {
            true => Ok(()),
            false => Err(DirectoryError { reason: "this node has not caught up with the cluster yet".into() }),
        }
    }
}

#[async_trait]
impl UserDirectory for ReplicatedUsers {
    fn get(&self, username: &str) -> Result<Option<Arc<User>>, DirectoryError> {
        self.readable()?;
        self.node.store.get(username)
    }

    fn list(&self, query: &UserQuery) -> Result<UserPage, DirectoryError> {
        self.readable()?;
        self.node.store.list(query)
    }

    async fn up_to_date(&self) -> Result<(), DirectoryError> {
        self.readable()?;
        formation::up_to_date(&self.node).await.map_err(|reason| DirectoryError { reason })
    }

    async fn execute(&self, command: Command) -> Result<Applied, ExecuteError> {
        store::check(&command)?;
        self.readable().map_err(|e| ExecuteError::Unavailable(e.reason))?;
        self.proposer.propose(command).await
    }

    fn revision(&self) -> Revision {
        self.node.store.revision()
    }

    fn observe(&self, observer: Arc<dyn UserObserver>) {
        self.node.store.observe(observer);
    }

    fn status(&self) -> DirectoryStatus {
        let mut status = self.node.store.status();
        let leaderless = || {
            let leader = self.node.metrics().and_then(|metrics| metrics.current_leader);
            leader.is_none().then(|| "no member of the cluster leads now".to_owned())
        };
        status.read_only = status.read_only.or_else(|| self.node.problem()).or_else(leaderless);
        status
    }
}

#[async_trait]
impl ClusterPart for ReplicatedUsers {
    fn raft(&self) -> RaftView {
        let node = &self.node;
        let problem = node.problem();
        let Some(metrics) = node.metrics() else {
            return RaftView {
                role: RaftRole::Out,
                leader: None,
                term: None,
                last_log_index: None,
                committed_index: None,
                applied_index: node.progress.applied().borrow().map(|last| last.index),
                voters: Vec::new(),
                learners: Vec::new(),
                problem,
                peers: Vec::new(),
            };
        };
        let membership = metrics.membership_config.membership();
        let is_member = membership.get_node(&node.id()).is_some();
        let applied_index = metrics.last_applied.map(|last| last.index);
        let peer = |(id, member): (NodeId, super::types::Member)| {
            let matched =
                metrics.replication.as_ref().map(|all| all.get(&id).copied().flatten().map(|log_id| log_id.index));
            RaftPeer {
                node: id,
                url: node.network.peers.url(id).or(Some(member.url)).filter(|url| !url.is_empty()),
                reachable: match node.network.peers.reachability(id) {
                    Reachability::Unknown => None,
                    Reachability::Reachable => Some(true),
                    Reachability::Unreachable { .. } => Some(false),
                },
                matched_index: matched.flatten(),
                lag: matched.map(|m| metrics.last_log_index.unwrap_or(0).saturating_sub(m.unwrap_or(0))),
            }
        };
        RaftView {
            role: match metrics.state {
                _ if !is_member => RaftRole::Out,
                ServerState::Leader => RaftRole::Leader,
                ServerState::Follower => RaftRole::Follower,
                ServerState::Candidate => RaftRole::Candidate,
                ServerState::Learner => RaftRole::Learner,
                ServerState::Shutdown => RaftRole::Out,
            },
            leader: metrics.current_leader,
            term: Some(metrics.current_term),
            last_log_index: metrics.last_log_index,
            // What is committed is applied at once; openraft does not tell them apart here.
            committed_index: applied_index,
            applied_index,
            voters: membership.voter_ids().collect(),
            learners: membership.learner_ids().collect(),
            problem,
            peers: node.other_members().into_iter().map(peer).collect(),
        }
    }

    async fn add_member(&self, node: NodeId, url: &str) -> Result<(), MembersError> {
        members::add(&self.node, node, url).await
    }

    async fn remove_member(&self, node: NodeId) -> Result<(), MembersError> {
        members::remove(&self.node, node).await
    }
}
