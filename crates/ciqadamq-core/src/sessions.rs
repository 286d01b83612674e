//! Sessions and passwords as the REST API needs them.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{PasswordHash, Secret};

/// Hashing did not happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HashError {
    /// The queue of the hashing pool is full, or the deadline passed in it.
    #[error("too many passwords are waiting to be hashed")]
    Busy,
    /// The hash function refused (out of memory).
    #[error("the password could not be hashed")]
    Failed,
}

/// Makes password hashes, on a bounded pool off the network threads.
#[async_trait]
pub trait PasswordHashing: Send + Sync {
    /// Hashes a password with the configured parameters into a PHC string.
    async fn hash(&self, password: Secret) -> Result<PasswordHash, HashError>;

    /// Whether `phc` is a hash this broker can verify: known algorithm, parameters within bounds.
    fn check_phc(&self, phc: &str) -> Result<(), String>;
}

/// Which sessions to list.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SessionQuery {
    /// only sessions of this login name
    pub username: Option<String>,
    /// only sessions of this person
    pub userid: Option<String>,
    /// only client ids that sort after this one
    pub after: Option<String>,
    /// at most so many
    pub limit: usize,
}

/// One session, online or waiting for its client.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct SessionInfo {
    /// client id
    pub clientid: String,
    /// login name
    pub username: String,
    /// person; `null` when the login was not made by this broker's user directory
    pub userid: Option<String>,
    /// node that holds it
    pub node: u64,
    /// a network connection is open
    pub online: bool,
    /// peer's `address:port`
    pub address: Option<String>,
    /// 3 (MQTT 3.1), 4 (3.1.1) or 5
    pub protocol: u8,
    /// Unix time in milliseconds
    pub connected_at: i64,
    /// Unix time in milliseconds, for an offline session
    pub disconnected_at: Option<i64>,
    /// number of subscriptions
    pub subscriptions: usize,
    /// messages waiting
    pub queued: usize,
    /// messages sent and not acknowledged
    pub inflight: usize,
}

/// Knows how much there is for sessions whose messages the engine does not hold.
pub trait Waiting: Send + Sync {
    /// Messages that wait for the session of a client id, and messages that it was sent and has not acknowledged. `None`: the
    /// engine knows.
    fn waiting(&self, client_id: &str) -> Option<(usize, usize)>;
}

/// Looks at sessions and ends them.
#[async_trait]
pub trait SessionControl: Send + Sync {
    /// Sessions sorted by client id.
    async fn list(&self, query: &SessionQuery) -> Vec<SessionInfo>;

    /// Ends a session with its queue and subscriptions, without its Will: `true` if there was one.
    async fn end(&self, client_id: &str) -> bool;
}
