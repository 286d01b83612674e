//! The brokers that can be measured: how each is started, alone or as several nodes, on free ports, in a directory that is gone afterwards.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::config::{Place, configure};
use crate::mqtt::Connection;
use crate::process::{self, Started};
use crate::rabbitmq;
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
    /// this repository's broker with mqtt.tcp_nodelay = true
    OwnNodelay,
    /// Mosquitto, everybody allowed
    Mosquitto,
    /// rmqttd, everybody allowed, its own defaults
    Rmqttd,
    /// ciqadamq 1.0, with logins and the access rule
    Ciqadamq,
    /// RabbitMQ with its MQTT plugin, everybody allowed; without QoS 2
    Rabbitmq,
}

impl Kind {
    /// As it stands in charts and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "ciqadamq",
            Self::OwnNodelay => "ciqadamq-nodelay",
            Self::Mosquitto => "mosquitto",
            Self::Rmqttd => "rmqttd",
            Self::Ciqadamq => "ciqadamq-1.0",
            Self::Rabbitmq => "rabbitmq",
        }
    }

    /// The program, unless an environment variable names another.
    fn program(self, own: Option<&Path>) -> PathBuf {
        let variable = match self {
            Self::Own | Self::OwnNodelay => return own.unwrap_or(Path::new("ciqadamq")).into(),
            Self::Mosquitto => "PERF_MOSQUITTO",
            Self::Rmqttd => "PERF_RMQTTD",
            Self::Ciqadamq => "PERF_CIQADAMQ",
            Self::Rabbitmq => "PERF_RABBITMQ",
        };
        let usual = match self {
            Self::Mosquitto => "mosquitto",
            Self::Rmqttd => "rmqttd",
            Self::Rabbitmq => return given(variable).unwrap_or_else(rabbitmq::usual),
            Self::Own | Self::OwnNodelay | Self::Ciqadamq => "ciqadamq",
        };
        given(variable).unwrap_or_else(|| usual.into())
    }

    /// What to do when the program is not there.
    fn remedy(self) -> &'static str {
        match self {
            Self::Own | Self::OwnNodelay => "is it installed?",
            Self::Mosquitto => "install the package `mosquitto`, or name the program in PERF_MOSQUITTO",
            Self::Rmqttd => "put it on the PATH, or name the program in PERF_RMQTTD",
            Self::Ciqadamq => "put it on the PATH, or name the program in PERF_CIQADAMQ",
            Self::Rabbitmq => "install the package `rabbitmq-server`, or name the program in PERF_RABBITMQ",
        }
    }

    /// The highest QoS it grants. RabbitMQ grants QoS 1 where 2 is asked for (rabbitmq-server#10373).
    pub fn qos_max(self) -> u8 {
        if self == Self::Rabbitmq { 1 } else { 2 }
    }

    pub fn is_own(self) -> bool {
        matches!(self, Self::Own | Self::OwnNodelay)
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
    /// nodes of a cluster; 1 is a broker outside one
    pub nodes: u8,
    /// what stands at the end of our broker's `[mqtt]`
    pub mqtt: String,
    /// what stands at the end of `[cluster]`
    pub cluster: String,
}

impl Setup {
    /// One node of the `ciqadamq` on the `PATH`, for so many users with one device each.
    pub fn of(users: usize) -> Self {
        Self {
            own: None,
            cores: None,
            devices_per_user: 1,
            users,
            env: Vec::new(),
            nodes: 1,
            mqtt: String::new(),
            cluster: String::new(),
        }
    }
}

/// A running broker: one node, or several as a cluster.
pub struct Broker {
    pub kind: Kind,
    /// what it says about its version
    pub version: String,
    /// where the nodes take MQTT clients
    pub addrs: Vec<SocketAddr>,
    pub users: Rc<Users>,
    running: Vec<Started>,
    // ended after what runs, which needs it
    epmd: Option<Started>,
    dir: TempDir,
}

impl Broker {
    /// Starts one and waits until it takes clients, and its users exist.
    pub async fn start(kind: Kind, setup: &Setup) -> anyhow::Result<Self> {
        let result = Self::try_start(kind, setup).await;
        result.with_context(|| format!("{} cannot be measured", kind.name()))
    }

