//! How fast somebody may go on: a bound on messages and bytes a second, with room for a burst.
//!
//! Two virtual clocks, one for messages and one for bytes, each ahead of the real one by what was charged and not yet
//! earned back. Who is ahead by more than the burst has to wait for the difference. Nothing is refused and nothing is
//! lost: a caller that waits stops reading, and the sender's own connection slows it down.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What one connection may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rate {
    /// Messages a second; 0 is no bound.
    pub messages: u32,
    /// Bytes of topic and payload a second; 0 is no bound.
    pub bytes: u64,
}

/// Seconds' worth of the rate that may be sent at once.
const BURST: Duration = Duration::from_secs(2);

static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// One connection's account. Charged and asked by that connection's own task, so its atomics are not contended.
#[derive(Debug, Default)]
pub struct Meter {
    messages_ns: AtomicU64,
    bytes_ns: AtomicU64,
    owed_ns: AtomicU64,
}

impl Meter {
    /// Charges one message of `bytes`; whether the sender has to wait before the next one, see [`Meter::take_owed`].
    pub fn charge(&self, rate: Rate, bytes: usize) -> bool {
        if rate == Rate::default() {
            return false;
        }
        let wait = self.charge_at(rate, bytes, EPOCH.elapsed());
        if let Some(wait) = wait {
            self.owed_ns.store(nanos(wait), Ordering::Relaxed);
        }
        wait.is_some()
    }

    /// How long the sender has to wait after the last charge, told once.
    pub fn take_owed(&self) -> Option<Duration> {
        // A load is all it costs those who owe nothing.
        let owed = self.owed_ns.load(Ordering::Relaxed);
        if owed == 0 {
            return None;
        }
        self.owed_ns.store(0, Ordering::Relaxed);
        Some(Duration::from_nanos(owed))
    }

    fn charge_at(&self, rate: Rate, bytes: usize, now: Duration) -> Option<Duration> {
        let now = nanos(now);
        let second: u64 = 1_000_000_000;
        let per_message = second.checked_div(rate.messages.into()).unwrap_or(0);
        let for_bytes = (bytes as u64).saturating_mul(second).checked_div(rate.bytes).unwrap_or(0);
        let ahead = advance(&self.messages_ns, now, per_message).max(advance(&self.bytes_ns, now, for_bytes));
        let wait = ahead.saturating_sub(nanos(BURST));
        (wait > 0).then(|| Duration::from_nanos(wait))
    }
}

/// Moves a clock on by `cost`, from now at the earliest; how far ahead of now it is then.
fn advance(clock: &AtomicU64, now: u64, cost: u64) -> u64 {
    let next = clock.load(Ordering::Relaxed).max(now).saturating_add(cost);
    clock.store(next, Ordering::Relaxed);
    next - now
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate { messages: 10, bytes: 1000 };

    /// Sends `count` messages as fast as it may, and waits as it is told; how long that took.
    fn send(rate: Rate, count: u32, bytes: usize) -> Duration {
        let meter = Meter::default();
        let mut now = Duration::from_secs(1000);
        let begun = now;
        for _ in 0..count {
            now += meter.charge_at(rate, bytes, now).unwrap_or_default();
        }
        now - begun
    }

    #[test]
    fn a_burst_passes_and_a_flood_goes_at_the_rate() {
        assert_eq!(send(RATE, 20, 1), Duration::ZERO);
        assert_eq!(send(RATE, 120, 1), Duration::from_secs(10));
    }

    #[test]
    fn bytes_count_as_well_as_messages() {
        assert_eq!(send(RATE, 2, 1000), Duration::ZERO);
        assert_eq!(send(RATE, 7, 1000), Duration::from_secs(5));
    }

    #[test]
    fn what_is_not_bounded_never_waits() {
        assert_eq!(send(Rate::default(), 1000, usize::MAX), Duration::ZERO);
        assert!(!Meter::default().charge(Rate::default(), 1));
        assert_eq!(send(Rate { messages: 10, bytes: 0 }, 20, 1 << 40), Duration::ZERO);
    }

    #[test]
    fn the_account_fills_again_while_nothing_is_sent() {
        let meter = Meter::default();
        let start = Duration::from_secs(5);
        for _ in 0..20 {
            assert_eq!(meter.charge_at(RATE, 1, start), None);
        }
        assert_eq!(meter.charge_at(RATE, 1, start), Some(Duration::from_millis(100)));
        for _ in 0..20 {
            assert_eq!(meter.charge_at(RATE, 1, start + Duration::from_secs(3)), None);
        }
    }

    #[test]
    fn a_debt_is_told_once() {
        let meter = Meter::default();
        let rate = Rate { messages: 1, bytes: 0 };
        assert!(!meter.charge(rate, 1) && meter.take_owed().is_none());
        while !meter.charge(rate, 1) {}
        assert!(meter.take_owed().is_some());
        assert!(meter.take_owed().is_none());
    }

    #[test]
    fn a_huge_message_does_not_overflow() {
        let meter = Meter::default();
        let rate = Rate { messages: 1, bytes: 1 };
        assert!(meter.charge_at(rate, usize::MAX, Duration::from_secs(1)).is_some());
        assert!(meter.charge_at(rate, usize::MAX, Duration::from_secs(2)).is_some());
    }
}
