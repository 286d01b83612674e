//! `GET /api/v1/cluster`: all nodes, each asked for what it says of itself.

use std::time::Duration;

use ciqadamq_core::{Lane, NodeId, PeerError, Peers};
use futures::future::{join, join_all};
use salvo::Depot;
use salvo::oapi::{ToSchema, endpoint};
use serde::Serialize;

use crate::app::Call;
use crate::reply::{Answer, Reply};
use crate::state::{NodeState, SERVICE, Said};

/// Time a node has for its answer. All are asked at once, so the whole takes no longer.
const ANSWER: Duration = Duration::from_secs(1);

/// The cluster as seen from here.
#[derive(Debug, Serialize, ToSchema)]
#[salvo(schema(name = ClusterView))]
pub(crate) struct ClusterView {
    /// id of the node that answers
    node: u64,
    /// all nodes that this one knows, by id
    nodes: Vec<ClusterNode>,
}

/// One node: whether it answers, and what it says of itself.
#[derive(Debug, Serialize, ToSchema)]
#[salvo(schema(name = ClusterNode))]
pub(crate) struct ClusterNode {
    /// its id
    id: u64,
    /// its API as this node reaches it; null for this node
    url: Option<String>,
    /// whether it answered just now
    reachable: bool,
    /// why nothing is known of it; null when it said how it is
    error: Option<String>,
    /// what it says of itself; left out where `error` says why
    #[serde(flatten)]
    #[salvo(schema(value_type = NodeState))]
    state: Option<NodeState>,
}

/// The cluster as seen from here
///
/// Every node that this one knows is asked how it is, all at once, and has a second to answer. One that does not is listed
/// with `reachable: false` and the reason.
#[endpoint(
    operation_id = "show_cluster", tags("node"),
    responses((status_code = 200, description = "nodes", body = ClusterView))
)]
pub(crate) async fn show_cluster(depot: &mut Depot) -> Answer {
    let app = &Call::of(depot)?.app;
    let peers = &*app.deps.peers;
    let others = join_all(peers.others().into_iter().map(|node| ask(peers, node)));
    let (Said { id: node, state }, mut nodes) = join(app.this.say(), others).await;
    nodes.push(ClusterNode { id: node, url: None, reachable: true, error: None, state: Some(state) });
    nodes.sort_by_key(|node| node.id);
    Reply::json(&ClusterView { node, nodes })
}

async fn ask(peers: &dyn Peers, node: NodeId) -> ClusterNode {
    let (reachable, said) = match peers.call(node, SERVICE, Lane::Common, Vec::new(), ANSWER).await {
        Ok(body) => (true, read(node, &body)),
        Err(error) => (answered(&error), Err(error.to_string())),
    };
    let (state, error) = match said {
        Ok(state) => (Some(state), None),
        Err(error) => (None, Some(error)),
    };
    ClusterNode { id: node, url: peers.url(node), reachable, error, state }
}

fn read(node: NodeId, body: &[u8]) -> Result<NodeState, String> {
    match serde_json::from_slice::<Said>(body) {
        Ok(said) if said.id == node => Ok(said.state),
        Ok(said) => Err(format!("at its address answers node {}; correct cluster.node_api_addrs", said.id)),
        Err(_) => Err("it answers in a way that this version does not understand".into()),
    }
}

/// Whether the node said anything at all.
fn answered(error: &PeerError) -> bool {
    matches!(error, PeerError::Refused(_) | PeerError::Unavailable(_))
}
