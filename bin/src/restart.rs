//! A new process in the place of this one, where nothing less helps: in a cluster, since the routing plugin keeps its part
//! of the cluster in memory, can neither be stopped nor started again, and ends the process itself when it fails.
//!
//! The process replaces itself (`exec`): the number stays the same, so whoever supervises it notices nothing, and there is
//! no second process to be forgotten. A supervisor is still the last resort: after [`MAX`] restarts within [`WINDOW`] the
//! process ends.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tracing::{error, warn};

/// When the processes before this one were replaced, in seconds since 1970.
const VARIABLE: &str = "CIQADAMQ_RESTARTS";
/// More are not made within [`WINDOW`].
const MAX: usize = 20;
const WINDOW: Duration = Duration::from_secs(600);
/// The pause before one, doubled with each that went before.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

static ARMED: AtomicBool = AtomicBool::new(false);
static SELF: OnceLock<(PathBuf, Vec<OsString>)> = OnceLock::new();

/// From now on the process is replaced when the engine ends it, until [`disarm`].
pub fn arm() {
    let Ok(program) = std::env::current_exe() else {
        warn!("this program cannot be found; the process is not restarted when the engine ends it");
        return;
    };
    if SELF.set((program, std::env::args_os().skip(1).collect())).is_ok() {
        at_exit();
    }
    ARMED.store(true, Ordering::SeqCst);
}

/// An end is an end again.
pub fn disarm() {
    ARMED.store(false, Ordering::SeqCst);
}

/// Replaces the process. Comes back only if that is not possible or was done too often.
pub fn now(reason: &str) -> anyhow::Error {
    disarm();
    let Some((program, args)) = SELF.get() else { return anyhow::anyhow!("this program cannot be found") };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut before = recent(&std::env::var(VARIABLE).unwrap_or_default(), now);
    if before.len() >= MAX {
        error!(restarts = before.len(), reason, "restarted too often, giving up");
        return anyhow::anyhow!("restarted {MAX} times within {WINDOW:?}, giving up: {reason}");
    }
    let pause = PAUSE.saturating_mul(1 << before.len().min(16)).min(PAUSE_MAX);
    warn!(reason, restarts = before.len() + 1, pause_ms = pause.as_millis(), "restarting");
    std::thread::sleep(pause);
    before.push(now.as_secs());
    let list: Vec<String> = before.iter().map(u64::to_string).collect();
    let mut command = Command::new(program);
    command.args(args).env(VARIABLE, list.join(","));
    replace(&mut command)
}

/// Those of a list that are within the window.
fn recent(list: &str, now: Duration) -> Vec<u64> {
    let within = |at: &u64| now.as_secs().saturating_sub(*at) < WINDOW.as_secs();
    list.split(',').filter_map(|at| at.parse().ok()).filter(within).collect()
}

#[cfg(unix)]
fn replace(command: &mut Command) -> anyhow::Error {
    use std::os::unix::process::CommandExt as _;
    anyhow::Error::new(command.exec()).context("the process cannot be replaced")
}

#[cfg(not(unix))]
fn replace(command: &mut Command) -> anyhow::Error {
    match command.spawn() {
        Ok(_) => std::process::exit(0),
        Err(error) => anyhow::Error::new(error).context("the process cannot be replaced"),
    }
}

/// The routing plugin calls `exit` on a thread of its own when its part of the cluster fails.
#[cfg(unix)]
fn at_exit() {
    extern "C" fn exiting() {
        if ARMED.load(Ordering::SeqCst) {
            let error = now("the routing plugin ended the process");
            error!(error = format!("{error:#}"), "not restarted");
        }
    }
    // SAFETY: `exiting` has the signature that is asked for and does not unwind: it ends in `exec` or returns.
    if unsafe { libc::atexit(exiting) } != 0 {
        warn!("no room for an exit handler; the process is not restarted when the engine ends it");
    }
}

/// Elsewhere that is left to whoever supervises the process.
#[cfg(not(unix))]
fn at_exit() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_that_are_long_past_do_not_count() {
        let now = Duration::from_secs(10_000);
        assert_eq!(recent("1,9300,9500,10000,garbage,", now), [9500, 10_000]);
        assert_eq!(recent("", now), [] as [u64; 0]);
    }
}
