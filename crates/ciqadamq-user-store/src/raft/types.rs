//! Entries, members, and what nodes say to each other.
//!
//! Everything here is stored or sent, in postcard: fields and variants are only ever added at the end, and a change of
//! meaning is a new [`PROTOCOL`].

use ciqadamq_core::{Command, NodeId, Rejection, Revision, ServiceError};
use openraft::{LogId, StoredMembership, Vote};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::wire;

/// Version of the calls between nodes. A node refuses what it does not speak.
const PROTOCOL: u8 = 1;

openraft::declare_raft_types!(
    /// What openraft is told of our types.
    pub(crate) Types:
        D = Batch,
        R = Outcome,
        NodeId = NodeId,
        Node = Member,
        SnapshotData = std::io::Cursor<Vec<u8>>,
);

pub(crate) type Raft = openraft::Raft<Types>;
pub(crate) type Entry = openraft::Entry<Types>;
pub(crate) type RaftError<E = openraft::error::Infallible> = openraft::error::RaftError<NodeId, E>;
pub(crate) type Metrics = openraft::RaftMetrics<NodeId, Member>;

/// A data directory: made once, never the same again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub(crate) struct Incarnation(pub(crate) u64);

/// A node in the membership.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Member {
    /// its API, when it was taken in
    pub(crate) url: String,
    /// its data directory
    pub(crate) incarnation: Incarnation,
}

/// Who leads: entries are ordered by this first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Reign {
    pub(crate) term: u64,
    pub(crate) leader: NodeId,
}

impl Reign {
    pub(crate) fn of(id: &LogId<NodeId>) -> Self {
        Self { term: id.leader_id.term, leader: id.leader_id.node_id }
    }

    pub(crate) fn by(vote: &Vote<NodeId>) -> Self {
        Self { term: vote.leader_id().term, leader: vote.leader_id().node_id }
    }
}

/// Which batch, among all that were ever proposed: the process that proposed it, and its count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct BatchId {
    pub(crate) proposer: u64,
    pub(crate) count: u64,
}

/// Changes that were proposed together, in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Batch {
    pub(crate) id: BatchId,
    /// it has an effect in this reign only
    pub(crate) reign: Reign,
    pub(crate) commands: Vec<Command>,
}

/// What an entry did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// it held no changes
    Nothing,
    /// it came into the log in another reign than it was meant for, and did nothing
    Superseded,
    /// one result for each change
    Done(Vec<Result<Revision, Rejection>>),
}

/// How far the log was applied to the users, kept with them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Applied {
    pub(crate) last: Option<LogId<NodeId>>,
    pub(crate) membership: StoredMembership<NodeId, Member>,
}

impl Applied {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, String> {
        encode(&(self.last.map(wire::Position::from), wire::MembersAt::from(self.membership.clone())))
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let (last, membership) = decode::<(Option<wire::Position>, wire::MembersAt)>(bytes)
            .map_err(|e| format!("the state of the replicated log {e}"))?;
        Ok(Self { last: last.map(Into::into), membership: membership.into() })
    }
}

/// Who speaks, and to whom. A call for another incarnation is not for this node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Envelope {
    pub(crate) from: (NodeId, Incarnation),
    /// `None`: whoever answers at this address
    pub(crate) to: Option<(NodeId, Incarnation)>,
    pub(crate) call: Call,
}

/// What a node asks of another.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    Append(wire::Append),
    Vote(wire::AskVote),
    Snapshot(wire::Piece),
    /// who are you
    Hello,
    /// the same from a node that is back: call it, so that you know that it can be reached
    Announce,
    /// put this into the log; you are the leader
    Propose(Batch),
    /// has this batch reached you in this reign; if not, do not take it any more
    Seen(Reign, BatchId),
    /// tell me when you have applied this entry
    Reached(u64),
    /// up to where must I have applied to know what was acknowledged before this call
    ReadIndex,
    AddMember(NodeId, String),
    RemoveMember(NodeId),
}

/// The answers, in the order of the calls.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Append(wire::Appended),
    Vote(wire::GiveVote),
    Snapshot(wire::Taken),
    Hello(Hello),
    /// the entry's index, and what it did
    Propose(Result<(u64, Outcome), ProposeError>),
    /// whether it has
    Seen(bool),
    Reached(Reached),
    ReadIndex(Result<u64, ReadIndexError>),
    Members(Result<(), ChangeError>),
}

/// What a node says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) node: NodeId,
    pub(crate) incarnation: Incarnation,
    /// members of the cluster it belongs to; empty: none yet
    pub(crate) members: Vec<(NodeId, Incarnation)>,
}

/// Why an entry was not, or perhaps not, put into the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ProposeError {
    /// not the leader of that reign; nothing was proposed
    NotLeader,
    /// no quorum answered; nothing was proposed
    NoQuorum,
    /// the disk is full or the like; nothing was proposed
    CannotWrite(String),
    /// it is in the log, and this node is no longer sure to be the leader
    Unknown,
}

/// Whether an entry has been applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reached {
    Yes,
    /// not within the time
    NotYet,
    /// this node lets nobody in yet, so nobody need wait for it
    NotServing,
}

/// Why a node was not told up to where to apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ReadIndexError {
    NotLeader,
    NoQuorum,
    /// it is no member, with this incarnation
    NotMember,
}

/// Why the members were not changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ChangeError {
    Refused(String),
    Unavailable(String),
}

/// As bytes, with the protocol's version in front.
pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, String> {
    postcard::to_extend(value, vec![PROTOCOL]).map_err(|e| e.to_string())
}

/// From bytes.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    match bytes.split_first() {
        Some((&PROTOCOL, rest)) => match postcard::take_from_bytes(rest) {
            Ok((value, [])) => Ok(value),
            Ok(_) => Err("bytes are left over".into()),
            Err(e) => Err(e.to_string()),
        },
        Some((other, _)) => {
            Err(format!("is in version {other}, this node speaks {PROTOCOL}; run one version on all nodes"))
        }
        None => Err("is empty".into()),
    }
}

/// A call or an answer that cannot be encoded is a defect; it is answered, not panicked about.
pub(crate) fn encode_reply(reply: &Reply) -> Result<Vec<u8>, ServiceError> {
    encode(reply).map_err(|e| ServiceError::Unavailable(format!("the answer cannot be encoded: {e}")))
}
