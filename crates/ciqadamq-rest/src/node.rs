//! What the node says about itself: `/health`, `/ready`, `/metrics`, `/api/v1/cluster`.

use std::collections::BTreeMap;

use async_trait::async_trait;
use ciqadamq_core::{Condition, RaftView};
use salvo::Depot;
use salvo::http::StatusCode;
use salvo::oapi::{ToSchema, endpoint};
use serde::Serialize;

use crate::app::Call;
use crate::error::ApiError;
use crate::metrics;
use crate::reply::{Answer, Reply};

/// What the API cannot know without the engine.
#[async_trait]
pub trait NodeView: Send + Sync {
    /// This node's id.
    fn node_id(&self) -> u64;

    /// What runs here, sorted by name; `None` if it cannot be told right now because a plugin is being switched.
    async fn plugins(&self) -> Option<Vec<PluginView>>;
}

/// A plugin on this node.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[salvo(schema(name = PluginView))]
pub struct PluginView {
    /// its name
    pub name: String,
    /// its version; null while it was never started
    pub version: Option<String>,
    /// whether it runs
    pub active: bool,
}

/// The node is alive.
#[derive(Debug, Serialize, ToSchema)]
#[salvo(schema(name = Alive))]
pub(crate) struct Alive {
    /// `ok`
    status: &'static str,
}

/// Whether clients may come.
#[derive(Debug, Serialize, ToSchema)]
#[salvo(schema(name = Readiness))]
pub(crate) struct Readiness {
    /// whether clients may come
    ready: bool,
    /// why not, in one line; only when not ready
    #[serde(skip_serializing_if = "Option::is_none")]
    #[salvo(schema(value_type = String, required = false))]
    error: Option<String>,
    /// what is not met or does not work as it should, and why
    reasons: BTreeMap<String, String>,
}

/// The cluster as seen from here.
#[derive(Debug, Serialize, ToSchema)]
#[salvo(schema(name = ClusterView))]
pub(crate) struct ClusterView {
    /// id of the node that answers
    node: u64,
    /// all nodes that this one knows
    nodes: Vec<NodeState>,
}

/// One node.
#[derive(Debug, Serialize, ToSchema)]
#[salvo(schema(name = NodeState))]
pub(crate) struct NodeState {
    /// its id
    id: u64,
    /// `single` outside a cluster
    role: &'static str,
    /// version of the product
    version: String,
    /// seconds since the API was set up
    uptime_secs: u64,
    /// where its REST API listens
    api_addr: Option<String>,
    /// whether clients may come
    ready: bool,
    /// the conditions of readiness: `met`, or why not
    conditions: BTreeMap<String, String>,
    /// what runs there; null if it cannot be told right now because a plugin is being switched
    plugins: Option<Vec<PluginView>>,
    /// its copy of the user directory
    users: UsersState,
    /// what it replicates with others, by name (`users`, `routes`)
    rafts: BTreeMap<&'static str, RaftState>,
}

/// A replicated part as a node sees it. What the node does not know is null.
#[derive(Debug, Serialize, ToSchema)]
#[salvo(schema(name = RaftState))]
pub(crate) struct RaftState {
    /// `leader`, `follower`, `candidate`, `learner`, or `out` while it takes no part
    role: &'static str,
    /// id of the node that leads
    leader: Option<u64>,
    /// the term
    term: u64,
    /// last entry of the log here
    last_log_index: Option<u64>,
    /// last entry known to be on a quorum
    committed_index: Option<u64>,
    /// last entry that took effect here
    applied_index: Option<u64>,
    /// ids of the nodes that vote
    voters: Vec<u64>,
    /// ids of the nodes that follow without a vote
    learners: Vec<u64>,
    /// why it does not work here; null when it does
    problem: Option<String>,
    /// the other members
    peers: Vec<PeerState>,
}

