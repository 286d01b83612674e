//! The brokers that can be measured: how each is started alone, on free ports, in a directory that is gone afterwards.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use tempfile::TempDir;

use crate::mqtt::{Connection, Login};
use crate::process::{self, Started};
use crate::users::{self, Users};

/// How long a start may take; RabbitMQ needs half of it on a busy machine.
const START: Duration = Duration::from_secs(120);
/// How long one question during the start may take: who does not answer is asked again.
const PROBE: Duration = Duration::from_secs(2);
/// How long an ordered end may take.
const END: Duration = Duration::from_secs(20);
/// How long a program may take to say its version.
const VERSION: Duration = Duration::from_secs(10);

/// What runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// this repository's broker, with logins and the access rule
    #[value(skip)]
    Own,
    /// this repository's broker with mqtt.tcp_nodelay = false: Mosquitto and rmqttd are so by themselves
    OwnNagle,
    /// Mosquitto, everybody allowed
    Mosquitto,
    /// rmqttd, everybody allowed, its own defaults
    Rmqttd,
    /// ciqadamq 1.0, with logins and the access rule
    Ciqadamq,
    /// RabbitMQ with its MQTT plugin and one login
    Rabbitmq,
}

impl Kind {
    /// As it stands in charts and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "ciqadamq",
            Self::OwnNagle => "ciqadamq-nagle",
            Self::Mosquitto => "mosquitto",
            Self::Rmqttd => "rmqttd",
            Self::Ciqadamq => "ciqadamq-1.0",
            Self::Rabbitmq => "rabbitmq",
        }
    }

    /// The program, unless an environment variable names another.
    fn program(self, own: Option<&Path>) -> PathBuf {
        let variable = match self {
            Self::Own | Self::OwnNagle => return own.unwrap_or(Path::new("ciqadamq")).into(),
            Self::Mosquitto => "PERF_MOSQUITTO",
            Self::Rmqttd => "PERF_RMQTTD",
            Self::Ciqadamq => "PERF_CIQADAMQ",
            Self::Rabbitmq => "PERF_RABBITMQ",
        };
        let usual = match self {
            Self::Mosquitto => "mosquitto",
            Self::Rmqttd => "rmqttd",
            Self::Rabbitmq => "rabbitmq-server",
            Self::Own | Self::OwnNagle | Self::Ciqadamq => "ciqadamq",
        };
        std::env::var_os(variable).map_or_else(|| usual.into(), PathBuf::from)
    }

    fn is_own(self) -> bool {
        matches!(self, Self::Own | Self::OwnNagle)
    }

    fn has_users(self) -> bool {
        self.is_own() || self == Self::Ciqadamq
    }
}

/// How brokers are started.
#[derive(Debug, Clone)]
pub struct Setup {
    /// the binary of this repository's broker
    pub own: Option<PathBuf>,
    /// cores of brokers, and of the load; `None` = the system decides
    pub cores: Option<(Vec<usize>, Vec<usize>)>,
    /// devices of each user
    pub devices_per_user: usize,
    /// users that have to exist
    pub users: usize,
    /// environment of our broker, such as allocator settings under test
    pub env: Vec<(String, String)>,
}

/// A running broker.
pub struct Broker {
    pub kind: Kind,
    /// what it says about its version
    pub version: String,
    pub addrs: Vec<SocketAddr>,
    pub users: Rc<Users>,
    child: Started,
    dir: TempDir,
}

impl Broker {
    /// Starts one and waits until it takes clients, and its users exist.
    pub async fn start(kind: Kind, setup: &Setup) -> anyhow::Result<Self> {
        let result = Self::try_start(kind, setup).await;
        result.with_context(|| format!("{} cannot be measured", kind.name()))
    }

