//! Log lines: what is logged, and how it looks.
//!
//! The engine and its plugins write `log` records; they go the same way as our own. Two things about them are set
//! right here. They tell much about every connection at `info`, so they start at `warn` unless the operator names
//! them. And some write their whole configuration, tokens and passwords included, when they start: those records are
//! suppressed at every level.

use std::io::{IsTerminal, Write};

use ciqadamq_core::LogBudget;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
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

/// What both rafts say of each message to a node that does not answer, by target and beginning: a dozen lines a second. Once it is said
/// by our plugins (`node is not reachable`, `held for dead`, and when it is back).
const REPEATED: &[(&str, &str)] = &[
    ("rmqtt_raft::raft_node", "error sending message after"),
    ("openraft::replication", "error replication to target"),
    ("openraft::replication", "openraft::replication::ReplicationCore"),
    ("openraft::engine::handler::replication_handler", "update progress error"),
    ("openraft::engine::handler::replication_handler", "heartbeat error"),
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
            let lines = tracing_subscriber::fmt::layer().json().flatten_event(true).with_filter(Fit::default());
            registry.with(lines).try_init()
        }
        LogFormat::Human => {
            let lines =
                tracing_subscriber::fmt::layer().with_ansi(coloured()).with_writer(|| OneLine(std::io::stdout()));
            let lines = lines.with_filter(Fit::default());
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

/// Suppresses records of the engine's crates that would show a secret or are said elsewhere, and bounds those that clients bring about.
#[derive(Default)]
struct Fit {
    // warnings and errors of the engine: a client can have one written for each of its packets
    engine: LogBudget,
}

impl<S: Subscriber> Filter<S> for Fit {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let mut record = Record { target: event.metadata().target().to_owned(), message: String::new() };
        event.record(&mut record);
        if shows_secret(&record.target, &record.message) || is_repeated(&record.target, &record.message) {
            return false;
        }
        let is_bounded = clients_cause(&record.target) && *event.metadata().level() <= Level::WARN;
        !is_bounded || self.engine.spend().is_some()
    }
}

/// Keeps each record on one line, and that line short: the engine writes what clients chose as it is, and a line break in it
/// would begin a line of the client's own. A record is written in one go.
struct OneLine<W>(W);

/// Bytes of a line.
const LINE_MAX: usize = 8 * 1024;

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, record: &[u8]) -> std::io::Result<usize> {
        let text = record.strip_suffix(b"\n").unwrap_or(record);
        let is_fine = text.len() <= LINE_MAX && !text.iter().any(|byte| matches!(byte, b'\n' | b'\r'));
        if is_fine {
            self.0.write_all(record)?;
        } else {
            // Twice: what is escaped becomes longer, and what is far too long need not be escaped.
            let text = String::from_utf8_lossy(text);
            let line = text[..text.floor_char_boundary(LINE_MAX)].replace('\r', "\\r").replace('\n', "\\n");
            let (line, mark) = match line.len() > LINE_MAX || text.len() > LINE_MAX {
                true => (&line[..line.floor_char_boundary(LINE_MAX)], "..."),
                false => (&*line, ""),
            };
            self.0.write_all(format!("{line}{mark}\n").as_bytes())?;
        }
        Ok(record.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// Whether clients can have records of this target written: what nodes say of each other must not be lost among those.
fn clients_cause(target: &str) -> bool {
    target.starts_with("rmqtt") && !["rmqtt_raft", "rmqtt_cluster_raft"].iter().any(|nodes| target.starts_with(nodes))
}

/// Whether somebody else says it, once.
fn is_repeated(target: &str, message: &str) -> bool {
    REPEATED.iter().any(|(of, text)| target == *of && message.starts_with(text))
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
        let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone()).with_filter(Fit::default());
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
    fn what_a_client_chose_neither_begins_a_line_nor_fills_the_log() {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || OneLine(writer.clone()));
        let subscriber = tracing_subscriber::registry().with(layer.with_filter(Fit::default()));
        let since = std::time::Instant::now();
        tracing::subscriber::with_default(subscriber, || {
            for n in 0..1000 {
                tracing::warn!(target: "rmqtt::session", "{n} malformed\n2026 INFO forged{}", "x".repeat(60_000));
            }
            tracing::warn!(target: "ciqadamq_auth", "ours");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let engine = text.lines().filter(|line| line.contains("malformed")).count();
        let most = 20 * (since.elapsed().as_secs() as usize + 1);
        assert!((1..=most).contains(&engine), "{engine} lines, {most} at most");
        assert!(text.lines().all(|line| line.len() <= LINE_MAX + 3 && !line.starts_with("2026 INFO")), "a forged line");
        assert!(text.contains("ours"));
    }

    #[test]
    fn a_record_of_the_log_facade_is_judged_by_its_own_target() {
        assert!(clients_cause("rmqtt::session") && clients_cause("rmqtt_retainer"));
        assert!(!clients_cause("rmqtt_raft::raft_node") && !clients_cause("ciqadamq_auth"));
        assert!(is_repeated("rmqtt_raft::raft_node", "error sending message after 0/0 retries: Elapsed"));
        assert!(!is_repeated("rmqtt_raft::raft_node", "step error, ..."));
        assert!(!is_repeated("ciqadamq_cluster", "error sending message after"));
        assert!(shows_secret("rmqtt_bridge_egress_mqtt", "BridgeMqttEgressPlugin cfg: Bridge { password }"));
        assert!(!shows_secret("rmqtt::v3", "c1 Connection Refused, handshake error"));
    }
}
