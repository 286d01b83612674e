//! What other nodes ask of this one.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ciqadamq_core::{InternalService, Reachability, ServiceError};
use openraft::error::{CheckIsLeaderError, ClientWriteError, InstallSnapshotError};

use super::members;
use super::node::{Node, is_leader};
use super::proposer::VISIBLE_WAIT;
use super::types::{
    Batch, Call, Envelope, Hello, Incarnation, Outcome, ProposeError, RaftError, Reached, ReadIndexError, Reign, Reply,
    decode, encode_reply,
};
use super::wire::Taken;

/// How long a node that is back is called.
const CALL_BACK: Duration = Duration::from_millis(500);

/// The service `users`.
pub(crate) struct UsersService {
    pub(crate) node: Arc<Node>,
}

#[async_trait]
impl InternalService for UsersService {
    async fn call(&self, body: Vec<u8>) -> Result<Vec<u8>, ServiceError> {
        let Envelope { from, to, call } =
            decode(&body).map_err(|e| ServiceError::BadRequest(format!("the call {e}")))?;
        drop(body);
        let node = &self.node;
        let me = (node.id(), node.incarnation());
        if let Some(to) = to.filter(|to| *to != me) {
            return Err(ServiceError::BadRequest(format!(
                "this is node {} with another data directory than node {} had when it became a member; take it out and \
                 in again (ciqadamq cluster remove, ciqadamq cluster add)",
                me.0, to.0
            )));
        }
        let raft = || node.raft().map_err(ServiceError::Unavailable);
        let reply = match call {
            Call::Append(rpc) => {
                if !rpc.entries.is_empty() {
                    refuse_without_space(node)?;
                }
                Reply::Append(raft()?.append_entries(rpc.into()).await.map_err(broken)?.into())
            }
            Call::Vote(rpc) => Reply::Vote(raft()?.vote(rpc.into()).await.map_err(broken)?.into()),
            Call::Snapshot(rpc) => {
                refuse_without_space(node)?;
                Reply::Snapshot(match raft()?.install_snapshot(rpc.into()).await {
                    Ok(taken) => Taken::Yes(taken.vote.into()),
                    Err(RaftError::APIError(InstallSnapshotError::SnapshotMismatch(mismatch))) => Taken::Mismatch {
                        expected: (mismatch.expect.id, mismatch.expect.offset),
                        got: (mismatch.got.id, mismatch.got.offset),
                    },
                    Err(RaftError::Fatal(error)) => return Err(broken(error)),
                })
            }
            Call::Hello => Reply::Hello(hello(node)),
            Call::Announce => {
                if matches!(node.network.peers.reachability(from.0), Reachability::Unreachable { .. }) {
                    // Its outcome is noted where calls are made.
                    let _ = node.network.call(from.0, Some(from.1), Call::Hello, CALL_BACK).await;
                }
                Reply::Hello(hello(node))
            }
            Call::Propose(batch) => Reply::Propose(propose(node, batch).await),
            Call::Seen(reign, id) => Reply::Seen(!node.proposed.lock().ban(reign, id)),
            Call::Reached(index) => Reply::Reached(reached(node, index).await),
            Call::ReadIndex => Reply::ReadIndex(read_index(node, from).await),
            Call::AddMember(id, url) => Reply::Members(members::add_as_leader(node, id, &url).await),
            Call::RemoveMember(id) => Reply::Members(members::remove_as_leader(node, id).await),
        };
        encode_reply(&reply)
    }
}

/// What the others agree on does not come here: a user deleted meanwhile must not be let in.
fn refuse_without_space(node: &Node) -> Result<(), ServiceError> {
    let Some(reason) = node.space_problem() else { return Ok(()) };
    node.miss(format!("changes of users are not taken: {reason}"));
    Err(ServiceError::Unavailable(reason))
}

/// The raft here has stopped; the other one tries again later.
fn broken(error: impl std::fmt::Display) -> ServiceError {
    ServiceError::Unavailable(format!("the replicated log has stopped: {error}"))
}

pub(crate) fn hello(node: &Node) -> Hello {
    let members = node.members().into_iter().map(|(id, member)| (id, member.incarnation)).collect();
    Hello { node: node.id(), incarnation: node.incarnation(), members }
}

/// Puts a batch into the log, as the leader of its reign, once a quorum has confirmed that it still is.
///
/// Asking the quorum first means that without one nothing is begun: an entry that only this node has might come true
/// much later, when the caller has long been told that it was not made.
pub(crate) async fn propose(node: &Node, batch: Batch) -> Result<(u64, Outcome), ProposeError> {
    let raft = node.raft().map_err(|_| ProposeError::NotLeader)?;
    {
        let metrics = raft.metrics();
        let metrics = metrics.borrow();
        if !is_leader(&metrics) || Reign::by(&metrics.vote) != batch.reign {
            return Err(ProposeError::NotLeader);
        }
    }
    if let Some(reason) = node.space_problem().or_else(|| node.store_problem()) {
        return Err(ProposeError::CannotWrite(reason));
    }
    raft.get_read_log_id().await.map_err(|error| match error {
        RaftError::APIError(CheckIsLeaderError::ForwardToLeader(_)) => ProposeError::NotLeader,
        RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(_)) => ProposeError::NoQuorum,
        RaftError::Fatal(_) => ProposeError::NotLeader,
    })?;
    if !node.proposed.lock().admit(batch.reign, batch.id) {
        // It came twice, or too late.
        return Err(ProposeError::Unknown);
    }
    match raft.client_write(batch).await {
        Ok(written) => Ok((written.log_id.index, written.data)),
        // It may have been in the log before the leader changed.
        Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)) | RaftError::Fatal(_)) => {
            Err(ProposeError::Unknown)
        }
        Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(_))) => Err(ProposeError::Unknown),
    }
}

async fn reached(node: &Node, index: u64) -> Reached {
    if !node.has_caught_up() {
        return Reached::NotServing;
    }
    let mut applied = node.progress.applied();
    let waited =
        tokio::time::timeout(VISIBLE_WAIT, applied.wait_for(|last| last.is_some_and(|last| last.index >= index)));
    match waited.await {
        Ok(Ok(_)) => Reached::Yes,
        _ => Reached::NotYet,
    }
}

/// Up to where a member must have applied to know all that was acknowledged before it asked.
pub(crate) async fn read_index(node: &Node, from: (u64, Incarnation)) -> Result<u64, ReadIndexError> {
    let raft = node.raft().map_err(|_| ReadIndexError::NotLeader)?;
    let (read, _) = raft.get_read_log_id().await.map_err(|error| match error {
        RaftError::APIError(CheckIsLeaderError::QuorumNotEnough(_)) => ReadIndexError::NoQuorum,
        RaftError::APIError(CheckIsLeaderError::ForwardToLeader(_)) | RaftError::Fatal(_) => ReadIndexError::NotLeader,
    })?;
    // Only now: a quorum agrees that this is the leader, so it knows the members.
    if node.member(from.0).is_none_or(|member| member.incarnation != from.1) {
        return Err(ReadIndexError::NotMember);
    }
    Ok(read.map_or(0, |id| id.index))
}
