//! The measurements of this repository: `cargo xtask perf`, `perf-resources`, `perf-connects`, `perf-soak` and `flamegraph`.
//!
//! A workspace of its own: what draws charts must not change what the broker is built from. A broker and the load run on this machine,
//! each on cores of its own where there are two; the results are CSV files, and charts that need no caption.

mod broker;
mod chart;
mod config;
mod connects;
mod flame;
mod load;
mod mqtt;
mod process;
mod rabbitmq;
mod resources;
mod soak;
mod stacks;
mod sweep;
mod table;
mod users;

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{Args, Parser, Subcommand};

use broker::{Kind, Setup};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Measures the broker", disable_version_flag = true)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Throughput, latency and CPU of deliveries for growing numbers of subscribers
    Perf(sweep::Args),
    /// CPU and memory for growing numbers of clients: idle, and with QoS 1 and QoS 2 messages
    PerfResources(resources::Args),
    /// How long clients wait to get in and to subscribe, on a cluster
    PerfConnects(connects::Args),
    /// Many clients and as many messages as are sustained, for minutes: losses, and memory over time
    PerfSoak(soak::Args),
    /// Where the CPU time goes, as a flame graph
    Flamegraph(flame::Args),
}

/// What all of them know.
#[derive(Debug, Args)]
struct Common {
    /// The broker's binary; `cargo xtask` builds and names it
    #[arg(long, env = "CIQADAMQ_BIN")]
    binary: Option<PathBuf>,
    /// Where the results go
    #[arg(long, default_value = ".")]
    out: PathBuf,
    /// Devices (connections) of each user
    #[arg(long, env = "PERF_DEVICES_PER_USER", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    devices_per_user: u16,
    /// Cores for the broker, as in "0" or "0,1"; the load gets the others. Default: the first, if there are two
    #[arg(long, env = "PERF_BROKER_CORES", value_delimiter = ',')]
    broker_cores: Vec<usize>,
    /// NAME=VALUE for the environment of our broker; may be repeated
    #[arg(long, value_parser = variable)]
    env: Vec<(String, String)>,
    /// KEY=VALUE for our broker's `[mqtt]`, such as durability="memory"; may be repeated
    #[arg(long, value_parser = variable)]
    mqtt: Vec<(String, String)>,
    /// Nodes of a cluster, clients and publishers spread over all; for ciqadamq only. Their CPU time is all nodes' together
    #[arg(long, env = "PERF_NODES", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
}

impl Common {
    fn setup(&self, clients: usize) -> Setup {
        let devices_per_user = usize::from(self.devices_per_user);
        Setup {
            own: self.binary.clone(),
            cores: self.cores(),
            devices_per_user,
            users: clients.div_ceil(devices_per_user),
            env: self.env.clone(),
            nodes: self.nodes,
            mqtt: lines(&self.mqtt),
            cluster: String::new(),
        }
    }

    fn cores(&self) -> Option<(Vec<usize>, Vec<usize>)> {
        let all = std::thread::available_parallelism().map_or(1, usize::from);
        if all < 2 || !cfg!(target_os = "linux") {
            return None;
        }
        let broker = if self.broker_cores.is_empty() { vec![0] } else { self.broker_cores.clone() };
        let load: Vec<usize> = (0..all).filter(|core| !broker.contains(core)).collect();
        // With every core given to the broker, both share them.
        let load = if load.is_empty() { broker.clone() } else { load };
        Some((broker, load))
    }

    /// A path in the directory of results, which is made.
    fn result(&self, name: &str) -> anyhow::Result<PathBuf> {
        std::fs::create_dir_all(&self.out).with_context(|| self.out.display().to_string())?;
        Ok(self.out.join(name))
    }
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE is wanted")?;
    Ok((name.into(), value.into()))
}

/// As settings in a table.
fn lines(settings: &[(String, String)]) -> String {
    settings.iter().map(|(key, value)| format!("{key} = {value}\n")).collect()
}

/// Our broker and the peers, in the order of the charts.
fn kinds(peers: &[Kind], only_peers: bool) -> Vec<Kind> {
    let mut kinds = if only_peers { Vec::new() } else { vec![Kind::Own] };
    for peer in peers {
        if !kinds.contains(peer) {
            kinds.push(*peer);
        }
    }
    kinds
}

/// Ctrl-C, or what a supervisor sends.
#[cfg(unix)]
async fn asked_to_end() -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let hear = |kind| signal(kind).context("signals cannot be heard");
    let (mut interrupt, mut terminate) = (hear(SignalKind::interrupt())?, hear(SignalKind::terminate())?);
    let mut hang_up = hear(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hang_up.recv() => {}
    }
    Ok(())
}

#[cfg(not(unix))]
async fn asked_to_end() -> anyhow::Result<()> {
    tokio::signal::ctrl_c().await.context("Ctrl-C cannot be handled")
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    #[cfg(unix)]
    rlimit::increase_nofile_limit(u64::from(u16::MAX)).context("limit of open files")?;
    // One thread: the load must not take from the broker what it measures.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _household = process::Household::new();
    let work = async {
        tokio::select! {
            result = async {
                match &cli.task {
                    Task::Perf(args) => sweep::run(args).await,
                    Task::PerfResources(args) => resources::run(args).await,
                    Task::PerfConnects(args) => connects::run(args).await,
                    Task::PerfSoak(args) => soak::run(args).await,
                    Task::Flamegraph(args) => flame::run(args).await,
                }
            } => result,
            // Dropping what runs ends the brokers.
            result = asked_to_end() => result.and_then(|()| bail!("ended before it was done")),
        }
    };
    runtime.block_on(tokio::task::LocalSet::new().run_until(work))
}
