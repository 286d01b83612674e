//! How often something may be logged.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Lets so many lines through in an interval and counts the rest, so that a flood of refusals fills counters instead
/// of disks.
#[derive(Debug)]
pub struct LogBudget {
    lines: u32,
    interval: Duration,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    since: Instant,
    used: u32,
    suppressed: u64,
}

impl LogBudget {
    /// `lines` lines in each `interval`.
    pub fn new(lines: u32, interval: Duration) -> Self {
        Self { lines, interval, state: Mutex::new(State { since: Instant::now(), used: 0, suppressed: 0 }) }
    }

    /// Whether a line may be written now; if so, how many were left out since the last one.
    pub fn spend(&self) -> Option<u64> {
        let mut state = self.state.lock();
        if state.since.elapsed() >= self.interval {
            state.since = Instant::now();
            state.used = 0;
        }
        if state.used >= self.lines {
            state.suppressed += 1;
            return None;
        }
        state.used += 1;
        Some(std::mem::take(&mut state.suppressed))
    }
}

impl Default for LogBudget {
    /// Twenty lines a second.
    fn default() -> Self {
        Self::new(20, Duration::from_secs(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_out_is_counted_in_the_next_line() {
        let budget = LogBudget::new(2, Duration::from_millis(30));
        assert_eq!((budget.spend(), budget.spend()), (Some(0), Some(0)));
        assert_eq!((budget.spend(), budget.spend()), (None, None));
        let next = loop {
            if let Some(suppressed) = budget.spend() {
                break suppressed;
            }
            std::thread::yield_now();
        };
        assert!(next >= 2);
    }
}
