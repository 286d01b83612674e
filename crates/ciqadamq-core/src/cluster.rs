//! The cluster as one node sees it, for operators: each replicated part describes its raft, and takes members in or out.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::RwLock;
use thiserror::Error;

use crate::NodeId;

/// What a node is in a raft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RaftRole {
    /// it orders the changes
    Leader,
    /// it follows, and votes
    Follower,
    /// it asks for votes
    Candidate,
    /// it follows without a vote
    Learner,
    /// it does not take part: not a member yet, or broken
    Out,
}

impl RaftRole {
    /// Stable name for JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Candidate => "candidate",
            Self::Learner => "learner",
            Self::Out => "out",
        }
    }
}

/// One raft as this node sees it. What a part cannot know is `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaftView {
    /// what this node is in it
    pub role: RaftRole,
    /// who leads
    pub leader: Option<NodeId>,
    /// the term
    pub term: Option<u64>,
    /// index of the last entry in this node's log
    pub last_log_index: Option<u64>,
    /// last entry known to be on a quorum
    pub committed_index: Option<u64>,
    /// last entry that took effect here
    pub applied_index: Option<u64>,
    /// who votes, sorted
    pub voters: Vec<NodeId>,
    /// who follows without a vote, sorted
    pub learners: Vec<NodeId>,
    /// why it does not work here, if it does not
    pub problem: Option<String>,
    /// the other members
    pub peers: Vec<RaftPeer>,
}

/// Another member of a raft as this node sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaftPeer {
    /// which
    pub node: NodeId,
    /// where, if the part knows
    pub url: Option<String>,
    /// whether the last call was answered; `None` if there was none
    pub reachable: Option<bool>,
    /// last entry known to be in its log; only the leader knows
    pub matched_index: Option<u64>,
    /// entries it is behind this node; only the leader knows
    pub lag: Option<u64>,
}

/// Why the members were not changed, or perhaps were.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MembersError {
    /// It must not be done; the text says why and what to do.
    #[error("{0}")]
    Refused(String),
    /// It cannot be done now, or was not finished in time.
    #[error("{0}")]
    Unavailable(String),
}

/// A replicated part of this node.
#[async_trait]
pub trait ClusterPart: Send + Sync {
    /// Its raft.
    fn raft(&self) -> RaftView;

    /// Takes a node in and gives it a vote, once it has caught up. `url` is its API, where the configuration has it too:
    /// the nodes' credential goes nowhere else. Any member takes the call.
    async fn add_member(&self, node: NodeId, url: &str) -> Result<(), MembersError>;

    /// Takes a node out.
    async fn remove_member(&self, node: NodeId) -> Result<(), MembersError>;
}

/// The replicated parts by name (`users`, `routes`).
#[derive(Default)]
pub struct ClusterParts(RwLock<BTreeMap<&'static str, Arc<dyn ClusterPart>>>);

impl ClusterParts {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Enters a part.
    pub fn enter(&self, name: &'static str, part: Arc<dyn ClusterPart>) {
        self.0.write().insert(name, part);
    }

    /// All parts, by name.
    pub fn all(&self) -> Vec<(&'static str, Arc<dyn ClusterPart>)> {
        self.0.read().iter().map(|(name, part)| (*name, part.clone())).collect()
    }
}
