//! How many Retained Messages a user may leave behind.

/// Knows whose Retained Messages there are.
pub trait RetainedQuota: Send + Sync {
    /// Whether `username` may leave a Retained Message at `topic`: it has fewer than it may, or already has the one there.
    ///
    /// Asked on the way of a message, so it does not wait. Two messages that are asked about at the same moment may both
    /// get the last place.
    fn has_place(&self, username: &str, topic: &str) -> bool;
}
