//! What this node says of itself, to operators and to the other nodes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use ciqadamq_core::{
    ClusterParts, Condition, Health, InternalService, NodeId, Peers, RaftRole, RaftView, ServiceError, UserDirectory,
};
use parking_lot::RwLock;
use salvo::oapi::ToSchema;
use serde::{Deserialize, Serialize};

/// The internal service that answers with a [`Said`] as JSON, whatever it is asked.
pub(crate) const SERVICE: &str = "node";
/// The part whose role is the node's.
pub(crate) const USERS: &str = "users";

/// What the API cannot know without the engine.
#[async_trait]
pub trait NodeView: Send + Sync {
    /// This node's id.
    fn node_id(&self) -> u64;

    /// What runs here, sorted by name; `None` if it cannot be told right now because a plugin is being switched.
    async fn plugins(&self) -> Option<Vec<PluginView>>;
}

/// A plugin on this node.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[salvo(schema(name = PluginView))]
pub struct PluginView {
    /// its name
    pub name: String,
    /// its version; null while it was never started
    pub version: Option<String>,
    /// whether it runs
    pub active: bool,
}

/// What another node asks for.
#[derive(Serialize, Deserialize)]
pub(crate) struct Said {
    /// who answers
    pub(crate) id: NodeId,
    #[serde(flatten)]
    pub(crate) state: NodeState,
}

/// What a node says of itself. All of it is left out for a node that does not answer.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[salvo(schema(name = NodeState))]
pub(crate) struct NodeState {
    /// `single` where no cluster is configured; else what the node is in the raft of users: `leader`, `follower`, `candidate`,
    /// `learner`, or `out` while it takes no part
    #[salvo(schema(required = false))]
    pub(crate) role: String,
    /// version of the product
    #[salvo(schema(required = false))]
    pub(crate) version: String,
    /// seconds since the API was set up
    #[salvo(schema(required = false))]
    pub(crate) uptime_secs: u64,
    /// where its REST API listens
    #[salvo(schema(required = false))]
    pub(crate) api_addr: Option<String>,
    /// whether clients may come
    #[salvo(schema(required = false))]
    pub(crate) ready: bool,
    /// the conditions of readiness: `met`, or why not
    #[salvo(schema(required = false))]
    pub(crate) conditions: BTreeMap<String, String>,
    /// what runs there; null if it cannot be told right now because a plugin is being switched
    #[salvo(schema(required = false))]
    pub(crate) plugins: Option<Vec<PluginView>>,
    /// its copy of the user directory
    #[salvo(schema(required = false))]
    pub(crate) users: UsersState,
    /// what it replicates with others, by name (`users`, `routes`)
    #[salvo(schema(required = false))]
    pub(crate) rafts: BTreeMap<String, RaftState>,
}

/// A replicated part as a node sees it. Terms and entries are left out where they cannot be known: always for `routes`, whose raft does not
/// tell them.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[salvo(schema(name = RaftState))]
pub(crate) struct RaftState {
    /// `leader`, `follower`, `candidate`, `learner`, or `out` while it takes no part
    role: String,
    /// id of the node that leads
    leader: Option<u64>,
    /// the term
    #[serde(skip_serializing_if = "Option::is_none")]
    #[salvo(schema(required = false))]
    term: Option<u64>,
    /// last entry of the log here
    #[serde(skip_serializing_if = "Option::is_none")]
    #[salvo(schema(required = false))]
    last_log_index: Option<u64>,
    /// last entry known to be on a quorum
    #[serde(skip_serializing_if = "Option::is_none")]
    #[salvo(schema(required = false))]
    committed_index: Option<u64>,
    /// last entry that took effect here
    #[serde(skip_serializing_if = "Option::is_none")]
    #[salvo(schema(required = false))]
    applied_index: Option<u64>,
    /// ids of the nodes that vote, whether they answer or not
    voters: Vec<u64>,
    /// ids of the nodes that follow without a vote
    learners: Vec<u64>,
    /// why it does not work here; null when it does
    problem: Option<String>,
    /// the other members
    peers: Vec<PeerState>,
}

