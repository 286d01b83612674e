//! openraft's types as they are stored and sent.
//!
//! They have shapes of their own here, for two reasons: what is on disks and between nodes does not change with a version
//! of openraft, and openraft's `serde` feature would ask more of `serde` than everybody else here does.

use std::collections::{BTreeMap, BTreeSet};

use ciqadamq_core::NodeId;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, VoteRequest, VoteResponse};
use openraft::{CommittedLeaderId, EntryPayload, LeaderId, LogId, Membership, SnapshotMeta, StoredMembership, Vote};
use serde::{Deserialize, Serialize};

use super::types::{self, Batch, Member, Types};

/// Position of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    term: u64,
    leader: NodeId,
    index: u64,
}

impl From<LogId<NodeId>> for Position {
    fn from(id: LogId<NodeId>) -> Self {
        Self { term: id.leader_id.term, leader: id.leader_id.node_id, index: id.index }
    }
}

impl From<Position> for LogId<NodeId> {
    fn from(at: Position) -> Self {
        Self::new(CommittedLeaderId::new(at.term, at.leader), at.index)
    }
}

/// A vote, and whether a quorum gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ballot {
    term: u64,
    node: NodeId,
    committed: bool,
}

impl From<Vote<NodeId>> for Ballot {
    fn from(vote: Vote<NodeId>) -> Self {
        Self { term: vote.leader_id.term, node: vote.leader_id.node_id, committed: vote.committed }
    }
}

impl From<Ballot> for Vote<NodeId> {
    fn from(ballot: Ballot) -> Self {
        Self { leader_id: LeaderId::new(ballot.term, ballot.node), committed: ballot.committed }
    }
}

/// Who votes (two sets while that changes), and who all members are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Members {
    voters: Vec<BTreeSet<NodeId>>,
    nodes: BTreeMap<NodeId, Member>,
}

impl From<Membership<NodeId, Member>> for Members {
    fn from(membership: Membership<NodeId, Member>) -> Self {
        let nodes = membership.nodes().map(|(id, member)| (*id, member.clone())).collect();
        Self { voters: membership.get_joint_config().clone(), nodes }
    }
}

impl From<Members> for Membership<NodeId, Member> {
    fn from(members: Members) -> Self {
        Self::new(members.voters, members.nodes)
    }
}

/// The members, and the entry that made them so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MembersAt {
    at: Option<Position>,
    members: Members,
}

impl From<StoredMembership<NodeId, Member>> for MembersAt {
    fn from(stored: StoredMembership<NodeId, Member>) -> Self {
        Self { at: stored.log_id().map(Into::into), members: stored.membership().clone().into() }
    }
}

impl From<MembersAt> for StoredMembership<NodeId, Member> {
    fn from(members: MembersAt) -> Self {
        Self::new(members.at.map(Into::into), members.members.into())
    }
}

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    at: Position,
    payload: Payload,
}

/// What is in an entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Payload {
    Blank,
    Batch(Batch),
    Members(Members),
}

impl From<types::Entry> for Entry {
    fn from(entry: types::Entry) -> Self {
        let payload = match entry.payload {
            EntryPayload::Blank => Payload::Blank,
            EntryPayload::Normal(batch) => Payload::Batch(batch),
            EntryPayload::Membership(membership) => Payload::Members(membership.into()),
        };
        Self { at: entry.log_id.into(), payload }
    }
}

impl From<Entry> for types::Entry {
    fn from(entry: Entry) -> Self {
        let payload = match entry.payload {
            Payload::Blank => EntryPayload::Blank,
            Payload::Batch(batch) => EntryPayload::Normal(batch),
            Payload::Members(members) => EntryPayload::Membership(members.into()),
        };
        Self { log_id: entry.at.into(), payload }
    }
}

/// Entries for a follower; none: a heartbeat.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Append {
    vote: Ballot,
    before: Option<Position>,
    pub(crate) entries: Vec<Entry>,
    commit: Option<Position>,
}

