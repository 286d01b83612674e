//! How many Retained Messages a user may leave behind, and how nodes come to have the same ones.

use std::fmt;
use std::pin::Pin;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

/// Knows whose Retained Messages there are.
pub trait RetainedQuota: Send + Sync {
    /// Whether `username` may leave a Retained Message at `topic`: it has fewer than it may, or already has the one there.
    ///
    /// Asked on the way of a message, so it does not wait. Two messages that are asked about at the same moment may both
    /// get the last place.
    fn has_place(&self, username: &str, topic: &str) -> bool;
}

/// A Retained Message as one node tells another of it; or that there is none any more.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetainedCopy {
    /// its Topic Name
    pub topic: String,
    /// when it was published, or cleared, in ms since 1970
    pub created: i64,
    /// when it goes, in ms since 1970; `i64::MAX` if never
    pub expires_at: i64,
    /// in the encoding of the stores; empty if it was cleared
    pub message: Vec<u8>,
}

/// Without what is in it.
impl fmt::Debug for RetainedCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RetainedCopy({} bytes)", self.message.len())
    }
}

/// The Retained Messages of this node, for one that was away, and from there.
#[async_trait]
pub trait RetainedCopies: Send + Sync {
    /// Those whose topics come behind `after` (from the first one on if that is empty), and those that were cleared lately: in order, so
    /// many as take `bytes_max` bytes, but one at least. None if there are no more.
    fn page(&self, after: &str, bytes_max: usize) -> Vec<RetainedCopy>;

    /// Takes one over, unless this node has a newer one or knows that it was cleared later; whether it did. Fails if the disk does.
    async fn take(&self, copy: RetainedCopy) -> Result<bool, String>;

    /// When what this node has of a topic was published or cleared: milliseconds since the epoch. What is published here counts as later
    /// than what is here, whatever the clocks say.
    fn since(&self, topic: &str) -> Option<i64>;

    /// Runs what sets a message that another node has just published: it has no effect if this node has a later one. Of two of the
    /// same moment every node has the same.
    async fn later_wins<'a>(&'a self, set: Pin<Box<dyn Future<Output = ()> + Send + 'a>>);
}
