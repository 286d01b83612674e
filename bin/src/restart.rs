//! A new process in the place of this one, where nothing less helps: in a cluster, since the routing plugin keeps its part
//! of the cluster in memory, can neither be stopped nor started again, and ends the process itself when it fails.
//!
//! The process replaces itself (`exec`): the number stays the same, so whoever supervises it notices nothing, and there is
//! no second process to be forgotten. A supervisor is still the last resort: after [`MAX`] restarts within [`WINDOW`] the
//! process ends.
//!
//! Whoever asks the process to end is heard until it is replaced: [`off`] is final, and cuts the pause short.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tracing::{error, info, warn};

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
static OFF: Switch = Switch::new();

/// Why the process was not replaced.
#[derive(Debug)]
pub enum Stays {
    /// Meanwhile it was asked to end.
    AskedToEnd,
    /// That is not possible, or was done too often.
    Failed(anyhow::Error),
}

/// From now on the process is replaced when the engine ends it, until [`off`].
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

/// From now on an end is an end, for good.
pub fn off() {
    ARMED.store(false, Ordering::SeqCst);
    OFF.turn();
}

/// Replaces the process after a pause. Comes back only if it does not; then the process is to end.
pub fn now(reason: &str) -> Stays {
    let stays = try_now(reason);
    // On its way out the process must not come here again.
    off();
    stays
}

fn try_now(reason: &str) -> Stays {
    if OFF.is_turned_within(Duration::ZERO) {
        info!(reason, "asked to end: not restarted");
        return Stays::AskedToEnd;
    }
    let Some((program, args)) = SELF.get() else {
        return Stays::Failed(anyhow::anyhow!("this program cannot be found: {reason}"));
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut before = recent(&std::env::var(VARIABLE).unwrap_or_default(), now);
    if before.len() >= MAX {
        error!(restarts = before.len(), reason, "restarted too often, giving up");
        return Stays::Failed(anyhow::anyhow!("restarted {MAX} times within {WINDOW:?}, giving up: {reason}"));
    }
    let pause = PAUSE.saturating_mul(1 << before.len().min(16)).min(PAUSE_MAX);
    warn!(reason, restarts = before.len() + 1, pause_ms = pause.as_millis(), "restarting");
    if OFF.is_turned_within(pause) {
        info!(reason, "asked to end: not restarted");
        return Stays::AskedToEnd;
    }
    before.push(now.as_secs());
    let list: Vec<String> = before.iter().map(u64::to_string).collect();
    let mut command = Command::new(program);
    command.args(args).env(VARIABLE, list.join(","));
    Stays::Failed(replace(&mut command))
}

/// Can be turned once, and waited for.
struct Switch {
    turned: Mutex<bool>,
    changed: Condvar,
}

impl Switch {
    const fn new() -> Self {
        Self { turned: Mutex::new(false), changed: Condvar::new() }
    }

    fn turn(&self) {
        *self.lock() = true;
        self.changed.notify_all();
    }

    /// Waits for it, as long as `patience` lasts.
    fn is_turned_within(&self, patience: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), patience, |turned| !*turned);
        let (turned, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *turned
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.turned.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        if !ARMED.load(Ordering::SeqCst) {
            return;
        }
        // What is kept for this thread alone is gone by now, and logging needs it.
        let replacing = std::thread::spawn(|| {
            if let Stays::Failed(error) = now("the routing plugin ended the process") {
                error!(error = format!("{error:#}"), "not restarted");
            }
        });
        // It has said what there was to say.
        drop(replacing.join());
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

    /// In a process of its own: the test starts itself, with a variable that tells which one it is.
    #[cfg(unix)]
    #[test]
    fn an_exit_elsewhere_in_the_process_is_a_new_process() {
        const CHILD: &str = "CIQADAMQ_TEST_RESTART";
        if std::env::var_os(CHILD).is_some() {
            if std::env::var_os(VARIABLE).is_some() {
                println!("started anew");
                return;
            }
            tracing_subscriber::fmt().init();
            arm();
            let plugin = std::thread::spawn(|| {
                error!("raft failed");
                std::process::exit(255);
            });
            drop(plugin.join());
        }
        let name = "restart::tests::an_exit_elsewhere_in_the_process_is_a_new_process";
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").env_remove(VARIABLE);
        let output = child.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("started anew"), "{output:?}");
    }

    #[test]
    fn who_asks_for_the_end_cuts_the_pause_short_and_stays_heard() {
        static SWITCH: Switch = Switch::new();
        assert!(!SWITCH.is_turned_within(Duration::from_millis(1)));
        let pause = std::thread::spawn(|| SWITCH.is_turned_within(Duration::from_secs(3600)));
        SWITCH.turn();
        assert!(pause.join().unwrap_or(false));
        assert!(SWITCH.is_turned_within(Duration::ZERO), "also if nobody waited when it was turned");
    }
}
