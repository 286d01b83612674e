//! What is published here for sessions of another node, on its way there: in order, once, and again after a broken connection.
//!
//! The engine has calls for this, through a queue that is a heap: messages overtake each other as soon as two wait. So a node
//! keeps one connection of its own to each other node. It shares the port with the engine's calls ([`door`]), and begins with
//! a proof that both sides know the nodes' credential ([`handshake`]).
//!
//! Every message has a number. The receiver says up to which it has got them; until then the sender keeps them
//! ([`queue`]), and sends them again on the next connection ([`send`], [`receive`]). A queue has a bound: a publisher waits
//! a second for room, then the message is dropped and counted.

pub(crate) mod door;
mod handshake;
mod queue;
mod receive;
mod send;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ciqadamq_core::NodeId;
use rmqtt::grpc::Message;

use queue::Queue;

pub(crate) use receive::Receivers;
pub(crate) use send::keep_sending;

/// The first bytes of such a connection.
const MAGIC: &[u8; 16] = b"CIQADAMQ-LINK-1\n";
/// For the first bytes, and for the proofs.
const GREETING: Duration = Duration::from_secs(5);
/// Longest message. A packet is at most 256 MB by configuration.
const FRAME_MAX: usize = 300 * 1024 * 1024;
/// A message's length (4 bytes) and number (8 bytes) go before it.
const HEAD: usize = 12;

/// The queues to the other nodes.
pub(crate) struct Links(BTreeMap<NodeId, Arc<Queue>>);

impl Links {
    pub(crate) fn new(others: impl Iterator<Item = NodeId>) -> Self {
        Self(others.map(|node| (node, Arc::new(Queue::new()))).collect())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (NodeId, Arc<Queue>)> + use<'_> {
        self.0.iter().map(|(node, queue)| (*node, queue.clone()))
    }

    /// Messages that wait for a node to say that it has them.
    pub(crate) fn waiting(&self) -> BTreeMap<NodeId, usize> {
        self.0.iter().map(|(node, queue)| (*node, queue.len())).collect()
    }

    /// Puts a message into the queue to a node; gives its number. Waits for room, but not for long.
    pub(crate) async fn send(&self, node: NodeId, message: &Message) -> Result<u64, &'static str> {
        let queue = self.0.get(&node).ok_or("the node is not known")?;
        // The type is of no use here; it makes the encoding that of the engine's own calls.
        let bytes = message.encode(0).map_err(|_| "the message cannot be encoded")?;
        if bytes.len() > FRAME_MAX {
            return Err("the message is too long");
        }
        queue.push(bytes).await
    }

    /// Waits until a node has said that it has everything up to `number`, or it was given up.
    pub(crate) async fn arrived(&self, node: NodeId, number: u64) {
        if let Some(queue) = self.0.get(&node) {
            queue.gone(number).await;
        }
    }
}
