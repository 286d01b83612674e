//! Waiting for conditions.

use std::thread;
use std::time::{Duration, Instant};

/// How long a test waits for what has to come. Long, because test machines are busy; nothing waits it out unless it fails.
pub const WAIT: Duration = Duration::from_secs(15);

/// Asks again until there is an answer.
///
/// # Panics
/// After [`WAIT`], naming `what`.
#[track_caller]
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + WAIT;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "still not after {WAIT:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}
