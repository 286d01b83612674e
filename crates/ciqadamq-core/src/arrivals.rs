//! What other nodes have sent, over the end of the process.

use crate::NodeId;

/// A message of another node, by its number on the way here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Arrival {
    /// which node sent it
    pub node: NodeId,
    /// which of its processes
    pub boot: u64,
    /// counts up from 1
    pub number: u64,
}

/// Remembers which messages of other nodes are on this node's disk. Who has crashed before it could say so gets them again.
pub trait Arrivals: Send + Sync {
    /// Whether a message is there.
    fn has(&self, arrival: Arrival) -> bool;

    /// A message is about to be handed to the sessions of this node. The ticket goes with it, in `delay_interval`, so that whoever
    /// stores it can note the arrival with it.
    fn begin(&self, arrival: Arrival) -> u32;

    /// It has been handed to them.
    fn end(&self, ticket: u32);
}
