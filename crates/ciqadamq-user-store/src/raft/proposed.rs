//! Which batches a leader was asked to put into the log, in its present reign.
//!
//! Whoever proposed a batch and got no answer asks for it here: a batch that has not come is not taken any more, so it
//! can be proposed again at once, under another name. What came in an earlier reign, or before this process began, is not
//! remembered: of that nobody is told that it has not come. It may be in the log, and have had its effect.

use std::collections::{HashSet, VecDeque};

use super::types::{BatchId, Reign};

/// Batches remembered; those before have been answered long ago.
const REMEMBERED: usize = 8192;

#[derive(Default)]
pub(crate) struct Proposed {
    /// The last reign that began before this process did.
    before: Option<Reign>,
    /// The one that is remembered.
    reign: Option<Reign>,
    known: HashSet<BatchId>,
    order: VecDeque<BatchId>,
}

impl Proposed {
    /// Nothing has come yet; `before` is the reign at the start of this process.
    pub(crate) fn since(before: Option<Reign>) -> Self {
        Self { before, ..Self::default() }
    }

    /// Takes note of a batch; `false` if it must not be put into the log, because it was, or was banned, or its reign is over.
    pub(crate) fn admit(&mut self, reign: Reign, id: BatchId) -> bool {
        if self.before.is_some_and(|before| reign <= before) {
            return false;
        }
        match self.reign {
            Some(present) if reign < present => return false,
            Some(present) if reign == present => {}
            // Those of earlier reigns have no effect any more if they come now.
            _ => *self = Self { before: self.before, reign: Some(reign), ..Self::default() },
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

    /// Bans a batch that has not come; `false` if it has, or nobody knows.
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
    fn of_a_reign_that_is_over_or_older_than_the_process_nobody_is_told_that_a_batch_has_not_come() {
        let mut proposed = Proposed::since(Some(FIRST));
        assert!(!proposed.ban(FIRST, id(0)), "it may have come before");
        assert!(proposed.admit(SECOND, id(2)));
        assert!(!proposed.ban(FIRST, id(3)) && !proposed.admit(FIRST, id(4)));
        assert!(!proposed.ban(SECOND, id(2)), "the present reign is still remembered");
        assert!(proposed.ban(SECOND, id(5)));
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
