//! The first reading of each secret: tried again for a while, then the value that the configuration has, then no start.

use std::sync::Arc;
use std::time::Duration;

use ciqadamq_core::{Secret, SecretName};
use thiserror::Error;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::error::ReadError;
use crate::metrics::Metrics;
use crate::source::{Found, Source};

/// Pause after the first failure; it doubles.
const PAUSE: Duration = Duration::from_millis(250);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(4);
/// After 429 without a word about how long: whoever asks again at once stays locked out.
const PAUSE_RATE_LIMITED: Duration = Duration::from_secs(5);

/// Where the value in force comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// the source, and its version if it counts them
    Source {
        /// version
        version: Option<String>,
    },
    /// environment or configuration file: there is no other source, or it has no such secret
    Configured,
    /// environment or configuration file, because the source did not answer, and why
    Substitute(ReadError),
}

/// What a node starts with under one name.
#[derive(Debug, Clone)]
pub enum Resolved {
    /// a value
    Value(Secret, Origin),
    /// there is none, for sure
    Absent,
    /// the source did not answer and nothing else has a value
    Unknown(ReadError),
}

/// Why a node cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// the source did not answer, and nothing else has a value
    #[error("secret `{name}`: {source_name} {error}, tried for {tried_secs} s; {}, or set {} to start without it", .error.remedy(), .name.variable())]
    NoAnswer {
        /// which
        name: SecretName,
        /// from where
        source_name: String,
        /// why
        error: ReadError,
        /// how long
        tried_secs: u64,
    },
    /// the source has no such secret, nor has anything else
    #[error("secret `{name}`: {source_name} has no such secret; store a random value there (openssl rand -hex 32), or set {}", .name.variable())]
    NoValue {
        /// which
        name: SecretName,
        /// from where
        source_name: String,
    },
    /// metrics of that name are there already
    #[error("the metrics of secrets cannot be registered")]
    Metrics(#[from] prometheus::Error),
}

/// Reads a secret, again and again while it fails and `budget` lasts.
async fn insist(
    source: &dyn Source,
    name: SecretName,
    budget: Duration,
    metrics: &Metrics,
) -> Result<Found, ReadError> {
    let deadline = Instant::now() + budget;
    let mut pause = PAUSE;
    let mut said = false;
    loop {
        // The last try may be cut short: the error of the one before says more than "too late".
        let error = match source.read(name).await {
            Ok(found) => {
                metrics.read(name, if matches!(found, Found::Absent) { "absent" } else { "ok" });
                return Ok(found);
            }
            Err(error) => error,
        };
        metrics.read(name, error.kind());
        let wait = match &error {
            ReadError::RateLimited { retry_after } => retry_after.unwrap_or(PAUSE_RATE_LIMITED).max(pause),
            // Up to half as long again: three nodes that start together do not knock together.
            _ => pause.mul_f64(rand::random_range(1.0..1.5)),
        };
        if Instant::now() + wait >= deadline {
            return Err(error);
        }
        if !said {
            said = true;
            let source = source.describe(name);
            warn!(secret = %name, %source, %error, budget_secs = budget.as_secs(), "secret cannot be read yet; trying again");
        }
        tokio::time::sleep(wait).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// What the node starts with: the source's word, else the configured value.
pub(crate) async fn resolve(
    source: Option<&Arc<dyn Source>>,
    name: SecretName,
    configured: Option<Secret>,
    budget: Duration,
    metrics: &Metrics,
) -> Resolved {
    let Some(source) = source else {
        return configured.map_or(Resolved::Absent, |secret| Resolved::Value(secret, Origin::Configured));
    };
    match (insist(&**source, name, budget, metrics).await, configured) {
        (Ok(Found::Value { secret, version }), _) => {
            info!(secret = %name, source = source.kind(), version = version.as_deref(), "secret read");
            Resolved::Value(secret, Origin::Source { version })
        }
        (Ok(Found::Absent), Some(secret)) => {
            info!(secret = %name, source = source.kind(), instead = name.variable(), "no such secret there; the configured value is used");
            Resolved::Value(secret, Origin::Configured)
        }
        (Ok(Found::Absent), None) => Resolved::Absent,
        (Err(error), Some(secret)) => {
            let (source, remedy) = (source.describe(name), error.remedy());
            warn!(secret = %name, %source, %error, remedy, instead = name.variable(), "secret cannot be read; the configured value is used");
            Resolved::Value(secret, Origin::Substitute(error))
        }
        (Err(error), None) => Resolved::Unknown(error),
    }
}
