//! The launcher: reads the configuration, builds the broker, registers the plugins, runs, drains.
//!
//! No MQTT logic lives here; it is in the plugin crates, and the rules behind them in `ciqadamq-core`.

mod banner;
mod cli;
mod config;
mod drain;
mod engine;
mod limits;
mod logging;
mod lost;
mod official;
mod remote;
mod restart;
mod secrets_check;
mod serve;
mod settings;
mod signals;
mod start;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use ciqadamq_secrets::StartError;
use cli::{Cli, Command, Global, SecretsCommand};

#[cfg(all(unix, not(target_env = "musl"), feature = "jemalloc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Memory of a storm of logins or messages goes back to the system within seconds, from a thread of the allocator's own.
#[cfg(all(unix, not(target_env = "musl"), feature = "jemalloc"))]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static MALLOC_CONF: &[u8] = b"background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0\0";

fn main() -> ExitCode {
    let Cli { global, command } = Cli::parse();
    match command.unwrap_or(Command::Serve) {
        Command::Serve => serve(&global),
        Command::CheckConfig { print } => check_config(&global, print),
        Command::Users { api, command } => remote::users(&global, &api, &command),
        Command::Acl { api, command } => remote::acl(&global, &api, &command),
        Command::Cluster { api, command } => remote::cluster(&global, &api, &command),
        Command::Health { ready, api } => remote::health(&global, api.as_deref(), ready),
        Command::Secrets { command: SecretsCommand::Check } => secrets_check::run(&global),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "ciqadamq", &mut script);
            said(String::from_utf8_lossy(&script).trim_end())
        }
    }
}

fn load(global: &Global) -> Result<config::Loaded, config::Problems> {
    config::load(&global.overrides(), &official::names(), inspect)
}

/// What only those who use a setting can tell about it.
fn inspect(config: &config::Config) -> Vec<(&'static str, String)> {
    let mut found = official::check(config);
    found.extend(settings::secrets_problem(config));
    found
}

fn serve(global: &Global) -> ExitCode {
    let loaded = match load(global) {
        Ok(loaded) => loaded,
        Err(problems) => return failed(&problems),
    };
    if let Err(error) = logging::init(&loaded.config.log, global.log_format) {
        return failed(&error);
    }
    limits::raise_open_files();
    banner::print(&loaded);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&format!("runtime cannot be started: {error}")),
    };
    let result = runtime.block_on(serve::serve(loaded.config));
    // Everything that has to be finished is. The stores of official plugins have threads that never end by themselves,
    // which dropping the runtime would wait for.
    runtime.shutdown_background();
    let result = match result {
        Ok(serve::End::Asked) => Ok(()),
        Ok(serve::End::Restart(why)) => match restart::now(&why) {
            restart::Stays::AskedToEnd => Ok(()),
            restart::Stays::Failed(error) => Err(error),
        },
        Err(error) => Err(error),
    };
    restart::off();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "stopped");
            if error.is::<StartError>() { ExitCode::from(secrets_check::NO_SECRET) } else { ExitCode::FAILURE }
        }
    }
}

fn check_config(global: &Global, print: bool) -> ExitCode {
    let loaded = match load(global) {
        Ok(loaded) => loaded,
        Err(problems) => return failed(&problems),
    };
    let mut text = format!("configuration OK: {}", loaded.source);
    for warning in &loaded.warnings {
        text += &format!("\nwarning: {warning}");
    }
    if print {
        text += &format!("\n\n{}\n", config::effective(&loaded.config));
        text += &format!("# plugins that start: {}\n", banner::running(&loaded.config).join(", "));
        text += &format!("# plugins of this build: {}", banner::all().join(", "));
    }
    said(&text)
}

/// Prints a text; what cannot be printed is a failure.
fn said(text: &str) -> ExitCode {
    if cli::say(text).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn failed(what: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("error: {what}");
    ExitCode::FAILURE
}
