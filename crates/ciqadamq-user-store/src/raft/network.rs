//! Calls of openraft to other members.

use std::sync::Arc;
use std::time::Duration;

use ciqadamq_core::{Lane, NodeId, PeerError, Peers};
use openraft::error::{InstallSnapshotError, NetworkError, RPCError, RemoteError, SnapshotMismatch, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest,
    VoteResponse,
};

use super::types::{Call, Envelope, Incarnation, Member, RaftError, Reply, Types, decode, encode};
use super::wire::Taken;

/// Name of the service at the other end.
pub(crate) const SERVICE: &str = "users";

/// Pause before the next try after a member was not reached.
const PAUSE: Duration = Duration::from_millis(250);

type CallError<E = RaftError> = RPCError<NodeId, Member, E>;

/// The way out of this node: who it is, and how it reaches others.
#[derive(Clone)]
pub(crate) struct Network {
    pub(crate) peers: Arc<dyn Peers>,
    pub(crate) me: (NodeId, Incarnation),
}

impl Network {
    /// Calls a node, or whoever answers there if its incarnation is not given.
    pub(crate) async fn call(
        &self,
        node: NodeId,
        incarnation: Option<Incarnation>,
        call: Call,
        timeout: Duration,
    ) -> Result<Reply, PeerError> {
        let lane = lane(&call);
        let body = self.envelope(incarnation.map(|incarnation| (node, incarnation)), call)?;
        let answer = self.peers.call(node, SERVICE, lane, body, timeout).await?;
        decode(&answer).map_err(|e| PeerError::Refused(format!("its answer {e}")))
    }

    /// Calls whoever answers at a URL.
    pub(crate) async fn call_at(&self, url: &str, call: Call, timeout: Duration) -> Result<Reply, PeerError> {
        let body = self.envelope(None, call)?;
        let answer = self.peers.call_at(url, SERVICE, body, timeout).await?;
        decode(&answer).map_err(|e| PeerError::Refused(format!("its answer {e}")))
    }

    fn envelope(&self, to: Option<(NodeId, Incarnation)>, call: Call) -> Result<Vec<u8>, PeerError> {
        encode(&Envelope { from: self.me, to, call }).map_err(PeerError::Refused)
    }
}

/// Entries and heartbeats are one kind of call. There are at most as many at once as batches under way on all nodes.
fn lane(call: &Call) -> Lane {
    match call {
        Call::Append(_) | Call::Vote(_) => Lane::Vital,
        _ => Lane::Common,
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Line;

    async fn new_client(&mut self, target: NodeId, member: &Member) -> Line {
        if !member.url.is_empty() {
            self.peers.learn(target, &member.url);
        }
        Line { network: self.clone(), target, incarnation: member.incarnation }
    }
}

/// The way to one member.
pub(crate) struct Line {
    network: Network,
    target: NodeId,
    incarnation: Incarnation,
}

impl Line {
    async fn call<E: std::error::Error>(&self, call: Call, option: &RPCOption) -> Result<Reply, CallError<E>> {
        let outcome = self.network.call(self.target, Some(self.incarnation), call, option.hard_ttl()).await;
        outcome.map_err(|error| match error {
            PeerError::NoAnswer(_) => RPCError::Network(NetworkError::new(&error)),
            // Nothing is gained by trying again at once.
            error => RPCError::Unreachable(Unreachable::new(&error)),
        })
    }
}

fn nonsense<E: std::error::Error>() -> CallError<E> {
    RPCError::Network(NetworkError::new(&PeerError::Refused("it answered something else".into())))
}

impl RaftNetwork<Types> for Line {
    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<NodeId>, CallError> {
        match self.call(Call::Append(rpc.into()), &option).await? {
            Reply::Append(appended) => Ok(appended.into()),
            _ => Err(nonsense()),
        }
    }

    async fn install_snapshot(
        &mut self,
        rpc: InstallSnapshotRequest<Types>,
        option: RPCOption,
    ) -> Result<InstallSnapshotResponse<NodeId>, CallError<RaftError<InstallSnapshotError>>> {
        match self.call(Call::Snapshot(rpc.into()), &option).await? {
            Reply::Snapshot(Taken::Yes(vote)) => Ok(InstallSnapshotResponse { vote: vote.into() }),
            Reply::Snapshot(Taken::Mismatch { expected, got }) => {
                let mismatch = SnapshotMismatch { expect: expected.into(), got: got.into() };
                let error = openraft::error::RaftError::APIError(mismatch.into());
                Err(RPCError::RemoteError(RemoteError::new(self.target, error)))
            }
            _ => Err(nonsense()),
        }
    }

    async fn vote(&mut self, rpc: VoteRequest<NodeId>, option: RPCOption) -> Result<VoteResponse<NodeId>, CallError> {
        match self.call(Call::Vote(rpc.into()), &option).await? {
            Reply::Vote(given) => Ok(given.into()),
            _ => Err(nonsense()),
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(PAUSE))
    }
}
