//! `cargo xtask perf-connects`: how long clients wait to get in and to subscribe, on a cluster whose nodes all have to agree.
//!
//! All nodes and the load share the machine. Clients come one at a time, or so many at once, round the nodes; each connects,
//! subscribes one filter of its own, and stays (or goes, with `--leave`). Before that nobody does anything for a while, and
//! what the nodes need for that is measured too.

use std::cell::RefCell;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use tokio::task::spawn_local;

use crate::broker::{Broker, Kind, Setup};
use crate::mqtt::Connection;
use crate::users::{self, Users};
use crate::{lines, process, table, variable};

/// Users, so that no bound of a single one is reached.
const USERS: usize = 64;

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
    /// How many come and stay at most; with so many it ends before the time
    #[arg(long, default_value_t = 6000)]
    clients: usize,
    /// Each client goes when it has subscribed: the nodes agree on that as well, meanwhile
    #[arg(long)]
    leave: bool,
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
    let setup = Setup { own: args.binary.clone(), nodes: args.nodes, cluster: args.settings(), ..Setup::of(USERS) };
    let broker = Broker::start(Kind::Own, &setup).await?;
    println!("{} nodes of ciqadamq {}, idle for {} s:", args.nodes, broker.version, args.idle_secs);
    let idle = idle(&broker, Duration::from_secs(args.idle_secs)).await;
    for (node, percent) in (1..).zip(&idle) {
        println!("  node {node}: {} % CPU", table::number(*percent));
    }
    // Of the busiest node: the leader.
    let idle = idle.into_iter().flatten().max_by(f64::total_cmp);
    let mut rows = Vec::new();
    println!("{}", HEAD.join("  "));
    // The first login of a user on a node costs a password hash, and is not what is measured.
    let load = Load { nodes: &broker.addrs, users: &broker.users, leave: args.leave, most: args.clients };
    load.come(16, Duration::from_secs(2)).await?;
    for at_once in &args.at_once {
        quiet(&broker).await;
        let seen = load.come(*at_once, Duration::from_secs(args.secs)).await?;
        let ms = |histogram: &Histogram<u64>, quantile: f64| {
            table::number(Some(histogram.value_at_quantile(quantile) as f64 / 1000.0))
        };
        let row = vec![
            args.nodes.to_string(),
            at_once.to_string(),
            seen.both.len().to_string(),
            format!("{:.0}", seen.both.len() as f64 / seen.took.as_secs_f64()),
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
    /// from the first CONNECT to the last SUBACK
    took: Duration,
    /// those who stay
    here: Vec<Connection>,
}

/// Who comes, and where to.
struct Load<'a> {
    nodes: &'a [SocketAddr],
    users: &'a Rc<Users>,
    leave: bool,
    most: usize,
}

impl Load<'_> {
    async fn come(&self, at_once: usize, during: Duration) -> anyhow::Result<Seen> {
        let histogram = || Histogram::new_with_bounds(1, 120_000_000, 3).context("histogram");
        let seen = Seen { connect: histogram()?, both: histogram()?, took: Duration::ZERO, here: Vec::new() };
        let seen = Rc::new(RefCell::new(seen));
        let start = Instant::now();
        let run = users::random();
        let clients: Vec<_> = (0..at_once)
            .map(|client| {
                let (nodes, users, seen, run) = (self.nodes.to_vec(), self.users.clone(), seen.clone(), run.clone());
                let (leave, most) = (self.leave, self.most);
                spawn_local(async move {
                    for count in 0.. {
                        let began = Instant::now();
                        // Those who are on their way count, too.
                        if began >= start + during || (!leave && seen.borrow().here.len() + at_once > most) {
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
                        seen.took = start.elapsed();
                        if !leave {
                            seen.here.push(connection);
                        }
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
}

/// Waits until the nodes are done with those who went.
async fn quiet(broker: &Broker) {
    let needed = || broker.nodes().iter().filter_map(|pids| process::cpu(pids)).sum::<Duration>();
    let pause = Duration::from_secs(2);
    for _ in 0..30 {
        let before = needed();
        tokio::time::sleep(pause).await;
        if needed().saturating_sub(before) < pause / 5 {
            return;
        }
    }
}

/// CPU of each node while nobody does anything, in percent of one core.
async fn idle(broker: &Broker, during: Duration) -> Vec<Option<f64>> {
    // The last of what a start does.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let cpu = || broker.nodes().iter().map(|pids| process::cpu(pids)).collect::<Vec<_>>();
    let before = cpu();
    tokio::time::sleep(during).await;
    let percent = |(before, after): (Option<Duration>, Option<Duration>)| {
        Some(after?.saturating_sub(before?).as_secs_f64() / during.as_secs_f64() * 100.0)
    };
    before.into_iter().zip(cpu()).map(percent).collect()
}
