//! `cargo xtask perf-resources`: what growing numbers of clients cost, idle and with messages.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use indicatif::ProgressBar;

use crate::broker::{Broker, Kind};
use crate::chart::{Chart, Line, Panel, machine};
use crate::load::{Fleet, Outcome, PAYLOAD_MIN, Phase};
use crate::sweep::{bar, with_qos};
use crate::{Common, kinds, process, table};

/// How to ramp.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Numbers of connected, subscribed clients, in rising order
    #[arg(long, env = "PERF_RES_SUBS", value_delimiter = ',', default_value = "0,1000,2500,5000,7500,10000")]
    subs: Vec<usize>,
    /// Messages per second that each client gets
    #[arg(long, env = "PERF_RES_MSG_RATE", default_value_t = 10)]
    rate: u64,
    /// Bytes of a message's payload
    #[arg(long, env = "PERF_RES_PAYLOAD", default_value_t = 64)]
    payload: usize,
    /// Seconds before the first sample
    #[arg(long, env = "PERF_SETTLE_SECS", default_value_t = 10)]
    settle_secs: u64,
    /// Samples at each number and workload
    #[arg(long, env = "PERF_SAMPLES", default_value_t = 3)]
    samples: usize,
    /// Seconds of a sample
    #[arg(long, env = "PERF_SAMPLE_SECS", default_value_t = 3)]
    sample_secs: u64,
    /// Clients that publish
    #[arg(long, env = "PERF_PUBLISHERS", default_value_t = 4)]
    publishers: usize,
    /// The same against another broker, drawn along; may be repeated
    #[arg(long, value_enum)]
    peer: Vec<Kind>,
    /// Leave our broker out
    #[arg(long, requires = "peer")]
    only_peers: bool,
}

/// Nothing, or messages of this QoS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Workload {
    Idle,
    Messages(u8),
}

const WORKLOADS: [Workload; 3] = [Workload::Idle, Workload::Messages(1), Workload::Messages(2)];

impl Workload {
    fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Messages(1) => "qos1",
            Self::Messages(_) => "qos2",
        }
    }

    fn qos(self) -> u8 {
        match self {
            Self::Idle => 0,
            Self::Messages(qos) => qos,
        }
    }
}

/// What one process, or all together, cost during a sample.
#[derive(Debug)]
struct Sample {
    kind: Kind,
    workload: Workload,
    subs: usize,
    /// `None`: all nodes together
    node: Option<usize>,
    number: usize,
    cpu_percent: Option<f64>,
    resident_mb: Option<f64>,
    // of the whole workload, the same in each of its samples
    delivered_per_s: Option<f64>,
    p99_ms: Option<f64>,
}

const HEAD: [&str; 8] =
    ["broker", "clients", "node", "sample", "cpu_percent", "resident_mb", "delivered_per_s", "p99_ms"];

/// Measures, and writes a CSV and a chart for each workload.
pub async fn run(args: &Args) -> anyhow::Result<()> {
    let kinds = kinds(&args.peer, args.only_peers);
    anyhow::ensure!(args.payload >= PAYLOAD_MIN, "--payload: at least {PAYLOAD_MIN} bytes");
    anyhow::ensure!(
        args.publishers > 0 && args.samples > 0 && args.sample_secs > 0 && args.rate > 0,
        "0 is not enough"
    );
    anyhow::ensure!(args.subs.is_sorted(), "--subs: the numbers have to rise");
    for kind in kinds.iter().filter(|kind| kind.qos_max() < 2) {
        println!("{}: not measured at QoS 2, which it does not grant", kind.name());
    }
    let progress = bar((args.subs.len() * kinds.len()) as u64)?;
    let mut samples = Vec::new();
    for kind in &kinds {
        progress.set_prefix(kind.name());
        samples.extend(ramp(args, *kind, &progress).await?);
    }
    progress.finish_and_clear();
    for workload in WORKLOADS {
        let of: Vec<_> = samples.iter().filter(|sample| sample.workload == workload).collect();
        if of.is_empty() {
            continue;
        }
        let rows: Vec<_> = of.iter().map(|sample| sample.cells()).collect();
        let name = format!("perf-resources-{}", workload.name());
        table::write(&args.common.result(&format!("{name}.csv"))?, &HEAD, &rows)?;
        chart(args, &kinds, workload, &of).write(&args.common.result(&format!("{name}.svg"))?)?;
    }
    Ok(())
}