/// Another member of a replicated part.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[salvo(schema(name = PeerState))]
pub(crate) struct PeerState {
    /// its id
    id: u64,
    /// its API
    url: Option<String>,
    /// whether it answered the last call; null if it was not called
    reachable: Option<bool>,
    /// last entry known to be in its log; only the leader knows
    #[serde(skip_serializing_if = "Option::is_none")]
    #[salvo(schema(required = false))]
    matched_index: Option<u64>,
    /// entries it is behind; only the leader knows
    #[serde(skip_serializing_if = "Option::is_none")]
    #[salvo(schema(required = false))]
    lag: Option<u64>,
}

/// The user directory of a node.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[salvo(schema(name = UsersState))]
pub(crate) struct UsersState {
    /// number of users
    count: u64,
    /// last applied change
    revision: u64,
    /// bytes on disk
    bytes: u64,
    /// why changes are refused; null when they are taken
    read_only: Option<String>,
}

impl From<RaftView> for RaftState {
    fn from(view: RaftView) -> Self {
        let peers = view.peers.into_iter().map(|peer| PeerState {
            id: peer.node,
            url: peer.url,
            reachable: peer.reachable,
            matched_index: peer.matched_index,
            lag: peer.lag,
        });
        Self {
            role: view.role.as_str().into(),
            leader: view.leader,
            term: view.term,
            last_log_index: view.last_log_index,
            committed_index: view.committed_index,
            applied_index: view.applied_index,
            voters: view.voters,
            learners: view.learners,
            problem: view.problem,
            peers: peers.collect(),
        }
    }
}

/// This node.
pub(crate) struct ThisNode {
    pub(crate) view: Arc<dyn NodeView>,
    pub(crate) directory: Arc<dyn UserDirectory>,
    pub(crate) health: Arc<Health>,
    pub(crate) parts: Arc<ClusterParts>,
    pub(crate) peers: Arc<dyn Peers>,
    pub(crate) version: String,
    pub(crate) started: Instant,
    /// where the API listens; `None` while it is stopped
    pub(crate) local_addr: RwLock<Option<SocketAddr>>,
}

impl ThisNode {
    pub(crate) async fn say(&self) -> Said {
        let plugins = self.view.plugins().await;
        let views = self.parts.all().into_iter().map(|(name, part)| (name, part.raft()));
        let views: BTreeMap<&str, RaftView> = views.collect();
        let role = match views.get(USERS) {
            _ if self.peers.others().is_empty() => "single",
            Some(users) => users.role.as_str(),
            None => RaftRole::Out.as_str(),
        };
        let status = self.directory.status();
        let conditions = self.health.conditions().into_iter().map(|(name, condition)| match condition {
            Condition::Met => (name.to_owned(), "met".to_owned()),
            Condition::Degraded(reason) | Condition::Unmet(reason) => (name.to_owned(), reason),
        });
        let state = NodeState {
            role: role.into(),
            version: self.version.clone(),
            uptime_secs: self.started.elapsed().as_secs(),
            api_addr: self.local_addr.read().map(|addr| addr.to_string()),
            ready: self.health.is_ready(),
            conditions: conditions.collect(),
            plugins,
            users: UsersState {
                count: status.users,
                revision: status.revision.0,
                bytes: status.bytes,
                read_only: status.read_only,
            },
            rafts: views.into_iter().map(|(name, view)| (name.to_owned(), view.into())).collect(),
        };
        Said { id: self.view.node_id(), state }
    }
}

#[async_trait]
impl InternalService for ThisNode {
    async fn call(&self, _body: Vec<u8>) -> Result<Vec<u8>, ServiceError> {
        serde_json::to_vec(&self.say().await).map_err(|error| ServiceError::Unavailable(error.to_string()))
    }
}
