//! What nodes say to each other about routing: calls of the internal service [`SERVICE`].

use ciqadamq_core::{Lane, MoveTag, NodeId, RetainedCopy, SessionInfo, SessionQuery};
use serde::{Deserialize, Serialize};

use crate::unrouted::Subscription;

/// The name of the service.
pub const SERVICE: &str = "routes";

/// A question to another node. New ones stand at the end: nodes of different builds speak to each other during an upgrade.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Ask {
    /// Are you alive, and how far? Says who asks and whom the asker holds for dead.
    State {
        /// who asks
        from: NodeId,
        /// whom it holds for dead
        dead: Vec<NodeId>,
    },
    /// Which subscriptions of your sessions have no route?
    Unrouted,
    /// May `candidate` start the cluster?
    Promise {
        /// who wants to
        candidate: NodeId,
        /// which process of it
        boot: u64,
    },
    /// Whose session has this client id on your node?
    Owner {
        /// the client id
        client_id: String,
    },
    /// Somebody who was refused holds your session's place in the routing cluster: take it back.
    Reclaim {
        /// the client id
        client_id: String,
    },
    /// Sessions of your node.
    Sessions(SessionQuery),
    /// End this session if it is yours.
    End {
        /// the client id
        client_id: String,
    },
    /// Which sessions came to you from this node, lately?
    Heirs {
        /// where they were before
        of: NodeId,
    },
    /// Is the session that left `from` under this tag on your disk?
    Taken {
        /// where it was
        from: NodeId,
        /// what it is called
        tag: MoveTag,
    },
    /// Your session, which left under this tag, is on my disk.
    Settled {
        /// its client id
        client_id: String,
        /// what it is called
        tag: MoveTag,
    },
    /// Which messages do you retain, or have cleared lately, behind this topic?
    Retained {
        /// the last one of the page before; empty: from the first one on
        after: String,
    },
    /// Do you have a session with this client id, be it only on your disk?
    Keeps {
        /// the client id
        client_id: String,
    },
    /// Your session, which left under this tag, is not taken here.
    Stays {
        /// its client id
        client_id: String,
        /// what it is called
        tag: MoveTag,
    },
}

impl Ask {
    /// How it travels.
    pub fn lane(&self) -> Lane {
        match self {
            Self::State { .. } | Self::Promise { .. } => Lane::Vital,
            _ => Lane::Common,
        }
    }
}

/// The answer. As above.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Answer {
    /// to [`Ask::State`]
    State(NodeState),
    /// to [`Ask::Unrouted`]
    Unrouted(Vec<Subscription>),
    /// to [`Ask::Promise`]
    Promised(bool),
    /// to [`Ask::Owner`]
    Owner(OwnerHere),
    /// to [`Ask::Reclaim`], [`Ask::Settled`] and [`Ask::Stays`]
    Done,
    /// to [`Ask::Sessions`]
    Sessions(Vec<SessionInfo>),
    /// to [`Ask::End`]: whether there was one
    Ended(bool),
    /// to [`Ask::Heirs`]: their client ids
    Heirs(Vec<String>),
    /// to [`Ask::Taken`]
    Taken(bool),
    /// to [`Ask::Retained`]: a page; empty behind the last one
    Retained(Vec<RetainedCopy>),
    /// to [`Ask::Keeps`]
    Keeps(bool),
}

/// Whose session it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OwnerHere {
    /// There is none, or its user lost the right to it.
    Nobody,
    /// This person's. Who is no user of ours is named by what no userid can be.
    Person(String),
    /// There is none any more; this node's should have it.
    AskNode(NodeId),
}

/// What a node says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    /// which
    pub node: NodeId,
    /// tells this process from an earlier one of the same node; later ones are greater
    pub boot: u64,
    /// how far it is
    pub phase: Phase,
    /// who leads the routing cluster, as far as it knows; 0 = nobody
    pub leader: NodeId,
    /// which list of subscriptions without a route it has; 0 = it misses none
    pub unrouted: u64,
    /// it has sessions on its disk that are not in use
    pub strays: bool,
    /// its sessions are all there, and it lets clients in
    pub serves: bool,
    /// It is no member of the user directory: not taken in yet, taken out, or with an empty disk. Nothing comes back with it.
    pub out: bool,
}

/// How far a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// It looks for a cluster and holds no part of one.
    Waiting,
    /// It is about to lead or to join.
    Starting,
    /// It takes part.
    Running,
    /// It is about to end.
    Leaving,
    /// It is no member of the user directory yet, or has not caught up with it, and holds no part of a cluster.
    Outside,
}
