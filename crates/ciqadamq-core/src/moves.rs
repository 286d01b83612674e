//! Sessions on their way from the disk of one node to that of another.
//!
//! Neither may forget such a session before the other one has it for certain. So the node that gives it away keeps it, and does not
//! use it, until the other one has said that it is on its disk; and asks, where it does not hear that.

use async_trait::async_trait;

use crate::NodeId;

/// What both nodes call a session on its way.
pub type MoveTag = u64;

/// What this node says to others about sessions on their way.
#[async_trait]
pub trait Moves: Send + Sync {
    /// Whether the session that left `from` is on this node's disk, or was. If not, it will not be.
    async fn has_taken(&self, from: NodeId, tag: MoveTag) -> bool;

    /// The session that left this node is on the other one's disk.
    fn settled(&self, client_id: &str, tag: MoveTag);

    /// The session that left this node has not been taken by the other one, and will not be.
    fn stays(&self, client_id: &str, tag: MoveTag);

    /// Whether this node has sessions on its disk that are not in use. Asked often.
    fn has_strays(&self) -> bool;

    /// Whether a session with this client id is on this node's disk, in use or not. Known before the sessions are restored.
    fn keeps(&self, client_id: &str) -> bool;
}

/// The same, asked and said by this node.
#[async_trait]
pub trait OtherMoves: Send + Sync {
    /// Asks `node` whether it has taken a session of this node; `None` if it gives no answer.
    async fn has_taken(&self, node: NodeId, tag: MoveTag) -> Option<bool>;

    /// Tells `node` that its session is on this node's disk. Where that is not heard, it will ask.
    async fn settled(&self, node: NodeId, client_id: &str, tag: MoveTag);

    /// Tells `node` that its session is not taken: the login has failed. Where that is not heard, it will ask.
    async fn stays(&self, node: NodeId, client_id: &str, tag: MoveTag);

    /// Whether another node that is alive has a session with this client id; `None` if it gives no answer.
    async fn has_session(&self, client_id: &str) -> Option<bool>;

    /// Whether another node that is alive has the place of a client id: with its session, or for a login that may have come to
    /// nothing. Nobody is asked.
    fn has_place(&self, client_id: &str) -> bool;
}