    async fn try_start(kind: Kind, setup: &Setup) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix("ciqadamq-perf-").tempdir()?;
        let [mqtt, ws, api] = free_addresses()?;
        let token = users::random();
        let program = kind.program(setup.own.as_deref());
        let log = File::create(dir.path().join("log"))?;
        let mut command = Command::new(&program);
        command.current_dir(dir.path()).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        configure(kind, dir.path(), [mqtt, ws, api], &token, &mut command)?;
        if kind.is_own() {
            command.envs(setup.env.iter().map(|(name, value)| (name, value)));
        }
        if let Some((broker, load)) = &setup.cores {
            process::pin(broker);
            let child = Started::new(&mut command);
            process::pin(load);
            return Self::wait(kind, dir, mqtt, api, token, setup, child, &program).await;
        }
        let child = Started::new(&mut command);
        Self::wait(kind, dir, mqtt, api, token, setup, child, &program).await
    }

    #[allow(clippy::too_many_arguments)]
    async fn wait(
        kind: Kind,
        dir: TempDir,
        mqtt: SocketAddr,
        api: SocketAddr,
        token: String,
        setup: &Setup,
        child: std::io::Result<Started>,
        program: &Path,
    ) -> anyhow::Result<Self> {
        let child = child.with_context(|| format!("`{}` cannot be started; is it installed?", program.display()))?;
        let version = version(kind, program);
        let users = Rc::new(Users::anonymous(setup.devices_per_user));
        let mut broker = Self { kind, version, addrs: vec![mqtt], users, child, dir };
        if kind == Kind::Rabbitmq {
            let login = Login { username: "guest".into(), password: "guest".into() };
            broker.users = Rc::new(Users::shared(setup.devices_per_user, login));
        }
        let began = Instant::now();
        while !broker.takes_clients(api).await {
            if let Some(status) = broker.child.try_wait()? {
                bail!("it ended with {status}:\n{}", broker.log());
            }
            if began.elapsed() > START {
                bail!("it is not ready after {START:?}:\n{}", broker.log());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        if kind.has_users() {
            broker.users = Rc::new(Users::provision(api, &token, setup.devices_per_user, setup.users).await?);
        }
        Ok(broker)
    }

    async fn takes_clients(&self, api: SocketAddr) -> bool {
        let probe = async {
            if self.kind.has_users() {
                return users::ready(api).await;
            }
            Connection::open(self.addrs[0], "perf-probe", self.users.backend()).await.is_ok()
        };
        tokio::time::timeout(PROBE, probe).await.unwrap_or(false)
    }

    /// Its processes.
    pub fn pids(&self) -> Vec<u32> {
        self.child.pids()
    }

    /// The first process of each node.
    pub fn nodes(&self) -> Vec<u32> {
        vec![self.child.id()]
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Ends it in order; after a while it is killed.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.child.terminate();
        let began = Instant::now();
        while self.child.try_wait()?.is_none() && began.elapsed() < END {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

/// Writes what the broker needs into its directory and adds the arguments.
fn configure(
    kind: Kind,
    dir: &Path,
    [mqtt, ws, api]: [SocketAddr; 3],
    token: &str,
    command: &mut Command,
) -> anyhow::Result<()> {
    let write = |name: &str, text: String| {
        let path = dir.join(name);
        fs::write(&path, text).map(|()| path)
    };
    match kind {
        Kind::Own | Kind::OwnNagle | Kind::Ciqadamq => {
            // Cheap hashes: thousands of users are made, and not what is measured.
            command.env("ARGON2_M_COST", "8").env("ARGON2_T_COST", "1").env("AUTH_PEPPER", users::random());
            command.env("API_TOKEN", token).env_remove("CIQADAMQ_CONFIG");
            command.env("RUST_LOG", "warn");
            let (scheme, db) = if kind.is_own() { ("sled", "data/users") } else { ("redb", "users.db") };
            let db = dir.join(db);
            let nagle = if kind == Kind::OwnNagle { "tcp_nodelay = false\n" } else { "" };
            let text = format!(
                "[mqtt]\ntcp_addr = \"{mqtt}\"\nws_addr = \"{ws}\"\n{nagle}[api]\naddr = \"{api}\"\n[db]\nurl = \"{scheme}://{}\"\n",
                db.display()
            );
            command.arg("--config").arg(write("ciqadamq.toml", text)?);
        }
        Kind::Mosquitto => {
            let text = format!("listener {} {}\nallow_anonymous true\n", mqtt.port(), mqtt.ip());
            // Its own bounds are for a few clients; the others have these, or more.
            let text = text + "max_queued_messages 1000\nmax_inflight_messages 0\nlog_type error\n";
            command.arg("-c").arg(write("mosquitto.conf", text)?);
        }
        Kind::Rmqttd => {
            let plugins = dir.join("plugins");
            fs::create_dir_all(&plugins)?;
            let text = format!(
                "[node]\nid = 1\n[plugins]\ndir = {plugins:?}\n[log]\nto = \"console\"\nlevel = \"warn\"\n\
                 [listener.tcp.external]\naddr = \"{mqtt}\"\nallow_anonymous = true\n"
            );
            command.arg("-f").arg(write("rmqtt.toml", text)?);
        }
        Kind::Rabbitmq => {
            let conf = format!(
                "listeners.tcp = none\nmqtt.listeners.tcp.1 = {mqtt}\nmqtt.exchange = amq.topic\nlog.console.level = error\n"
            );
            let conf = write("rabbitmq.conf", conf)?;
            let plugins = write("enabled_plugins", "[rabbitmq_mqtt].\n".into())?;
            command.env("RABBITMQ_NODENAME", format!("perf{}@localhost", mqtt.port()));
            command.env("RABBITMQ_CONFIG_FILE", conf).env("RABBITMQ_ENABLED_PLUGINS_FILE", plugins);
            command.env("RABBITMQ_MNESIA_BASE", dir.join("mnesia")).env("RABBITMQ_LOG_BASE", dir.join("logs"));
            command.env("RABBITMQ_DIST_PORT", api.port().to_string()).env("HOME", dir);
        }
    }
    Ok(())
}

/// What it calls itself, on one line.
fn version(kind: Kind, program: &Path) -> String {
    let argument = if kind == Kind::Mosquitto { "-h" } else { "--version" };
    if kind == Kind::Rabbitmq {
        return String::new();
    }
    // It is for the chart's legend; the measurement goes on without.
    let text = process::output(Command::new(program).arg(argument), VERSION).unwrap_or_default();
    let digits = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    text.split_whitespace().find(digits).unwrap_or_default().to_owned()
}

/// Free now; all are held until all are chosen, so they differ.
fn free_addresses<const N: usize>() -> anyhow::Result<[SocketAddr; N]> {
    // Below the range that outgoing connections take their ports from: the load opens thousands.
    const RANGE: std::ops::Range<u32> = 10_000..30_000;
    let start = std::process::id().wrapping_mul(61);
    let mut ports = RANGE.map(|n| (RANGE.start + (n + start) % (RANGE.end - RANGE.start)) as u16);
    let mut listeners = Vec::new();
    while listeners.len() < N {
        let port = ports.next().context("no free port")?;
        listeners.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok());
    }
    let addrs: Vec<_> = listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
    addrs.try_into().map_err(|_| anyhow::anyhow!("no free port"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_addresses_differ() {
        let [a, b, c] = free_addresses().unwrap();
        assert!(a != b && b != c && a != c);
    }

    /// Takes connections, and says nothing.
    #[tokio::test]
    async fn a_silent_broker_is_asked_again_and_not_waited_for() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = silent.local_addr().unwrap();
        let users = Rc::new(Users::anonymous(1));
        for kind in [Kind::Mosquitto, Kind::Own] {
            let child = Started::new(Command::new("sleep").arg("1000")).unwrap();
            let broker = Broker {
                kind,
                version: String::new(),
                addrs: vec![addr],
                users: users.clone(),
                child,
                dir: tempfile::tempdir().unwrap(),
            };
            let began = Instant::now();
            assert!(!broker.takes_clients(addr).await);
            assert!(began.elapsed() < 5 * PROBE);
        }
    }

    #[tokio::test]
    async fn a_broker_that_is_not_there_is_named() {
        let setup =
            Setup { own: Some("/nowhere/broker".into()), cores: None, devices_per_user: 1, users: 1, env: Vec::new() };
        let error = Broker::start(Kind::Own, &setup).await.err().unwrap();
        assert!(format!("{error:#}").contains("/nowhere/broker"), "{error:#}");
    }
}