async fn ramp(args: &Args, kind: Kind, progress: &ProgressBar) -> anyhow::Result<Vec<Sample>> {
    let most = args.subs.iter().max().copied().unwrap_or_default();
    progress.set_message("starts");
    let broker = Broker::start(kind, &args.common.setup(most.max(1))).await?;
    // At QoS 2 subscriptions a message arrives with the QoS it was sent with.
    let mut fleet = Fleet::new(&broker.addrs, &broker.users, kind.qos_max())?;
    let mut all = Vec::new();
    for subs in &args.subs {
        let place = || format!("{}, {subs} clients", kind.name());
        fleet.grow(*subs, progress).await.with_context(place)?;
        for workload in WORKLOADS.into_iter().filter(|workload| workload.qos() <= kind.qos_max()) {
            progress.set_message(format!("{subs} clients, {}", workload.name()));
            let sampler = sample(args, &broker, workload, *subs);
            let (Workload::Messages(qos), true) = (workload, *subs > 0) else {
                all.extend(sampler.await);
                continue;
            };
            let devices = u64::from(args.common.devices_per_user);
            let rate = (args.rate * *subs as u64 / devices).max(1);
            let time = Duration::from_secs(args.settle_secs + args.sample_secs * args.samples as u64);
            let phase = Phase {
                messages: rate * time.as_secs(),
                payload: args.payload,
                qos,
                rate,
                publishers: args.publishers,
                limit: Some(time),
            };
            let (outcome, mut samples) = tokio::join!(fleet.publish(&phase, progress), sampler);
            let outcome: Outcome = outcome.with_context(place)?;
            for sample in &mut samples {
                sample.delivered_per_s = Some(outcome.per_second());
                sample.p99_ms = Some(outcome.latency_ms(0.99));
            }
            if outcome.delivered < outcome.expected {
                progress.println(format!("{}: {} of {} delivered", place(), outcome.delivered, outcome.expected));
            }
            all.extend(samples);
        }
        progress.inc(1);
    }
    drop(fleet);
    broker.stop().await?;
    Ok(all)
}

/// Waits until things have settled and takes the samples.
async fn sample(args: &Args, broker: &Broker, workload: Workload, subs: usize) -> Vec<Sample> {
    tokio::time::sleep(Duration::from_secs(args.settle_secs)).await;
    let mut samples = Vec::new();
    let pids = broker.pids();
    // Per node, then the sum; with one node the sum says it all.
    let nodes = broker.nodes();
    let groups: Vec<(Option<usize>, &[u32])> = match nodes.len() {
        1 => vec![(None, &pids)],
        _ => (1..).map(Some).zip(nodes.iter().map(Vec::as_slice)).chain([(None, pids.as_slice())]).collect(),
    };
    for number in 1..=args.samples {
        let before: Vec<_> = groups.iter().map(|(_, pids)| (Instant::now(), process::cpu(pids))).collect();
        tokio::time::sleep(Duration::from_secs(args.sample_secs)).await;
        for ((node, pids), (began, cpu)) in groups.iter().zip(before) {
            let cpu = process::cpu(pids).zip(cpu).map(|(now, then)| now.saturating_sub(then).as_secs_f64());
            samples.push(Sample {
                kind: broker.kind,
                workload,
                subs,
                node: *node,
                number,
                cpu_percent: cpu.map(|secs| 100.0 * secs / began.elapsed().as_secs_f64()),
                resident_mb: process::resident_kb(pids).map(|kb| kb as f64 / 1024.0),
                delivered_per_s: None,
                p99_ms: None,
            });
        }
    }
    samples
}

impl Sample {
    fn cells(&self) -> Vec<String> {
        vec![
            self.kind.name().into(),
            self.subs.to_string(),
            self.node.map_or_else(|| "total".into(), |node| node.to_string()),
            self.number.to_string(),
            table::number(self.cpu_percent),
            table::number(self.resident_mb),
            table::number(self.delivered_per_s),
            table::number(self.p99_ms),
        ]
    }
}

fn chart(args: &Args, kinds: &[Kind], workload: Workload, samples: &[&Sample]) -> Chart {
    let panel = |title: &str, value: &dyn Fn(&Sample) -> Option<f64>| {
        let line = |(color, kind): (usize, &Kind)| {
            let point = |subs: &usize| {
                let same = samples.iter().filter(|s| (s.kind, s.subs, s.node) == (*kind, *subs, None));
                Some((*subs as f64, table::median(same.filter_map(|s| value(s)))?))
            };
            let points = args.subs.iter().filter_map(point).collect();
            Line { name: kind.name().into(), color, dashed: false, points }
        };
        let lines = with_qos(kinds, workload.qos()).map(line).collect();
        Panel { title: title.into(), x: "connected, subscribed clients".into(), lines }
    };
    let mut panels = vec![
        panel("broker CPU in % of one core (lower is better)", &|s| s.cpu_percent),
        panel("broker memory, resident, in MB (lower is better)", &|s| s.resident_mb),
    ];
    let what = match workload {
        Workload::Idle => "nobody sends".to_owned(),
        Workload::Messages(qos) => {
            panels.push(panel("deliveries per second (wanted: clients × rate)", &|s| s.delivered_per_s));
            panels.push(panel("latency, p99, in ms (lower is better)", &|s| s.p99_ms));
            format!("each gets {} messages of {} bytes a second at QoS {qos}", args.rate, args.payload)
        }
    };
    Chart {
        title: format!("What connected clients cost while {what}"),
        subtitle: format!("median of {} samples of {} s; {}", args.samples, args.sample_secs, machine()),
        panels,
    }
}
