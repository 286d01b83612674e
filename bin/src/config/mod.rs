//! The configuration: one table of keys, one file, the environment above it, the command line above that.
//!
//! Everything that is wrong is reported in one go, each with its place and remedy, and then nothing starts. Reading and
//! checking are pure (`read`, `checks`); only [`load`] and `files` look at the disk.

mod checks;
mod cluster;
mod files;
mod keys;
mod kinds;
mod model;
mod print;
mod problem;
mod read;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub use checks::{OTHER_AUTHENTICATION, OWN_PLUGINS};
pub use files::Source;
#[cfg(feature = "vault")]
pub use model::VaultAuth;
pub use model::{Config, Durability, LogFilter, Mqtt, OnDeny, RetainFor, SecretsProvider};
pub use print::effective;
pub use problem::{Place, Problem, Problems};

use read::Reading;

/// What the command line says about the configuration.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// `--config`
    pub file: Option<PathBuf>,
    /// `--enable`
    pub enable: Vec<String>,
    /// `--disable`
    pub disable: Vec<String>,
}

/// A configuration without problems.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// the values
    pub config: Config,
    /// the file
    pub source: Source,
    /// what is allowed and odd; worth a line in the log at start
    pub warnings: Vec<String>,
}

/// Further checks that look at the disk: the key a problem belongs to, and what is wrong.
pub type Inspect = fn(&Config) -> Vec<(&'static str, String)>;

/// Reads and checks everything. `official` are the names of the official plugins that are compiled in; `inspect` looks
/// at their settings.
pub fn load(overrides: &Overrides, official: &[&str], inspect: Inspect) -> Result<Loaded, Problems> {
    let (mut reading, source) = read_all(overrides, official, |name| std::env::var_os(name));
    let known: Vec<&str> = OWN_PLUGINS.iter().map(|(name, _)| *name).chain(official.iter().copied()).collect();
    let mut warnings = files::check(&mut reading, &known);
    for (key, text) in inspect(&reading.config) {
        reading.complain(key, text);
    }
    warnings.extend(odd(&reading));
    finish(reading, source, warnings)
}

/// The values alone: for commands that talk to a running node and need not be able to read what the node reads.
pub fn load_values(overrides: &Overrides, official: &[&str]) -> Result<Loaded, Problems> {
    let (reading, source) = read_all(overrides, official, |name| std::env::var_os(name));
    finish(reading, source, Vec::new())
}

/// Reads and checks a text alone: no environment, no command line, no disk.
#[allow(dead_code, reason = "for the fuzz target, which takes this module in as a file")]
pub fn from_text(text: &str, official: &[&str]) -> Result<Config, Problems> {
    let mut reading = Reading::default();
    reading.file(Path::new("c.toml"), text);
    checks::run(&mut reading, official);
    finish(reading, Source::BuiltIn, Vec::new()).map(|loaded| loaded.config)
}

fn read_all(
    overrides: &Overrides,
    official: &[&str],
    variable: impl Fn(&str) -> Option<OsString>,
) -> (Reading, Source) {
    let from_variable = variable("CIQADAMQ_CONFIG").map(PathBuf::from);
    let source = files::locate(overrides.file.as_deref(), from_variable.as_deref(), Path::is_file);
    let mut reading = Reading::default();
    if let Some(path) = source.path() {
        match std::fs::read_to_string(path) {
            Ok(text) => reading.file(path, &text),
            Err(error) => {
                let (place, key) = match &source {
                    Source::Variable(_) => (Place::Env("CIQADAMQ_CONFIG"), ""),
                    _ => (Place::CommandLine, "--config"),
                };
                let text = format!("cannot read `{}`: {error}; name a readable file", path.display());
                reading.problems.push(Problem { place, key: key.into(), text });
            }
        }
    }
    reading.environment(&variable);
    apply_command_line(&mut reading, overrides, official);
    checks::run(&mut reading, official);
    (reading, source)
}

fn finish(mut reading: Reading, source: Source, warnings: Vec<String>) -> Result<Loaded, Problems> {
    if reading.problems.is_empty() {
        return Ok(Loaded { config: reading.config, source, warnings });
    }
    reading.problems.sort();
    reading.problems.dedup();
    Err(Problems(reading.problems))
}

/// `--enable` and `--disable` win over the file, and must not contradict each other.
fn apply_command_line(reading: &mut Reading, overrides: &Overrides, official: &[&str]) {
    let mut complain = |key: &str, text: String| {
        reading.problems.push(Problem { place: Place::CommandLine, key: key.into(), text });
    };
    let known = |name: &str| OWN_PLUGINS.iter().any(|(own, _)| *own == name) || official.contains(&name);
    for (key, names) in [("--enable", &overrides.enable), ("--disable", &overrides.disable)] {
        for name in names.iter().filter(|name| !known(name)) {
            complain(key, format!("unknown plugin `{name}`; `ciqadamq check-config --print` lists the known ones"));
        }
    }
    for name in overrides.enable.iter().filter(|name| overrides.disable.contains(name)) {
        complain("--disable", format!("`{name}` is given to --enable too; choose one"));
    }
    for (key, names) in [("plugins.enable", &overrides.enable), ("plugins.disable", &overrides.disable)] {
        if !names.is_empty() {
            reading.places.entry(key).or_insert(Place::CommandLine);
        }
    }
    let plugins = &mut reading.config.plugins;
    for name in overrides.enable.iter().filter(|name| known(name)) {
        plugins.disable.retain(|other| other != name);
        plugins.enable.push(name.clone());
    }
    for name in overrides.disable.iter().filter(|name| known(name) && !overrides.enable.contains(name)) {
        plugins.enable.retain(|other| other != name);
        plugins.disable.push(name.clone());
    }
}

/// What is allowed and odd.
fn odd(reading: &Reading) -> Vec<String> {
    let config = &reading.config;
    let mut warnings: Vec<String> = Vec::new();
    let mut warn = |condition: bool, text: &str| {
        if condition {
            warnings.push(text.into());
        }
    };
    warn(config.auth.disabled, "auth.disabled: everybody may connect as superuser; for tests only");
    for text in odd_secrets(reading) {
        warn(true, &text);
    }
    warn(!config.acl.enabled, "acl.enabled = false: every user may subscribe and publish everything");
    warn(
        config.auth.disabled_allow_remote && !config.auth.disabled,
        "auth.disabled_allow_remote has no effect while authentication is on; leave it out",
    );
    warn(
        !config.plugins.starts("ciqadamq-auth", true)
            && !OTHER_AUTHENTICATION.iter().any(|name| config.plugins.starts(name, false)),
        "plugins.disable: without ciqadamq-auth, rmqtt-auth-http or rmqtt-auth-jwt nobody can log in",
    );
    warn(
        config.acl.enabled && !config.plugins.starts("ciqadamq-topic-acl", true),
        "plugins.disable: without ciqadamq-topic-acl every user may subscribe and publish everything",
    );
    warn(
        !config.plugins.starts("ciqadamq-expiry", true),
        "plugins.disable: without ciqadamq-expiry a publisher's Message Expiry Interval is not capped",
    );
    warn(
        config.mqtt.durability == Durability::Memory && config.keeps_sessions(),
        "mqtt.durability = \"memory\": what was acknowledged does not survive a restart",
    );
    warn(
        config.plugins.starts("rmqtt-session-storage", false),
        "rmqtt-session-storage writes the passwords of connected clients to its store in plain text",
    );
    warnings
}

/// The same about where secrets come from.
fn odd_secrets(reading: &Reading) -> Vec<String> {
    let secrets = &reading.config.secrets;
    let provider = secrets.provider();
    let mut warnings = Vec::new();
    let asks_vault = matches!(provider, SecretsProvider::HyperionVault | SecretsProvider::Vault);
    if !asks_vault && secrets.addr.is_some() {
        let word = provider.word();
        warnings.push(format!("secrets.addr (VAULT_ADDR) has no effect with secrets.provider = \"{word}\""));
    }
    let in_clear = secrets.addr.as_deref().and_then(|addr| ciqadamq_secrets::parse_address(addr).ok()).filter(|url| {
        let host = url.host_str().unwrap_or_default();
        let loopback = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        url.scheme() == "http" && host != "localhost" && !loopback
    });
    if asks_vault && in_clear.is_some() {
        warnings.push("secrets.addr (VAULT_ADDR): secrets cross the network unencrypted; use https".into());
    }
    let vault = &secrets.vault;
    if provider == SecretsProvider::HyperionVault && (vault.token.is_some() || vault.role_id.is_some()) {
        let text = "VAULT_ADDR alone means a hyperion-vault, which takes no token; for HashiCorp Vault or OpenBao set \
                    secrets.provider = \"vault\" (SECRETS_PROVIDER)";
        warnings.push(text.into());
    }
    if asks_vault && secrets.refresh_secs > u64::from(reading.config.api.token_overlap_secs) {
        let text = "secrets.refresh_secs is longer than api.token_overlap_secs: a node may present a token that others have \
                    dropped already; shorten it";
        warnings.push(text.into());
    }
    let elsewhere = |key: &&str| key.starts_with("secrets.vault.") && provider != SecretsProvider::Vault;
    let written = |key: &&str| matches!(reading.place(key), Place::File { .. });
    if let Some(key) = reading.places.keys().copied().filter(elsewhere).filter(written).min() {
        warnings.push(format!("{key} has no effect with secrets.provider = \"{}\"", provider.word()));
    }
    warnings
}
