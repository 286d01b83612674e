//! The routing cluster for operators: `GET /api/v1/cluster`.

use std::sync::Arc;

use async_trait::async_trait;
use ciqadamq_core::{ClusterPart, MembersError, NodeId, RaftPeer, RaftRole, RaftView};

use crate::cluster::Cluster;
use crate::watch::Verdict;
use crate::wire::Phase;

/// The name among the replicated parts.
pub const PART: &str = "routes";

/// Describes the routing cluster. Its members come from the configuration.
pub struct RoutesPart(pub Arc<Cluster>);

const FROM_CONFIG: &str = "the members of the routing cluster come from cluster.node_grpc_addrs and \
    cluster.raft_peer_addrs; change these on every node and restart one after the other";

#[async_trait]
impl ClusterPart for RoutesPart {
    fn raft(&self) -> RaftView {
        let (own, views) = (self.0.liveness.own(), self.0.liveness.views());
        let role = match (own.phase, own.leader) {
            (Phase::Running, leader) if leader == own.node => RaftRole::Leader,
            (Phase::Running, 0) => RaftRole::Candidate,
            (Phase::Running, _) => RaftRole::Follower,
            _ => RaftRole::Out,
        };
        let takes_part = |node: &NodeId| {
            *node == own.node && own.phase == Phase::Running
                || views.get(node).and_then(|view| view.alive()).is_some_and(|state| state.phase == Phase::Running)
        };
        let problem = match self.0.state() {
            Verdict::Works { .. } => None,
            Verdict::Waits(why) | Verdict::Restart(why) => Some(why),
        };
        let peer = |(node, view): (&NodeId, &crate::liveness::View)| RaftPeer {
            node: *node,
            url: self.0.deps.peers.url(*node),
            reachable: Some(view.alive().is_some()),
            matched_index: None,
            lag: None,
        };
        RaftView {
            role,
            leader: (own.leader != 0).then_some(own.leader),
            // rmqtt-cluster-raft tells neither terms nor indexes.
            term: None,
            last_log_index: None,
            committed_index: None,
            applied_index: None,
            voters: self.0.config.nodes.iter().copied().filter(takes_part).collect(),
            learners: Vec::new(),
            problem,
            peers: views.iter().map(peer).collect(),
        }
    }

    async fn add_member(&self, _: NodeId, _: &str) -> Result<(), MembersError> {
        Err(MembersError::Refused(FROM_CONFIG.into()))
    }

    async fn remove_member(&self, _: NodeId) -> Result<(), MembersError> {
        Err(MembersError::Refused(FROM_CONFIG.into()))
    }
}