    async fn try_start(kind: Kind, setup: &Setup) -> anyhow::Result<Self> {
        anyhow::ensure!(setup.nodes == 1 || kind.has_users(), "several nodes are made of ciqadamq only");
        let places = Place::several(setup.nodes)?;
        let token = users::random();
        let program = kind.program(setup.own.as_deref());
        let mut broker = Self {
            kind,
            version: version(kind, &program),
            addrs: places.iter().map(|place| place.mqtt).collect(),
            users: Rc::new(Users::anonymous(setup.devices_per_user)),
            running: Vec::new(),
            epmd: None,
            dir: tempfile::Builder::new().prefix("ciqadamq-perf-").tempdir()?,
        };
        if kind == Kind::Rabbitmq {
            broker.epmd = Some(rabbitmq::start_epmd(&places[0]).await?);
            broker.version = rabbitmq::version(&program, broker.dir.path(), &places[0]);
        }
        for node in 0..places.len() {
            let dir = broker.node_dir(node);
            fs::create_dir(&dir)?;
            let log = File::create(dir.join("log"))?;
            let mut command = Command::new(&program);
            command.current_dir(&dir).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
            configure(kind, &dir, &places, node, setup, &token, &mut command)?;
            if kind.is_own() {
                command.envs(setup.env.iter().map(|(name, value)| (name, value)));
            }
            broker.launch(&mut command, setup, &program)?;
        }
        broker.wait(&places).await?;
        if kind.has_users() {
            let api = places[0].api;
            broker.users = Rc::new(Users::provision(api, &token, setup.devices_per_user, setup.users).await?);
        }
        Ok(broker)
    }

    fn launch(&mut self, command: &mut Command, setup: &Setup, program: &Path) -> anyhow::Result<()> {
        // What is started has the cores of who starts it.
        if let Some((broker, _)) = &setup.cores {
            process::pin(broker);
        }
        let child = Started::new(command);
        if let Some((_, load)) = &setup.cores {
            process::pin(load);
        }
        let child =
            child.with_context(|| format!("`{}` cannot be started; {}", program.display(), self.kind.remedy()))?;
        self.running.push(child);
        Ok(())
    }

    async fn wait(&mut self, places: &[Place]) -> anyhow::Result<()> {
        let began = Instant::now();
        for (node, place) in places.iter().enumerate() {
            while !self.takes_clients(place).await {
                if let Some(status) = self.running[node].try_wait()? {
                    bail!("node {} ended with {status}:\n{}", node + 1, self.log(node));
                }
                if began.elapsed() > START {
                    bail!("node {} is not ready after {START:?}:\n{}", node + 1, self.log(node));
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    async fn takes_clients(&self, place: &Place) -> bool {
        let probe = async {
            if self.kind.is_own() {
                return users::is_fine(place.api, "/ready").await;
            }
            if self.kind == Kind::Ciqadamq {
                // It does not say when it is ready.
                return users::is_fine(place.api, "/health").await && TcpStream::connect(place.mqtt).await.is_ok();
            }
            Connection::open(place.mqtt, "perf-probe", self.users.backend()).await.is_ok()
        };
        tokio::time::timeout(PROBE, probe).await.unwrap_or(false)
    }

    /// Its processes.
    pub fn pids(&self) -> Vec<u32> {
        self.nodes().concat()
    }

    /// The processes of each node whose costs are the broker's.
    pub fn nodes(&self) -> Vec<Vec<u32>> {
        let pids = self.running.iter().map(Started::pids);
        if self.kind == Kind::Rabbitmq {
            return pids.map(|pids| rabbitmq::working(pids, process::name)).collect();
        }
        pids.collect()
    }

    fn node_dir(&self, node: usize) -> PathBuf {
        self.dir.path().join((node + 1).to_string())
    }

    fn log(&self, node: usize) -> String {
        fs::read_to_string(self.node_dir(node).join("log")).unwrap_or_default()
    }

    /// Ends it in order; after a while it is killed.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.running.iter().for_each(Started::terminate);
        let began = Instant::now();
        for node in &mut self.running {
            while node.try_wait()?.is_none() && began.elapsed() < END {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }
}

/// A program that the environment names.
fn given(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from)
}

/// What it calls itself, on one line.
fn version(kind: Kind, program: &Path) -> String {
    let argument = if kind == Kind::Mosquitto { "-h" } else { "--version" };
    if matches!(kind, Kind::Rabbitmq | Kind::Ciqadamq) {
        // Asked for its version, it starts; RabbitMQ has a tool that is asked later.
        return String::new();
    }
    // It is for the chart's legend; the measurement goes on without.
    let text = process::output(Command::new(program).arg(argument), VERSION).unwrap_or_default();
    let digits = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    text.split_whitespace().find(digits).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

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
                running: vec![child],
                epmd: None,
                dir: tempfile::tempdir().unwrap(),
            };
            let began = Instant::now();
            assert!(!broker.takes_clients(&Place::at(addr)).await);
            assert!(began.elapsed() < 5 * PROBE);
        }
    }

    #[tokio::test]
    async fn a_broker_that_is_not_there_is_named() {
        let setup = Setup { own: Some("/nowhere/broker".into()), ..Setup::of(1) };
        let error = Broker::start(Kind::Own, &setup).await.err().unwrap();
        assert!(format!("{error:#}").contains("/nowhere/broker"), "{error:#}");
    }

    #[test]
    fn a_peer_that_is_not_there_can_be_had() {
        let peers = Kind::value_variants().iter().filter(|kind| !kind.is_own());
        for peer in peers {
            assert!(peer.remedy().contains("PERF_"), "{}: {}", peer.name(), peer.remedy());
        }
    }
}
