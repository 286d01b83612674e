//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::config::Overrides;

/// The engine whose behaviour the hooks rest on.
pub const ENGINE: &str = "rmqtt 0.24.0";

const LONG_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (engine rmqtt 0.24.0)");

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 refused, not found or a problem in the configuration, 2 wrong usage, 3 the node cannot be reached, \
4 a secret that the node cannot start without cannot be had";

/// A clustered MQTT broker for backends that talk to every device of every user.
#[derive(Debug, Parser)]
#[command(name = "ciqadamq", version = LONG_VERSION, about, after_help = EXIT_CODES)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Debug, Clone, Args)]
pub struct Global {
    /// Configuration file [default: $CIQADAMQ_CONFIG, else ./config.toml, else configs/ciqadamq.toml, else built in]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Switch a plugin on, whatever the configuration says; may be repeated
    #[arg(long, global = true, value_name = "NAME")]
    pub enable: Vec<String>,
    /// Switch a plugin off, whatever the configuration says; may be repeated
    #[arg(long, global = true, value_name = "NAME")]
    pub disable: Vec<String>,
    /// How log lines look
    #[arg(long, global = true, value_name = "FORMAT", default_value = "human")]
    pub log_format: LogFormat,
}

impl Global {
    /// The part that belongs to the configuration.
    pub fn overrides(&self) -> Overrides {
        Overrides { file: self.config.clone(), enable: self.enable.clone(), disable: self.disable.clone() }
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// for people; coloured on a terminal
    Human,
    /// one JSON object a line
    Json,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the broker (the default)
    Serve,
    /// Read and check the configuration, and do nothing else
    CheckConfig {
        /// Print the effective configuration, secrets redacted, and the plugins
        #[arg(long)]
        print: bool,
    },
    /// Manage users on a running node
    #[command(after_help = EXIT_CODES)]
    Users {
        #[command(flatten)]
        api: ApiArgs,
        #[command(subcommand)]
        command: UsersCommand,
    },
    /// Ask a running node about the access rule
    #[command(after_help = EXIT_CODES)]
    Acl {
        #[command(flatten)]
        api: ApiArgs,
        #[command(subcommand)]
        command: AclCommand,
    },
    /// Look at the cluster of a running node, take nodes in and out
    #[command(after_help = EXIT_CODES)]
    Cluster {
        #[command(flatten)]
        api: ApiArgs,
        #[command(subcommand)]
        command: ClusterCommand,
    },
    /// Ask a running node whether it is alive; needs no token
    #[command(after_help = EXIT_CODES)]
    Health {
        /// Ask whether clients may come; exit code 1, and the reason, while they may not
        #[arg(long)]
        ready: bool,
        /// The node's REST API [default: api.addr of the local configuration]
        #[arg(long, value_name = "URL")]
        api: Option<String>,
    },
    /// Look after the node's secrets
    #[command(after_help = EXIT_CODES)]
    Secrets {
        #[command(subcommand)]
        command: SecretsCommand,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Subcommand)]
pub enum SecretsCommand {
    /// Say for each secret where it comes from and whether it is usable, without showing it. Exit code 1 if a start would
    /// have to do without one, 4 if the broker would not start
    Check,
}

/// How to reach the node.
#[derive(Debug, Clone, Args)]
pub struct ApiArgs {
    /// The node's REST API [default: api.addr of the local configuration]
    #[arg(long, global = true, value_name = "URL")]
    pub api: Option<String>,
    /// File with the management token [default: as the node finds it: the vault if there is one, api.token or API_TOKEN, else the file `api-token` next to the database]
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Print the API's JSON instead of text
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum UsersCommand {
    /// Create a user
    Add {
        /// Login name
        username: String,
        /// The application's user id, which stands in topics
        #[arg(long)]
        userid: String,
        /// A backend service account: no access rule applies
        #[arg(long)]
        superuser: bool,
        /// May also subscribe the admin prefixes
        #[arg(long)]
        admin: bool,
        #[command(flatten)]
        password: PasswordArgs,
    },
    /// List users, sorted by name
    List {
        /// Only users with this user id
        #[arg(long)]
        userid: Option<String>,
    },
    /// Show one user
    Show {
        /// Login name
        username: String,
    },
    /// Change a user; a withdrawn right ends the user's sessions
    Set(SetArgs),
    /// Delete a user and end all its sessions
    Delete {
        /// Login name
        username: String,
    },
}

#[derive(Debug, Args)]
pub struct SetArgs {
    /// Login name
    pub username: String,
    /// New user id
    #[arg(long)]
    pub userid: Option<String>,
    /// Whether the access rule applies
    #[arg(long, value_name = "true|false")]
    pub superuser: Option<bool>,
    /// Whether the admin prefixes may be subscribed
    #[arg(long, value_name = "true|false")]
    pub admin: Option<bool>,
    /// Whether logins are refused
    #[arg(long, value_name = "true|false")]
    pub disabled: Option<bool>,
    /// Set a new password: ask for it, unless a file or standard input is given
    #[arg(long)]
    pub password: bool,
    #[command(flatten)]
    pub source: PasswordArgs,
}

/// Where a password is read from. Never an argument: those are visible to every process and stay in the history.
#[derive(Debug, Clone, Args)]
pub struct PasswordArgs {
    /// Read the password from a file; one line end at its end is left out
    #[arg(long, value_name = "FILE", conflicts_with = "password_stdin")]
    pub password_file: Option<PathBuf>,
    /// Read the password from standard input; one line end at its end is left out
    #[arg(long)]
    pub password_stdin: bool,
}

impl PasswordArgs {
    /// Whether one was named.
    pub fn is_given(&self) -> bool {
        self.password_file.is_some() || self.password_stdin
    }
}

#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Show what each node says of itself, who leads, and how far each is. Exit code 1 if the node that was asked is not
    /// ready, or takes no changes of users
    Status,
    /// Take a node into the replicated user directory; it must be up, with an empty data directory
    Add {
        /// Its cluster.node_id
        id: u16,
        /// Its REST API as the other nodes reach it, such as http://node2:8090
        url: String,
    },
    /// Take a node out of the replicated user directory; stop it first
    Remove {
        /// Its cluster.node_id
        id: u16,
    },
}

#[derive(Debug, Subcommand)]
pub enum AclCommand {
    /// Would this user be allowed this? By which rule? Exit code 1 if not
    Check {
        /// Login name
        username: String,
        /// The action
        action: Action,
        /// Topic Name to publish to, or Topic Filter to subscribe
        topic: String,
        /// The client id, where the rule asks for it
        #[arg(long)]
        clientid: Option<String>,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Action {
    Publish,
    Subscribe,
}

impl Action {
    /// As the API calls it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Subscribe => "subscribe",
        }
    }
}

/// Where a client on this machine reaches a listener: an unspecified address means the loopback one.
pub fn reachable(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => ([127, 0, 0, 1], v4.port()).into(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => (std::net::Ipv6Addr::LOCALHOST, v6.port()).into(),
        addr => addr,
    }
}

/// Prints a text with a line end. Standard output that takes nothing is reported, not panicked about; a reader that has
/// had enough is no failure of ours.
pub fn say(text: &str) -> std::io::Result<()> {
    use std::io::{ErrorKind, Write};
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => {
            eprintln!("error: standard output: {error}");
            Err(error)
        }
        Ok(()) => Ok(()),
    }
}
