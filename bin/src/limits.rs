//! The limit of open files: every connection is one.

#[cfg(unix)]
use tracing::{info, warn};

/// What a broker with many clients wants, where the system has no smaller limit.
#[cfg(unix)]
const WANTED: u64 = 1_048_576;
/// Below this a few hundred clients exhaust it.
#[cfg(unix)]
const TIGHT: u64 = 4096;

/// Raises the soft limit as far as the system lets a process do by itself.
#[cfg(unix)]
pub fn raise_open_files() {
    match rlimit::increase_nofile_limit(WANTED) {
        Ok(limit) if limit < TIGHT => {
            warn!(limit, "few open files allowed, so few connections; raise the hard limit (ulimit -Hn, LimitNOFILE)");
        }
        Ok(limit) => info!(limit, "open files"),
        Err(error) => warn!(%error, "limit of open files cannot be read or raised"),
    }
}

/// Other systems have no such limit of their own.
#[cfg(not(unix))]
pub fn raise_open_files() {}
