//! Messages that are being routed at this moment.
//!
//! The engine looks up a session's channel and puts the message into it, in two steps. Who closes the channel in between must wait
//! for those that have taken the first, or their messages end where nobody looks any more.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

/// Between two looks at those that are waited for.
const LOOK: Duration = Duration::from_millis(1);

/// Counts messages on their way, in rounds: a round ends when somebody waits.
#[derive(Default)]
pub(crate) struct Passing {
    round: RwLock<Round>,
    /// Earlier rounds with messages that are still on their way. Bounded by those.
    earlier: Mutex<Vec<Weak<()>>>,
}

/// One message on its way, until dropped.
pub(crate) type Round = Arc<()>;

impl Passing {
    /// A message sets out.
    pub(crate) fn begin(&self) -> Round {
        self.round.read().clone()
    }

    /// Waits until all that set out before now have arrived; `false` if the limit came first.
    pub(crate) async fn all_before(&self, limit: Duration) -> bool {
        let before = {
            let mut earlier = self.earlier.lock();
            let ended = std::mem::take(&mut *self.round.write());
            earlier.retain(|round| round.strong_count() > 0);
            earlier.push(Arc::downgrade(&ended));
            earlier.clone()
        };
        let since = Instant::now();
        while before.iter().any(|round| round.strong_count() > 0) {
            if since.elapsed() >= limit {
                return false;
            }
            tokio::time::sleep(LOOK).await;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn those_before_are_waited_for_and_those_behind_are_not() {
        let passing = Passing::default();
        assert!(passing.all_before(Duration::ZERO).await, "nobody is on the way");
        let first = passing.begin();
        assert!(!passing.all_before(SHORT).await);
        let second = passing.begin();
        // Whoever waits later waits for both.
        assert!(!passing.all_before(SHORT).await);
        drop(second);
        assert!(!passing.all_before(SHORT).await);
        drop(first);
        assert!(passing.all_before(Duration::ZERO).await);
        assert_eq!(passing.earlier.lock().len(), 1, "rounds without messages are kept");
    }
}
