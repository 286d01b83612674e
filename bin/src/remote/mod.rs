//! Commands that talk to a running node over its REST API.

mod acl;
mod api;
mod cluster;
mod health;
mod password;
mod status;
mod users;

use std::process::ExitCode;

use crate::cli::{AclCommand, ApiArgs, ClusterCommand, Global, UsersCommand};

pub use api::Api;

/// Why a command did not do what it was asked for; the exit code follows.
#[derive(Debug)]
pub enum Failure {
    /// the node said no, or there is no such user (1)
    Refused(String),
    /// the command line, a file or the local configuration is wrong (2)
    Usage(String),
    /// the node does not answer (3)
    Unreachable(String),
}

impl Failure {
    fn code(&self) -> u8 {
        match self {
            Self::Refused(_) => 1,
            Self::Usage(_) => 2,
            Self::Unreachable(_) => 3,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Refused(text) | Self::Usage(text) | Self::Unreachable(text)) = self;
        f.write_str(text)
    }
}

/// `ciqadamq users ...`
pub fn users(global: &Global, args: &ApiArgs, command: &UsersCommand) -> ExitCode {
    run(global, args, async |api| users::run(&api, command, args.json).await)
}

/// `ciqadamq acl ...`
pub fn acl(global: &Global, args: &ApiArgs, command: &AclCommand) -> ExitCode {
    run(global, args, async |api| acl::run(&api, command, args.json).await)
}

/// `ciqadamq cluster ...`
pub fn cluster(global: &Global, args: &ApiArgs, command: &ClusterCommand) -> ExitCode {
    run(global, args, async |api| cluster::run(&api, command, args.json).await)
}

/// `ciqadamq health`
pub fn health(global: &Global, api: Option<&str>, ready: bool) -> ExitCode {
    run_with(Api::open_without_token(global, api), async |api| health::run(&api, ready).await)
}

/// Runs a command; what it returns is printed.
fn run(global: &Global, args: &ApiArgs, command: impl AsyncFnOnce(Api) -> Result<Done, Failure>) -> ExitCode {
    run_with(Api::open(global, args), command)
}

fn run_with(api: Result<Api, Failure>, command: impl AsyncFnOnce(Api) -> Result<Done, Failure>) -> ExitCode {
    let result = api.and_then(|api| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::Usage(format!("runtime cannot be started: {error}")))?;
        runtime.block_on(command(api))
    });
    match result {
        Ok(Done { text, yes }) => match crate::cli::say(&text) {
            Ok(()) if yes => ExitCode::SUCCESS,
            _ => ExitCode::from(1),
        },
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(failure.code())
        }
    }
}

/// What to print, and whether the answer was yes.
pub struct Done {
    text: String,
    yes: bool,
}

impl From<String> for Done {
    fn from(text: String) -> Self {
        Self { text, yes: true }
    }
}
