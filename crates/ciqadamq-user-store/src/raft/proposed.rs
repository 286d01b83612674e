//! Which batches a leader was asked to put into the log, in its present reign.
//!
//! Whoever proposed a batch and got no answer asks for it here: a batch that has not come is not taken any more, so it
//! can be proposed again at once, under another name.

use std::collections::{HashSet, VecDeque};

use super::types::{BatchId, Reign};

/// Batches remembered; those before have been answered long ago.
const REMEMBERED: usize = 8192;

#[derive(Default)]
pub(crate) struct Proposed {
    reign: Option<Reign>,
    known: HashSet<BatchId>,
    order: VecDeque<BatchId>,
}

impl Proposed {
    /// Takes note of a batch; `false` if it must not be put into the log, because it was, or was banned.
    pub(crate) fn admit(&mut self, reign: Reign, id: BatchId) -> bool {
        if self.reign != Some(reign) {
            // Batches of another reign have no effect whatever becomes of them.
            *self = Self { reign: Some(reign), ..Self::default() };
        }
        if !self.known.insert(id) {
            return false;
        }
        self.order.push_back(id);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }

    /// Bans a batch that has not come; `false` if it has.
    pub(crate) fn ban(&mut self, reign: Reign, id: BatchId) -> bool {
        // For the log, a batch that was admitted here and never put into it is banned.
        self.admit(reign, id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Reign = Reign { term: 1, leader: 1 };
    const SECOND: Reign = Reign { term: 2, leader: 1 };

    fn id(count: u64) -> BatchId {
        BatchId { proposer: 9, count }
    }

    #[test]
    fn a_batch_is_taken_once_and_not_after_it_was_asked_for() {
        let mut proposed = Proposed::default();
        assert!(proposed.admit(FIRST, id(1)));
        assert!(!proposed.admit(FIRST, id(1)), "twice");
        assert!(!proposed.ban(FIRST, id(1)), "it has come");
        assert!(proposed.ban(FIRST, id(2)), "it has not");
        assert!(!proposed.admit(FIRST, id(2)), "it comes too late");
        assert!(proposed.admit(SECOND, id(2)));
    }

    #[test]
    fn memory_is_bounded() {
        let mut proposed = Proposed::default();
        for count in 0..20_000 {
            assert!(proposed.admit(FIRST, id(count)));
        }
        assert_eq!((proposed.known.len(), proposed.order.len()), (REMEMBERED, REMEMBERED));
    }
}
