//! What other nodes have sent, over the end of the process.

use crate::NodeId;

/// A message of another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// which node sent it
    pub node: NodeId,
    /// which of its processes
    pub boot: u64,
    /// its number on the way here: counts up from 1
    pub number: u64,
    /// the low half of its number in the other node's session store, if that has kept it
    pub origin: Option<u32>,
    /// the other node has sent it before, perhaps: its publisher has sent it again at QoS 2
    pub is_again: bool,
}

/// Remembers which messages of other nodes were handed to the sessions of this node, and are on its disk, if they are for persistent
/// ones. Who has crashed before it could say so gets them again, and so does everybody when the other node has crashed.
pub trait Arrivals: Send + Sync {
    /// Whether a message was.
    fn has(&self, arrival: Arrival) -> bool;

    /// A message is about to be handed to the sessions of this node. The ticket goes with it, in `delay_interval`, so that whoever
    /// stores it can note the arrival with it.
    fn begin(&self, arrival: Arrival) -> u32;

    /// It has been handed to them.
    fn end(&self, ticket: u32);
}