/// Another member of a replicated part.
#[derive(Debug, Serialize, ToSchema)]
#[salvo(schema(name = PeerState))]
pub(crate) struct PeerState {
    /// its id
    id: u64,
    /// its API
    url: Option<String>,
    /// whether it answered the last call; null if it was not called
    reachable: Option<bool>,
    /// last entry known to be in its log; only the leader knows
    matched_index: Option<u64>,
    /// entries it is behind; only the leader knows
    lag: Option<u64>,
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
            role: view.role.as_str(),
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

/// The user directory of a node.
#[derive(Debug, Serialize, ToSchema)]
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

/// Is the node alive
///
/// Needs no token.
#[endpoint(
    operation_id = "show_health", tags("node"),
    responses((status_code = 200, description = "alive", body = Alive))
)]
pub(crate) async fn show_health() -> Answer {
    Reply::json(&Alive { status: "ok" })
}

/// Is the node ready to take clients
///
/// Needs no token. 503, with the reasons, while it is not.
#[endpoint(
    operation_id = "show_ready", tags("node"),
    responses(
        (status_code = 200, description = "ready", body = Readiness),
        (status_code = 503, description = "not ready, and why", body = Readiness),
    )
)]
pub(crate) async fn show_ready(depot: &mut Depot) -> Answer {
    let call = Call::of(depot)?;
    let health = &call.app.deps.health;
    let is_ready = health.is_ready();
    let reasons: BTreeMap<String, String> = health
        .conditions()
        .into_iter()
        .filter_map(|(name, condition)| match condition {
            Condition::Met => None,
            Condition::Degraded(reason) | Condition::Unmet(reason) => Some((name.to_owned(), reason)),
        })
        .collect();
    if is_ready {
        return Reply::json(&Readiness { ready: true, error: None, reasons });
    }
    let listed = reasons.iter().map(|(name, reason)| format!("{name}: {reason}")).collect::<Vec<_>>().join("; ");
    let error = Some(format!("not ready: {listed}"));
    Ok(Reply::json(&Readiness { ready: false, error, reasons })?.with_status(StatusCode::SERVICE_UNAVAILABLE))
}

/// Metrics in the Prometheus text format
#[endpoint(
    operation_id = "show_metrics", tags("node"),
    responses((status_code = 200, description = "metrics", content_type = "text/plain", body = String))
)]
pub(crate) async fn show_metrics(depot: &mut Depot) -> Answer {
    let text = metrics::render(&Call::of(depot)?.app.deps.metrics)
        .map_err(|_| ApiError::internal("the metrics could not be rendered"))?;
    Ok(Reply::bytes("text/plain; version=0.0.4; charset=utf-8", text))
}

/// The cluster as seen from here
#[endpoint(
    operation_id = "show_cluster", tags("node"),
    responses((status_code = 200, description = "nodes", body = ClusterView))
)]
pub(crate) async fn show_cluster(depot: &mut Depot) -> Answer {
    let app = &Call::of(depot)?.app;
    let status = app.deps.directory.status();
    let conditions = app.deps.health.conditions();
    let ready = app.deps.health.is_ready();
    let id = app.node.node_id();
    let api_addr = app.local_addr.read().map(|addr| addr.to_string());
    let plugins = app.node.plugins().await;
    let this = NodeState {
        id,
        role: "single",
        version: app.config.version.clone(),
        uptime_secs: app.started.elapsed().as_secs(),
        api_addr,
        ready,
        conditions: conditions
            .into_iter()
            .map(|(name, condition)| match condition {
                Condition::Met => (name.to_owned(), "met".to_owned()),
                Condition::Degraded(reason) | Condition::Unmet(reason) => (name.to_owned(), reason),
            })
            .collect(),
        plugins,
        users: UsersState {
            count: status.users,
            revision: status.revision.0,
            bytes: status.bytes,
            read_only: status.read_only,
        },
        rafts: app.deps.cluster.all().into_iter().map(|(name, part)| (name, part.raft().into())).collect(),
    };
    Reply::json(&ClusterView { node: id, nodes: vec![this] })
}
