//! Settings of logins.

use std::path::PathBuf;
use std::time::Duration;

use ciqadamq_core::Secret;

use crate::phc::HashParams;
use crate::silent::Silent;

/// How logins are judged. Built by the launcher, which validates the values.
#[derive(Debug, Clone)]
pub struct AuthConfig {
    /// Parameters of new password hashes.
    pub params: HashParams,
    /// Threads that hash passwords, each with `params.m_cost` KiB of memory of its own. At least 1.
    pub hash_concurrency: usize,
    /// Passwords that may wait for a thread. Further ones are refused at once.
    pub hash_queue: usize,
    /// A password that waited longer than this is not hashed any more.
    pub hash_deadline: Duration,
    /// How long a successful login is remembered. Zero: not at all.
    pub cache_ttl: Duration,
    /// Keys the fast verifier. `None` switches it off: without a secret kept elsewhere, a fast hash on disk would be
    /// an invitation.
    pub pepper: Option<Secret>,
    /// Where the fast verifiers are kept (a sled database of its own; losing it costs one argon2 a user).
    pub verifiers: PathBuf,
    /// Failed logins of one user name within `brake_window` before further ones are refused unhashed.
    pub failures_per_user: u32,
    /// The same for one peer address.
    pub failures_per_address: u32,
    /// How long a failure counts.
    pub brake_window: Duration,
    /// Connections at a time; 0 is no bound.
    pub max_connections: usize,
    /// Sessions of one user, online or not; 0 is no bound. Superusers have none.
    pub sessions_per_user: usize,
    /// How far an online client may be behind with its messages before its connection is closed; zero is no bound.
    pub lag_max: Duration,
    /// Watches the engine's own listener for connections that never finish their CONNECT.
    pub silent: Option<Silent>,
    /// Another authentication plugin is there for names that are not ours. Without one they are refused like wrong
    /// passwords; with one it has the last word.
    pub defer_unknown: bool,
}

impl Default for AuthConfig {
    fn default() -> Self {
        Self {
            params: HashParams::default(),
            hash_concurrency: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            hash_queue: 1024,
            hash_deadline: Duration::from_secs(5),
            cache_ttl: Duration::from_secs(300),
            pepper: None,
            verifiers: PathBuf::from("data/verifiers"),
            failures_per_user: 10,
            failures_per_address: 100,
            brake_window: Duration::from_secs(60),
            max_connections: 0,
            sessions_per_user: 0,
            lag_max: Duration::ZERO,
            silent: None,
            defer_unknown: false,
        }
    }
}
