//! `ciqadamq secrets check`: would a start find its secrets?

use std::process::ExitCode;

use ciqadamq_core::SecretName;
use ciqadamq_secrets::{Finding, State, inspect};

use crate::cli::{Global, say};
use crate::config::{self, Config};
use crate::{failed, load, settings};

/// A start would find no management token.
pub const NO_SECRET: u8 = 4;

/// Asks once for each secret and says what it found; never the value.
pub fn run(global: &Global) -> ExitCode {
    let config = match load(global) {
        Ok(loaded) => loaded.config,
        Err(problems) => return failed(&problems),
    };
    match look(&config) {
        Ok(findings) => {
            let text: Vec<String> = findings.iter().map(|finding| line(&config, finding)).collect();
            match say(&text.join("\n")) {
                Ok(()) => ExitCode::from(code(&config, &findings)),
                Err(_) => ExitCode::FAILURE,
            }
        }
        Err(error) => failed(&format!("{error:#}")),
    }
}

fn look(config: &Config) -> anyhow::Result<Vec<Finding>> {
    let setup = settings::secrets(config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(inspect(&setup))?)
}

/// 0: all as it should be; 1: a start goes on without one; [`NO_SECRET`]: it does not.
fn code(config: &Config, findings: &[Finding]) -> u8 {
    let no_start = |finding: &&Finding| {
        finding.name == SecretName::ApiToken
            && !makes_one(config)
            && matches!(finding.state, State::Absent | State::Failed(_))
    };
    if findings.iter().any(|finding| no_start(&finding)) {
        return NO_SECRET;
    }
    findings.iter().any(|finding| matches!(finding.state, State::Failed(_) | State::Substitute(_))).into()
}

/// A node without any other source makes a management token at its first start.
fn makes_one(config: &Config) -> bool {
    config.secrets.provider() == config::SecretsProvider::Environment
}

fn line(config: &Config, finding: &Finding) -> String {
    let Finding { name, place, state } = finding;
    let variable = name.variable();
    let (verdict, note) = match state {
        State::Usable { version } => {
            ("usable", version.as_deref().map(|version| format!("version {version}")).unwrap_or_default())
        }
        State::Configured if makes_one(config) => ("usable", String::new()),
        State::Configured => ("usable", format!("not there; {variable} or the configuration has it")),
        State::Substitute(error) => {
            ("FAILED", format!("it {error}; {variable} or the configuration would be used; {}", error.remedy()))
        }
        State::Absent if *name == SecretName::ApiToken && makes_one(config) => {
            ("none", format!("the file {} has it, or is made at the first start", config.db.api_token_file().display()))
        }
        State::Absent => ("none", without(*name, variable)),
        State::Failed(error) => {
            ("FAILED", format!("it {error}; {}; until then {}", error.remedy(), without(*name, variable)))
        }
    };
    let note = if note.is_empty() { note } else { format!(": {note}") };
    format!("{:<18} {verdict:<7} {place}{note}", name.as_str())
}

/// What it means that there is none.
fn without(name: SecretName, variable: &str) -> String {
    match name {
        SecretName::ApiToken => format!("the broker does not start; store one, or set {variable}"),
        SecretName::Pepper => format!("there is no fast verifier; store one, or set {variable}, to have it"),
        SecretName::ReplToken => {
            format!("/internal/ is closed or takes the management token; store one, or set {variable}")
        }
    }
}
