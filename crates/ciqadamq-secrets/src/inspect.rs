//! What an operator asks before a start: where would each secret come from, and could it be used?

use std::time::Duration;

use ciqadamq_core::SecretName;
use prometheus::Registry;

use crate::error::ReadError;
use crate::metrics::Metrics;
use crate::secrets::Setup;
use crate::start::{Origin, Resolved, resolve};

/// The answer for one secret. Holds no value.
#[derive(Debug)]
pub struct Finding {
    /// which
    pub name: SecretName,
    /// where it was looked for: a source, or the configuration
    pub place: String,
    /// what was found
    pub state: State,
}

/// What was found.
#[derive(Debug, PartialEq, Eq)]
pub enum State {
    /// a usable value in the source
    Usable {
        /// its version, if the source counts them
        version: Option<String>,
    },
    /// the configured value is in force
    Configured,
    /// the source failed; a start would go on with the configured value
    Substitute(ReadError),
    /// there is none
    Absent,
    /// the source failed, and nothing is configured
    Failed(ReadError),
}

/// Asks for all secrets once.
pub async fn inspect(setup: &Setup) -> Result<Vec<Finding>, prometheus::Error> {
    let metrics = Metrics::register(&Registry::new())?;
    let find = async |name| {
        let configured = setup.configured.get(name).cloned();
        // No time for a second try.
        let state = match resolve(setup.source.as_ref(), name, configured, Duration::ZERO, &metrics).await {
            Resolved::Value(_, Origin::Source { version }) => State::Usable { version },
            Resolved::Value(_, Origin::Configured) => State::Configured,
            Resolved::Value(_, Origin::Substitute(error)) => State::Substitute(error),
            Resolved::Absent => State::Absent,
            Resolved::Unknown(error) => State::Failed(error),
        };
        let place = match (&setup.source, &state) {
            (Some(source), _) => source.describe(name),
            (None, _) => format!("configuration or {}", name.variable()),
        };
        Finding { name, place, state }
    };
    let [api_token, pepper, repl_token] = SecretName::ALL;
    let (api_token, pepper, repl_token) = tokio::join!(find(api_token), find(pepper), find(repl_token));
    Ok(vec![api_token, pepper, repl_token])
}
