//! Who votes in the raft of the routes; and that a node which is no member any more does not.
//!
//! `rmqtt-cluster-raft` takes in every node that starts it, and lets none go. Whoever is no member of the user directory does not start
//! it (see [`crate::formation`]). One that was taken out of the directory is taken out of this raft, too, running or not: else it would
//! count for ever as a voter that does not answer. The node that leads the users' raft does it, for there is one, and it knows the
//! members.
//!
//! The plugin has no call for that, and its raft has: the one by which a node that joins removes what it was before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use ciqadamq_core::{NodeId, RaftRole};
use serde::Deserialize;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tonic::Request;
use tonic::client::Grpc;
use tonic::codec::ProstCodec;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tracing::{info, warn};

use crate::cluster::Cluster;

/// The plugin in the plugin manager.
const PLUGIN: &str = "rmqtt-cluster-raft";
/// Between two looks.
const EVERY: Duration = Duration::from_millis(500);
/// Time for an answer of the plugin or of a raft.
const ANSWER: Duration = Duration::from_secs(2);
/// Looks at which a voter must have been no member: one that was taken in this moment may be seen here first.
const LOOKS: u32 = 6;

/// The raft of the routes, as the plugin tells.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct RoutesRaft {
    id: NodeId,
    pub(crate) leader_id: NodeId,
    role: u8,
    /// the other voters, and perhaps this one
    peers: BTreeMap<NodeId, Option<Voter>>,
}

#[derive(Debug, Clone, Deserialize)]
struct Voter {
    /// where its raft listens
    addr: String,
}

/// What the plugin tells of itself.
#[derive(Deserialize)]
struct Attributes {
    raft_status: Option<RoutesRaft>,
}

impl RoutesRaft {
    /// What this node is in it.
    pub(crate) fn role(&self) -> RaftRole {
        match self.role {
            3 => RaftRole::Leader,
            // 4 asks whether it would be elected.
            2 | 4 => RaftRole::Candidate,
            _ => RaftRole::Follower,
        }
    }

    /// Who votes, sorted.
    pub(crate) fn voters(&self) -> Vec<NodeId> {
        let others = self.peers.keys().copied().chain([self.id]);
        others.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

impl Cluster {
    /// Looks at the voters, for ever, and takes out those that are no members, where that is this node's business.
    pub(crate) async fn keep_voters(self: Arc<Self>) {
        let mut strangers: BTreeMap<NodeId, u32> = BTreeMap::new();
        loop {
            let raft = self.look_at_raft().await;
            let seen = raft.as_ref().map(|raft| self.strangers(raft)).unwrap_or_default();
            *self.raft.lock() = raft.clone();
            strangers =
                seen.into_iter().map(|node| (node, strangers.get(&node).map_or(1, |looks| looks + 1))).collect();
            let due = strangers.iter().find(|(_, looks)| **looks >= LOOKS).map(|(node, _)| *node);
            if let (Some(node), Some(raft)) = (due, raft) {
                match self.take_out(&raft, node).await {
                    Ok(()) => info!(node, "no member any more: the leader of the routes is asked to go on without it"),
                    Err(error) => {
                        let error = format!("{error:#}");
                        warn!(node, error, "no member any more, and not taken out of the routing cluster yet");
                    }
                }
                strangers.clear();
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    /// What the plugin tells of its raft; nothing before it runs.
    async fn look_at_raft(&self) -> Option<RoutesRaft> {
        let (scx, runtime) = (self.scx.clone(), Handle::current());
        // The plugin manager lends a plugin out under a lock of its own, which must not be held over an await on these threads.
        let asked = tokio::task::spawn_blocking(move || {
            runtime.block_on(async {
                let entry = scx.plugins.get(PLUGIN).filter(|entry| entry.active())?;
                let info = timeout(ANSWER, entry.to_info(PLUGIN)).await.ok()?.ok()?;
                serde_json::from_slice::<Attributes>(&info.attrs).ok()?.raft_status
            })
        });
        // A plugin that panicked has told nothing.
        asked.await.ok().flatten()
    }

    /// Voters that are no members of the user directory, if this node leads that and so has to know.
    fn strangers(&self, raft: &RoutesRaft) -> Vec<NodeId> {
        let users = self.deps.users.raft();
        if users.role != RaftRole::Leader {
            return Vec::new();
        }
        let is_member = |node: &NodeId| users.voters.contains(node) || users.learners.contains(node);
        raft.voters().into_iter().filter(|node| !is_member(node)).collect()
    }

    /// Asks the leader of the routes to take a node out, which may be that leader. What came of it is seen at the next look.
    async fn take_out(&self, raft: &RoutesRaft, node: NodeId) -> anyhow::Result<()> {
        // Whoever leads without a quorum knows the members of another day.
        self.deps.directory.up_to_date().await?;
        anyhow::ensure!(self.strangers(raft).contains(&node), "it was taken in meanwhile, or another node leads");
        let leader = raft.leader_id;
        let known = raft.peers.get(&leader).and_then(Option::as_ref).map(|voter| voter.addr.clone());
        let prefix = format!("{leader}@");
        let configured = || self.config.raft.raft_peer_addrs.iter().find_map(|entry| entry.strip_prefix(&prefix));
        let addr = known.or_else(|| configured().map(str::to_owned)).context("nobody leads the routes")?;
        let endpoint = Endpoint::from_shared(format!("http://{addr}"))?.connect_timeout(ANSWER).timeout(ANSWER);
        let mut raft = Grpc::new(endpoint.connect().await?);
        raft.ready().await?;
        let change = prost::Message::encode_to_vec(&ConfChange { change_type: REMOVE_NODE, node_id: node });
        let path = PathAndQuery::from_static("/raftservice.RaftService/ChangeConfig");
        let codec = ProstCodec::<Bytes, RaftResponse>::default();
        raft.unary(Request::new(Bytes { inner: change }), path, codec).await?;
        Ok(())
    }
}

/// `ConfChangeType::RemoveNode`
const REMOVE_NODE: i32 = 1;

/// What rmqtt-raft calls `eraftpb.ConfChange`, without the fields that it gives a meaning of their own when they are left out: the number
/// is the leader's to choose, and no context is a node that ends its part in order.
#[derive(Clone, PartialEq, prost::Message)]
struct ConfChange {
    #[prost(int32, tag = "2")]
    change_type: i32,
    #[prost(uint64, tag = "3")]
    node_id: u64,
}

/// And `raftservice.ConfChange`.
#[derive(Clone, PartialEq, prost::Message)]
struct Bytes {
    #[prost(bytes = "vec", tag = "1")]
    inner: Vec<u8>,
}

/// And `raftservice.RaftResponse`, which is not looked into.
#[derive(Clone, PartialEq, prost::Message)]
struct RaftResponse {}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_the_plugin_tells_is_understood() {
        let told = r#"{"raft_status": {"id": 1, "leader_id": 2, "uncommitteds": 0, "role": 1, "propose_rate": 0.5,
            "peers": {"2": {"addr": "127.0.0.2:6003", "available": true}, "3": null}}, "client_states": 0}"#;
        let raft = serde_json::from_str::<Attributes>(told).unwrap().raft_status.unwrap();
        assert_eq!((raft.leader_id, raft.role(), raft.voters()), (2, RaftRole::Follower, vec![1, 2, 3]));
    }
}
