//! What a source of secrets is.

use std::time::Duration;

use async_trait::async_trait;
use ciqadamq_core::{Secret, SecretName};

use crate::error::ReadError;

/// What a source has under a name.
#[derive(Debug, Clone)]
pub enum Found {
    /// a value that passed [`crate::value::check`]
    Value {
        /// the value
        secret: Secret,
        /// which one, if the source counts them
        version: Option<String>,
    },
    /// nothing, and the source is sure of it
    Absent,
}

/// How often a source may be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// at least so long from one question to the next about one secret
    pub at_least: Duration,
    /// asked without a reason after so long
    pub poll: Duration,
}

/// A place that secrets are read from. Each call is bounded in time and memory.
#[async_trait]
pub trait Source: Send + Sync {
    /// Reads a secret.
    async fn read(&self, name: SecretName) -> Result<Found, ReadError>;

    /// What to call it in front of an operator: kind and address, no secret. `api-token` at it, for one secret.
    fn describe(&self, name: SecretName) -> String;

    /// The kind alone, for answers that strangers see.
    fn kind(&self) -> &'static str;

    /// How often it may be asked.
    fn pace(&self) -> Pace;

    /// Keeps its own credential alive. Returns when it wants to be called again; `None` = never.
    async fn upkeep(&self) -> Option<Duration> {
        None
    }
}
