//! `cargo xtask perf-connects`: how long clients wait to get in and to subscribe, on a cluster whose nodes all have to agree.
//!
//! All nodes and the load share the machine. Clients come one at a time, or so many at once, round the nodes; each connects,
//! subscribes one filter of its own, and goes. Before that nobody does anything for a while, and what the nodes need for
//! that is measured too.

use std::cell::RefCell;
use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use hdrhistogram::Histogram;
use tempfile::TempDir;
use tokio::task::spawn_local;

use crate::mqtt::Connection;
use crate::process::{self, Started};
use crate::users::{self, Users};
use crate::{table, variable};

/// How long all nodes may take to be ready.
const START: Duration = Duration::from_secs(60);
/// Users, so that no bound of a single one is reached.
const USERS: usize = 64;
/// MQTT, WebSocket, API, gRPC, raft.
const PORTS: usize = 5;

/// How to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The broker's binary; `cargo xtask` builds and names it
    #[arg(long, env = "CIQADAMQ_BIN")]
    binary: Option<PathBuf>,
    /// Where the results go
    #[arg(long, default_value = ".")]
    out: PathBuf,
    /// Nodes; 1 is a broker outside a cluster
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
    /// Clients at once
    #[arg(long, value_delimiter = ',', default_value = "1,16,256")]
    at_once: Vec<usize>,
    /// For how long they come
    #[arg(long, default_value_t = 10)]
    secs: u64,
    /// For how long nobody comes before that
    #[arg(long, default_value_t = 20)]
    idle_secs: u64,
    /// KEY=VALUE for `[cluster]`, such as election_tick=300; may be repeated
    #[arg(long, value_parser = variable)]
    cluster: Vec<(String, String)>,
    /// KEY=VALUE for `[cluster.raft]`, such as tick_ms=2; may be repeated
    #[arg(long, value_parser = variable)]
    raft: Vec<(String, String)>,
}

impl Args {
    /// What stands at the end of `[cluster]`.
    fn settings(&self) -> String {
        let lines = |settings: &[(String, String)]| -> String {
            settings.iter().map(|(key, value)| format!("{key} = {value}\n")).collect()
        };
        format!("{}[cluster.raft]\n{}", lines(&self.cluster), lines(&self.raft))
    }
}

const HEAD: [&str; 10] = [
    "nodes",
    "at_once",
    "clients",
    "per_second",
    "connect_p50_ms",
    "connect_p99_ms",
    "with_subscribe_p50_ms",
    "with_subscribe_p99_ms",
    "slowest_ms",
    "idle_cpu_percent",
];

/// Measures, and prints what is written.
pub async fn run(args: &Args) -> anyhow::Result<()> {
    let binary = args.binary.as_deref().unwrap_or(Path::new("ciqadamq"));
    let nodes = Nodes::start(binary, args.nodes, &args.settings()).await?;
    println!("{} nodes of {}, idle for {} s:", args.nodes, binary.display(), args.idle_secs);
    let idle = nodes.idle(Duration::from_secs(args.idle_secs)).await;
    for (node, percent) in (1..).zip(&idle) {
        println!("  node {node}: {} % CPU", table::number(*percent));
    }
    // Of the busiest node: the leader.
    let idle = idle.into_iter().flatten().max_by(f64::total_cmp);
    let users = Rc::new(Users::provision(nodes.api(), &nodes.token, 1, USERS).await?);
    let mut rows = Vec::new();
    println!("{}", HEAD.join("  "));
    // The first login of a user on a node costs a password hash, and is not what is measured.
    come(&nodes.mqtt, &users, 16, Duration::from_secs(2)).await?;
    for at_once in &args.at_once {
        let seen = come(&nodes.mqtt, &users, *at_once, Duration::from_secs(args.secs)).await?;
        let ms = |histogram: &Histogram<u64>, quantile: f64| {
            table::number(Some(histogram.value_at_quantile(quantile) as f64 / 1000.0))
        };
        let row = vec![
            args.nodes.to_string(),
            at_once.to_string(),
            seen.both.len().to_string(),
            format!("{:.0}", seen.both.len() as f64 / args.secs as f64),
            ms(&seen.connect, 0.5),
            ms(&seen.connect, 0.99),
            ms(&seen.both, 0.5),
            ms(&seen.both, 0.99),
            ms(&seen.both, 1.0),
            table::number(idle),
        ];
        println!("{}", row.join("  "));
        rows.push(row);
    }
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    table::write(&args.out.join("perf-connects.csv"), &HEAD, &rows)
}

/// How long clients waited. Microseconds.
struct Seen {
    connect: Histogram<u64>,
    both: Histogram<u64>,
}

async fn come(nodes: &[SocketAddr], users: &Rc<Users>, at_once: usize, during: Duration) -> anyhow::Result<Seen> {
    let histogram = || Histogram::new_with_bounds(1, 120_000_000, 3).context("histogram");
    let seen = Rc::new(RefCell::new(Seen { connect: histogram()?, both: histogram()? }));
    let end = Instant::now() + during;
    let run = users::random();
    let clients: Vec<_> = (0..at_once)
        .map(|client| {
            let (nodes, users, seen, run) = (nodes.to_vec(), users.clone(), seen.clone(), run.clone());
            spawn_local(async move {
                for count in 0.. {
                    let began = Instant::now();
                    if began >= end {
                        break;
                    }
                    let addr = nodes[(client + count) % nodes.len()];
                    let user = (client * 7 + count) % USERS;
                    let id = format!("{run}-{client}-{count}");
                    let mut connection = Connection::open(addr, &id, users.login(user)).await?;
                    let connected = began.elapsed();
                    connection.subscribe(&users.topic(user), 1).await?;
                    let mut seen = seen.borrow_mut();
                    // Nothing takes as long as the histogram's range.
                    seen.connect.saturating_record(connected.as_micros() as u64);
                    seen.both.saturating_record(began.elapsed().as_micros() as u64);
                }
                Ok::<_, std::io::Error>(())
            })
        })
        .collect();
    for client in clients {
        client.await?.context("a client did not get in")?;
    }
    Rc::into_inner(seen).map(RefCell::into_inner).context("a client is left")
}