impl From<AppendEntriesRequest<Types>> for Append {
    fn from(request: AppendEntriesRequest<Types>) -> Self {
        Self {
            vote: request.vote.into(),
            before: request.prev_log_id.map(Into::into),
            entries: request.entries.into_iter().map(Into::into).collect(),
            commit: request.leader_commit.map(Into::into),
        }
    }
}

impl From<Append> for AppendEntriesRequest<Types> {
    fn from(append: Append) -> Self {
        Self {
            vote: append.vote.into(),
            prev_log_id: append.before.map(Into::into),
            entries: append.entries.into_iter().map(Into::into).collect(),
            leader_commit: append.commit.map(Into::into),
        }
    }
}

/// What a follower did with them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Appended {
    All,
    UpTo(Option<Position>),
    Conflict,
    HigherVote(Ballot),
}

impl From<AppendEntriesResponse<NodeId>> for Appended {
    fn from(response: AppendEntriesResponse<NodeId>) -> Self {
        match response {
            AppendEntriesResponse::Success => Self::All,
            AppendEntriesResponse::PartialSuccess(at) => Self::UpTo(at.map(Into::into)),
            AppendEntriesResponse::Conflict => Self::Conflict,
            AppendEntriesResponse::HigherVote(vote) => Self::HigherVote(vote.into()),
        }
    }
}

impl From<Appended> for AppendEntriesResponse<NodeId> {
    fn from(appended: Appended) -> Self {
        match appended {
            Appended::All => Self::Success,
            Appended::UpTo(at) => Self::PartialSuccess(at.map(Into::into)),
            Appended::Conflict => Self::Conflict,
            Appended::HigherVote(vote) => Self::HigherVote(vote.into()),
        }
    }
}

/// Asks for a vote.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AskVote {
    vote: Ballot,
    last: Option<Position>,
}

impl From<VoteRequest<NodeId>> for AskVote {
    fn from(request: VoteRequest<NodeId>) -> Self {
        Self { vote: request.vote.into(), last: request.last_log_id.map(Into::into) }
    }
}

impl From<AskVote> for VoteRequest<NodeId> {
    fn from(ask: AskVote) -> Self {
        Self { vote: ask.vote.into(), last_log_id: ask.last.map(Into::into) }
    }
}

/// Gives it, or not.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GiveVote {
    vote: Ballot,
    granted: bool,
    last: Option<Position>,
}

impl From<VoteResponse<NodeId>> for GiveVote {
    fn from(response: VoteResponse<NodeId>) -> Self {
        Self { vote: response.vote.into(), granted: response.vote_granted, last: response.last_log_id.map(Into::into) }
    }
}

impl From<GiveVote> for VoteResponse<NodeId> {
    fn from(give: GiveVote) -> Self {
        Self { vote: give.vote.into(), vote_granted: give.granted, last_log_id: give.last.map(Into::into) }
    }
}

/// A piece of a snapshot.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Piece {
    vote: Ballot,
    last: Option<Position>,
    members: MembersAt,
    id: String,
    offset: u64,
    bytes: Vec<u8>,
    done: bool,
}

impl From<InstallSnapshotRequest<Types>> for Piece {
    fn from(request: InstallSnapshotRequest<Types>) -> Self {
        Self {
            vote: request.vote.into(),
            last: request.meta.last_log_id.map(Into::into),
            members: request.meta.last_membership.into(),
            id: request.meta.snapshot_id,
            offset: request.offset,
            bytes: request.data,
            done: request.done,
        }
    }
}

impl From<Piece> for InstallSnapshotRequest<Types> {
    fn from(piece: Piece) -> Self {
        let meta = SnapshotMeta {
            last_log_id: piece.last.map(Into::into),
            last_membership: piece.members.into(),
            snapshot_id: piece.id,
        };
        Self { vote: piece.vote.into(), meta, offset: piece.offset, data: piece.bytes, done: piece.done }
    }
}

/// What became of a piece.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Taken {
    Yes(Ballot),
    /// another piece was expected: id and offset of that one, and of the one that came
    Mismatch {
        expected: (String, u64),
        got: (String, u64),
    },
}
