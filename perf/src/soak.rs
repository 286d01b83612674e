//! `cargo xtask perf-soak`: many clients, as many messages as are sustained, for minutes: nothing is lost, and memory stays what it is.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use crate::broker::{Broker, Kind};
use crate::chart::{Chart, Line, Panel, machine};
use crate::load::{Fleet, PAYLOAD_MIN, Phase};
use crate::sweep::bar;
use crate::{Common, process, table};

/// How many, and how long.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Connected, subscribed clients
    #[arg(long, env = "PERF_SOAK_SUBS", default_value_t = 10_000)]
    subs: usize,
    /// Seconds in which messages are published as fast as they are acknowledged
    #[arg(long, env = "PERF_SOAK_SECS", default_value_t = 600)]
    secs: u64,
    /// QoS of the messages
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(..=2))]
    qos: u8,
    /// Bytes of a message's payload
    #[arg(long, default_value_t = 256)]
    payload: usize,
    /// Messages between two samples
    #[arg(long, default_value_t = 50_000)]
    messages: u64,
    /// Clients that publish
    #[arg(long, env = "PERF_PUBLISHERS", default_value_t = 4)]
    publishers: usize,
}

/// What was seen after some messages.
struct Sample {
    at: Duration,
    resident_mb: Option<f64>,
    cpu_percent: Option<f64>,
    delivered: u64,
    delivered_per_s: f64,
    p99_ms: f64,
}

const HEAD: [&str; 6] = ["seconds", "resident_mb", "cpu_percent", "delivered", "delivered_per_s", "p99_ms"];

/// Measures, and writes a CSV and a chart. Fails if a message is not delivered.
pub async fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(args.payload >= PAYLOAD_MIN, "--payload: at least {PAYLOAD_MIN} bytes");
    ensure!(args.subs > 0 && args.publishers > 0 && args.messages > 0, "0 is not enough");
    let progress = bar(args.secs)?;
    progress.set_message("connects");
    let broker = Broker::start(Kind::Own, &args.common.setup(args.subs)).await?;
    let mut fleet = Fleet::new(&broker.addrs, &broker.users, args.qos)?;
    fleet.grow(args.subs, &progress).await?;
    let (began, mut samples) = (Instant::now(), Vec::<Sample>::new());
    while began.elapsed() < Duration::from_secs(args.secs) {
        let (since, before) = (Instant::now(), process::cpu(&broker.pids()));
        let phase = Phase {
            messages: args.messages,
            payload: args.payload,
            qos: args.qos,
            rate: 0,
            publishers: args.publishers,
            limit: None,
        };
        let outcome = fleet.publish(&phase, &progress).await.with_context(|| format!("after {:?}", began.elapsed()))?;
        let lost = outcome.expected.saturating_sub(outcome.delivered);
        ensure!(lost == 0, "{lost} of {} deliveries were lost after {:?}", outcome.expected, began.elapsed());
        let cpu = process::cpu(&broker.pids()).zip(before).map(|(now, then)| now.saturating_sub(then).as_secs_f64());
        samples.push(Sample {
            at: began.elapsed(),
            resident_mb: process::resident_kb(&broker.pids()).map(|kb| kb as f64 / 1024.0),
            cpu_percent: cpu.map(|secs| 100.0 * secs / since.elapsed().as_secs_f64()),
            delivered: outcome.delivered,
            delivered_per_s: outcome.per_second(),
            p99_ms: outcome.latency_ms(0.99),
        });
        progress.set_position(began.elapsed().as_secs());
        progress.set_message(format!("{:.0} deliveries/s", outcome.per_second()));
    }
    progress.finish_and_clear();
    drop(fleet);
    broker.stop().await?;
    let rows: Vec<_> = samples.iter().map(Sample::cells).collect();
    table::write(&args.common.result("perf-soak.csv")?, &HEAD, &rows)?;
    chart(args, &samples).write(&args.common.result("perf-soak.svg")?)
}

impl Sample {
    fn cells(&self) -> Vec<String> {
        vec![
            self.at.as_secs().to_string(),
            table::number(self.resident_mb),
            table::number(self.cpu_percent),
            self.delivered.to_string(),
            table::number(Some(self.delivered_per_s)),
            table::number(Some(self.p99_ms)),
        ]
    }
}

fn chart(args: &Args, samples: &[Sample]) -> Chart {
    let panel = |title: &str, value: &dyn Fn(&Sample) -> Option<f64>| {
        let points = samples.iter().filter_map(|s| Some((s.at.as_secs_f64(), value(s)?))).collect();
        let lines = vec![Line { name: Kind::Own.name().into(), color: 0, dashed: false, points }];
        Panel { title: title.into(), x: "seconds".into(), lines }
    };
    let delivered: u64 = samples.iter().map(|s| s.delivered).sum();
    Chart {
        title: format!("{} subscribed clients, QoS {}, as fast as is sustained", args.subs, args.qos),
        subtitle: format!("{delivered} deliveries of {} bytes, none lost; {}", args.payload, machine()),
        panels: vec![
            panel("broker memory, resident, in MB (wanted: flat)", &|s| s.resident_mb),
            panel("deliveries per second (higher is better)", &|s| Some(s.delivered_per_s)),
            panel("broker CPU in % of one core", &|s| s.cpu_percent),
            panel("latency, p99, in ms (lower is better)", &|s| Some(s.p99_ms)),
        ],
    }
}
