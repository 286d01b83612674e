//! The routing cluster for operators: `GET /api/v1/cluster`.

use std::sync::Arc;

use async_trait::async_trait;
use ciqadamq_core::{ClusterPart, MembersError, NodeId, RaftPeer, RaftRole, RaftView};

use crate::cluster::Cluster;
use crate::voters::RoutesRaft;
use crate::watch::Verdict;
use crate::wire::Phase;

/// The name among the replicated parts.
pub const PART: &str = "routes";

/// Describes the routing cluster. Its members are those of the user directory.
pub struct RoutesPart(pub Arc<Cluster>);

const FROM_USERS: &str = "the members of the routing cluster are those of the user directory";

#[async_trait]
impl ClusterPart for RoutesPart {
    fn raft(&self) -> RaftView {
        let (own, views) = (self.0.liveness.own(), self.0.liveness.views());
        let raft = self.0.raft.lock().clone().filter(|_| own.phase == Phase::Running);
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
            role: raft.as_ref().map_or(RaftRole::Out, RoutesRaft::role),
            leader: (own.leader != 0).then_some(own.leader),
            // rmqtt-raft tells neither terms nor indexes.
            term: None,
            last_log_index: None,
            committed_index: None,
            applied_index: None,
            voters: raft.map(|raft| raft.voters()).unwrap_or_default(),
            learners: Vec::new(),
            problem,
            peers: views.iter().map(peer).collect(),
        }
    }

    async fn add_member(&self, _: NodeId, _: &str) -> Result<(), MembersError> {
        Err(MembersError::Refused(FROM_USERS.into()))
    }

    async fn remove_member(&self, _: NodeId) -> Result<(), MembersError> {
        Err(MembersError::Refused(FROM_USERS.into()))
    }
}
