//! Brakes for failed logins, per user name and per address.
//!
//! A brake spares the hashing threads, not the attacker: it refuses without hashing while too many failures are
//! recent. It ends by itself after the window, and it is only asked when neither cache nor fast verifier can decide,
//! so a user who logged in lately cannot be locked out by somebody else's guesses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use moka::sync::Cache;

/// Most names and addresses remembered; the least recently used is forgotten first.
const REMEMBERED: u64 = 100_000;

/// Failures within a window, by key.
pub struct Brake {
    limit: u32,
    counts: Cache<String, Arc<Count>>,
}

#[derive(Default)]
struct Count {
    failed: AtomicU32,
    trying: AtomicU32,
}

/// A login under way. Unless it succeeds it counts as failed.
pub struct Attempt {
    count: Arc<Count>,
    succeeded: bool,
}

impl Brake {
    /// `limit` failures within `window` brake a key; 0 never does.
    pub fn new(limit: u32, window: Duration) -> Self {
        let counts =
            Cache::builder().max_capacity(REMEMBERED).time_to_live(window.max(Duration::from_millis(1))).build();
        Self { limit, counts }
    }

    /// Starts an attempt, or refuses it.
    ///
    /// Once a key has failed, attempts under way count too: a burst of parallel guesses gets no further than a row of
    /// them. Before the first failure they do not, so that many devices of one user may come back at once.
    pub fn attempt(&self, key: &str) -> Option<Attempt> {
        let count = self.counts.get_with_by_ref(key, Arc::default);
        let failed = count.failed.load(Ordering::Acquire);
        if self.limit > 0 && failed > 0 && failed + count.trying.load(Ordering::Acquire) >= self.limit {
            return None;
        }
        count.trying.fetch_add(1, Ordering::AcqRel);
        Some(Attempt { count, succeeded: false })
    }

    /// Forgets a key's failures: they were of another password.
    pub fn reset(&self, key: &str) {
        self.counts.invalidate(key);
    }

    #[cfg(test)]
    fn is_braked(&self, key: &str) -> bool {
        self.attempt(key).map(|a| a.cancel()).is_none()
    }
}

impl Attempt {
    /// The password was right.
    pub fn succeed(mut self) {
        self.succeeded = true;
    }

    /// Nothing was decided (the pool was busy): does not count.
    pub fn cancel(mut self) {
        self.succeeded = true;
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.count.trying.fetch_sub(1, Ordering::AcqRel);
        if !self.succeeded {
            self.count.failed.fetch_add(1, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_brake_their_own_key_only() {
        let brake = Brake::new(3, Duration::from_secs(60));
        for _ in 0..3 {
            drop(brake.attempt("mallory").unwrap());
        }
        assert!(brake.is_braked("mallory"));
        assert!(!brake.is_braked("alice"));
    }

    #[test]
    fn successes_do_not_brake() {
        let brake = Brake::new(3, Duration::from_secs(60));
        for _ in 0..10 {
            brake.attempt("alice").unwrap().succeed();
        }
        assert!(!brake.is_braked("alice"));
    }

    #[test]
    fn many_devices_may_try_at_once_until_one_fails() {
        let brake = Brake::new(3, Duration::from_secs(60));
        let mut attempts: Vec<_> = (0..20).map(|_| brake.attempt("alice").unwrap()).collect();
        drop(attempts.pop());
        assert!(brake.attempt("alice").is_none());
        attempts.into_iter().for_each(Attempt::succeed);
        assert!(!brake.is_braked("alice"));
    }

    #[test]
    fn a_brake_ends_with_its_window() {
        let brake = Brake::new(1, Duration::from_millis(20));
        drop(brake.attempt("a").unwrap());
        assert!(brake.is_braked("a"));
        let since = std::time::Instant::now();
        while brake.is_braked("a") {
            assert!(since.elapsed() < Duration::from_secs(10), "the brake never ended");
            std::thread::yield_now();
        }
    }
}