/// Nodes on 127.0.0.1, .2 and so on, all with the same ports.
struct Nodes {
    mqtt: Vec<SocketAddr>,
    api: Vec<SocketAddr>,
    token: String,
    running: Vec<Started>,
    dir: TempDir,
}

impl Nodes {
    async fn start(binary: &Path, count: u8, settings: &str) -> anyhow::Result<Self> {
        let ports = free_ports(count)?;
        let at = |port: usize| (1..=count).map(|node| SocketAddr::new(ip(node), ports[port])).collect::<Vec<_>>();
        let mut nodes = Self {
            mqtt: at(0),
            api: at(2),
            token: users::random(),
            running: Vec::new(),
            dir: tempfile::Builder::new().prefix("ciqadamq-perf-").tempdir()?,
        };
        for node in 1..=count {
            let started = nodes.launch(binary, node, count, ports, settings);
            nodes.running.push(started.with_context(|| format!("`{}` cannot be started", binary.display()))?);
        }
        let began = Instant::now();
        for node in 0..usize::from(count) {
            while !users::ready(nodes.api[node]).await {
                if let Some(status) = nodes.running[node].try_wait()? {
                    bail!("node {} ended with {status}:\n{}", node + 1, nodes.log(node + 1));
                }
                if began.elapsed() > START {
                    bail!("node {} is not ready after {START:?}:\n{}", node + 1, nodes.log(node + 1));
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(nodes)
    }

    fn launch(
        &self,
        binary: &Path,
        node: u8,
        count: u8,
        ports: [u16; PORTS],
        settings: &str,
    ) -> anyhow::Result<Started> {
        let dir = self.dir.path().join(node.to_string());
        fs::create_dir_all(&dir)?;
        let list = |port: u16| {
            let all: Vec<String> = (1..=count).map(|node| format!("\"{node}@{}:{port}\"", ip(node))).collect();
            all.join(", ")
        };
        let ip = ip(node);
        let [mqtt, ws, api, grpc, raft] = ports;
        let mut text = format!(
            "[mqtt]\ntcp_addr = \"{ip}:{mqtt}\"\nws_addr = \"{ip}:{ws}\"\n[api]\naddr = \"{ip}:{api}\"\n\
             [db]\nurl = \"sled://{}\"\n",
            dir.join("users").display()
        );
        if count > 1 {
            text += &format!(
                "[cluster]\nenabled = true\nnode_id = {node}\nleader_id = 1\n\
                 grpc_laddr = \"{ip}:{grpc}\"\nraft_laddr = \"{ip}:{raft}\"\n\
                 node_grpc_addrs = [{}]\nraft_peer_addrs = [{}]\n{settings}",
                list(grpc),
                list(raft)
            );
        }
        let config = dir.join("ciqadamq.toml");
        fs::write(&config, text)?;
        let log = File::create(dir.join("log"))?;
        let mut command = Command::new(binary);
        command.arg("--config").arg(config).current_dir(&dir);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        command.env("API_TOKEN", &self.token).env("RUST_LOG", "warn");
        // Logins cost a hash once, and are not what is measured.
        command.env("ARGON2_M_COST", "8").env("ARGON2_T_COST", "1");
        Ok(Started::new(&mut command)?)
    }

    fn api(&self) -> SocketAddr {
        self.api[0]
    }

    fn log(&self, node: usize) -> String {
        fs::read_to_string(self.dir.path().join(node.to_string()).join("log")).unwrap_or_default()
    }

    /// CPU of each node while nobody does anything, in percent of one core.
    async fn idle(&self, during: Duration) -> Vec<Option<f64>> {
        // The last of what a start does.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let cpu = || self.running.iter().map(|node| process::cpu(&node.pids())).collect::<Vec<_>>();
        let before = cpu();
        tokio::time::sleep(during).await;
        let percent = |(before, after): (Option<Duration>, Option<Duration>)| {
            Some(after?.saturating_sub(before?).as_secs_f64() / during.as_secs_f64() * 100.0)
        };
        before.into_iter().zip(cpu()).map(percent).collect()
    }
}

fn ip(node: u8) -> IpAddr {
    Ipv4Addr::new(127, 0, 0, node).into()
}

/// Free on the addresses of all nodes.
fn free_ports(nodes: u8) -> anyhow::Result<[u16; PORTS]> {
    let mut held = Vec::new();
    let mut ports = Vec::new();
    // Below the range that outgoing connections take their ports from.
    for port in 10_000 + (std::process::id() % 10_000) as u16..32_000 {
        let all: Result<Vec<_>, _> = (1..=nodes).map(|node| TcpListener::bind((ip(node), port))).collect();
        if let Ok(all) = all {
            held.push(all);
            ports.push(port);
        }
        if let Ok(ports) = ports.as_slice().try_into() {
            return Ok(ports);
        }
    }
    bail!("no free ports")
}
