//! Log lines: what is logged, and how it looks.
//!
//! The engine and its plugins write `log` records; they go the same way as our own. Two things about them are set
//! right here. They tell much about every connection at `info`, so they start at `warn` unless the operator names
//! them. And some write their whole configuration, tokens and passwords included, when they start: those records are
//! suppressed at every level.

use std::io::IsTerminal;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::cli::LogFormat;
use crate::config::LogFilter;

/// Libraries that say much at `info`: quieter, unless the operator's filter names them.
const CHATTY: &[&str] =
    &["rmqtt", "sled", "salvo", "ntex", "h2", "hyper", "reqwest", "rustify", "vaultrs", "backoff", "openraft"];

/// Texts in records of the engine's crates that come with a configuration or a credential.
const TELLTALE: &[&str] = &[
    "cfg:",
    "config:",
    "rule: Rule",
    "rule.users",
    "load_config ok",
    "GetPluginConfig",
    "token:",
    "token\"",
    "password:",
    "password\"",
    "secret\"",
];

/// Installs the logger; call once.
pub fn init(filter: &LogFilter, format: LogFormat) -> anyhow::Result<()> {
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .parse(directives(&filter.0))
        .map_err(|error| anyhow::anyhow!("log filter `{}`: {error}", filter.0))?;
    let registry = tracing_subscriber::registry().with(filter);
    match format {
        LogFormat::Json => {
            let lines = tracing_subscriber::fmt::layer().json().flatten_event(true).with_filter(NoSecrets);
            registry.with(lines).try_init()
        }
        LogFormat::Human => {
            let lines = tracing_subscriber::fmt::layer().with_ansi(coloured()).with_filter(NoSecrets);
            registry.with(lines).try_init()
        }
    }
    .map_err(|error| anyhow::anyhow!("logger cannot be installed: {error}"))
}

/// On a terminal, unless `NO_COLOR` says otherwise.
fn coloured() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The operator's filter with the chatty libraries turned down.
fn directives(operator: &str) -> String {
    let named = |library: &str| operator.split(',').any(|directive| directive.trim().starts_with(library));
    let quiet = CHATTY.iter().filter(|library| !named(library)).map(|library| format!(",{library}=warn"));
    quiet.fold(operator.to_owned(), |all, one| all + &one)
}

/// Suppresses records of the engine's crates that would show a secret.
struct NoSecrets;

impl<S: Subscriber> Filter<S> for NoSecrets {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let mut record = Record { target: event.metadata().target().to_owned(), message: String::new() };
        event.record(&mut record);
        !shows_secret(&record.target, &record.message)
    }
}

fn shows_secret(target: &str, message: &str) -> bool {
    target.starts_with("rmqtt") && TELLTALE.iter().any(|text| message.contains(text))
}

/// Target and message, also of a record that came through the `log` facade.
struct Record {
    target: String,
    message: String,
}

impl Visit for Record {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "log.target" => self.target = value.to_owned(),
            "message" => self.message = value.to_owned(),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// The engine has a `debug` record at every step of a message: each must cost one comparison and no more.
    #[test]
    fn what_nobody_wants_to_see_is_not_even_asked_about() {
        init(&LogFilter("info".into()), LogFormat::Human).unwrap();
        assert_eq!(log::max_level(), log::LevelFilter::Info);
        assert_eq!(LevelFilter::current(), LevelFilter::INFO);
    }

    #[test]
    fn the_engine_is_quiet_unless_the_operator_names_it() {
        assert!(directives("info").contains("rmqtt=warn"));
        assert!(!directives("info,rmqtt=debug").contains("rmqtt=warn"));
        assert!(!directives("rmqtt_http_api=info").contains("rmqtt=warn"));
        assert!(EnvFilter::builder().parse(directives("warn,ciqadamq=debug")).is_ok());
    }

    #[test]
    fn records_with_a_configuration_or_a_token_are_suppressed_and_others_are_not() {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone()).with_filter(NoSecrets);
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(target: "rmqtt_http_api", "rmqtt-http-api HttpApiPlugin cfg: {:?}", "hunter2");
            tracing::warn!(target: "rmqtt_auth_jwt", "c1 token:hunter2, error: expired");
            tracing::info!(target: "rmqtt_retainer", "rmqtt-retainer init");
            tracing::info!(target: "ciqadamq_auth", "token file written");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("rmqtt-retainer init") && text.contains("token file written"), "{text}");
    }

    #[test]
    fn a_record_of_the_log_facade_is_judged_by_its_own_target() {
        assert!(shows_secret("rmqtt_bridge_egress_mqtt", "BridgeMqttEgressPlugin cfg: Bridge { password }"));
        assert!(!shows_secret("rmqtt::v3", "c1 Connection Refused, handshake error"));
    }
}
