//! `cargo xtask perf`: messages to growing numbers of subscribers, as fast as they are taken and at a fixed rate.

use std::time::Duration;

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};

use crate::broker::{Broker, Kind};
use crate::chart::{Chart, Line, Panel, machine};
use crate::load::{Fleet, Outcome, PAYLOAD_MIN, Phase};
use crate::{Common, kinds, process, table};

/// How to sweep.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Numbers of subscribers
    #[arg(long, env = "PERF_SUBS", value_delimiter = ',', default_value = "100,500,1000,2500,5000")]
    subs: Vec<usize>,
    /// Messages published for each number, round-robin to the users' topics
    #[arg(long, env = "PERF_MSGS", default_value_t = 10_000)]
    msgs: u64,
    /// Bytes of a message's payload
    #[arg(long, env = "PERF_PAYLOAD", default_value_t = 256)]
    payload: usize,
    /// QoS levels of messages and subscriptions
    #[arg(long, env = "PERF_QOS", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u8).range(0..3))]
    qos: Vec<u8>,
    /// Messages per second of the paced part
    #[arg(long, env = "PERF_RATE", default_value_t = 2_000)]
    rate: u64,
    /// Clients that publish
    #[arg(long, env = "PERF_PUBLISHERS", default_value_t = 1)]
    publishers: usize,
    /// Rounds; the brokers take turns, and the median counts
    #[arg(long, env = "PERF_ROUNDS", default_value_t = 1)]
    rounds: usize,
    /// The same work against another broker, drawn along; may be repeated
    #[arg(long, value_enum)]
    peer: Vec<Kind>,
    /// Leave our broker out
    #[arg(long, requires = "peer")]
    only_peers: bool,
}

const HEAD: [&str; 21] = [
    "broker",
    "version",
    "nodes",
    "subscribers",
    "devices_per_user",
    "qos",
    "pace",
    "rate_per_s",
    "round",
    "payload_bytes",
    "messages",
    "expected",
    "delivered",
    "delivered_per_s",
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "max_ms",
    "cpu_us_per_delivery",
    "connect_cpu_us",
    "kb_per_connection",
];

/// One phase of one broker.
#[derive(Debug)]
struct Row {
    kind: Kind,
    version: String,
    subs: usize,
    qos: u8,
    paced: bool,
    round: usize,
    outcome: Outcome,
    cpu_us: Option<f64>,
    connect_cpu_us: Option<f64>,
    kb: Option<f64>,
}

/// Measures, and writes `perf-results.csv` and `perf-results.svg`.
pub async fn run(args: &Args) -> anyhow::Result<()> {
    let kinds = kinds(&args.peer, args.only_peers);
    anyhow::ensure!(args.payload >= PAYLOAD_MIN, "--payload: at least {PAYLOAD_MIN} bytes");
    anyhow::ensure!(args.publishers > 0 && args.rounds > 0 && args.msgs > 0 && args.rate > 0, "0 is not enough");
    anyhow::ensure!(args.subs.iter().all(|n| *n > 0), "--subs: 0 subscribers receive nothing");
    let runs: usize = args.qos.iter().map(|qos| with_qos(&kinds, *qos).count()).sum();
    anyhow::ensure!(runs > 0, "--qos: none of the brokers to measure grants it");
    for (qos, kind) in args.qos.iter().flat_map(|qos| kinds.iter().map(move |kind| (*qos, *kind))) {
        if qos > kind.qos_max() {
            println!("{}: not measured at QoS {qos}, which it does not grant", kind.name());
        }
    }
    let steps = args.subs.len() * args.rounds * runs;
    let progress = bar(steps as u64)?;
    let mut rows = Vec::new();
    let whole = measure_all(args, &kinds, &progress, &mut rows).await;
    if rows.is_empty() {
        return whole;
    }
    progress.finish_and_clear();
    let cells: Vec<_> = rows.iter().map(|row| row.cells(args)).collect();
    table::write(&args.common.result("perf-results.csv")?, &HEAD, &cells)?;
    chart(args, &kinds, &rows).write(&args.common.result("perf-results.svg")?)?;
    for row in rows.iter().filter(|row| row.outcome.delivered != row.outcome.expected) {
        let Outcome { delivered, expected, .. } = row.outcome;
        println!("{}, {} subscribers, QoS {}: {delivered} of {expected} delivered", row.kind.name(), row.subs, row.qos);
    }
    // What was measured before something failed is written all the same.
    whole
}

async fn measure_all(args: &Args, kinds: &[Kind], progress: &ProgressBar, rows: &mut Vec<Row>) -> anyhow::Result<()> {
    for subs in &args.subs {
        for qos in &args.qos {
            for round in 1..=args.rounds {
                for (_, kind) in with_qos(kinds, *qos) {
                    progress.set_prefix(format!("{}, {subs} subscribers, QoS {qos}", kind.name()));
                    rows.extend(measure(args, *kind, *subs, *qos, round, progress).await?);
                    progress.inc(1);
                }
            }
        }
    }
    Ok(())
}

/// A fresh broker, `subs` clients, the paced and then the unpaced messages.
async fn measure(
    args: &Args,
    kind: Kind,
    subs: usize,
    qos: u8,
    round: usize,
    progress: &ProgressBar,
) -> anyhow::Result<Vec<Row>> {
    progress.set_message("starts");
    let broker = Broker::start(kind, &args.common.setup(subs)).await?;
    let pids = broker.pids();
    let place = || format!("{}, {subs} subscribers, QoS {qos}", kind.name());
    let before = (process::resident_kb(&pids), process::cpu(&pids));
    let mut fleet = Fleet::new(&broker.addrs, &broker.users, qos)?;
    fleet.grow(subs, progress).await.with_context(place)?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let kb = process::resident_kb(&pids).zip(before.0);
    let kb = kb.map(|(now, then)| now.saturating_sub(then) as f64 / subs as f64);
    let connect_cpu_us = each(cpu_between(before.1, process::cpu(&pids)), subs as u64);
    let mut rows = Vec::new();
    for rate in [args.rate, 0] {
        // Paced, a few seconds say as much as many.
        let messages = if rate > 0 { args.msgs.min(rate * 5) } else { args.msgs };
        let phase = Phase { messages, payload: args.payload, qos, rate, publishers: args.publishers, limit: None };
        let cpu = process::cpu(&pids);
        let outcome = fleet.publish(&phase, progress).await.with_context(place)?;
        let cpu_us = each(cpu_between(cpu, process::cpu(&pids)), outcome.delivered);
        let version = broker.version.clone();
        rows.push(Row { kind, version, subs, qos, paced: rate > 0, round, outcome, cpu_us, connect_cpu_us, kb });
    }
    drop(fleet);
    broker.stop().await?;
    Ok(rows)
}

fn cpu_between(before: Option<Duration>, after: Option<Duration>) -> Option<Duration> {
    Some(after?.saturating_sub(before?))
}

/// Microseconds for each.
fn each(cpu: Option<Duration>, count: u64) -> Option<f64> {
    (count > 0).then_some(cpu?.as_secs_f64() * 1e6 / count as f64)
}

/// The brokers that grant a QoS, each with its place among all, which is its colour.
pub fn with_qos(kinds: &[Kind], qos: u8) -> impl Iterator<Item = (usize, &Kind)> {
    kinds.iter().enumerate().filter(move |(_, kind)| qos <= kind.qos_max())
}

/// Gone where there is no terminal.
pub fn bar(steps: u64) -> anyhow::Result<ProgressBar> {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {prefix}: {msg}")?;
    let progress = ProgressBar::new(steps).with_style(style);
    progress.enable_steady_tick(Duration::from_millis(500));
    Ok(progress)
}

impl Row {
    fn cells(&self, args: &Args) -> Vec<String> {
        let outcome = &self.outcome;
        let rate = if self.paced { args.rate } else { 0 };
        let ms = |quantile| table::number(Some(outcome.latency_ms(quantile)));
        vec![
            self.kind.name().into(),
            self.version.clone(),
            args.common.nodes.to_string(),
            self.subs.to_string(),
            args.common.devices_per_user.to_string(),
            self.qos.to_string(),
            if self.paced { "paced" } else { "unpaced" }.into(),
            rate.to_string(),
            self.round.to_string(),
            args.payload.to_string(),
            if self.paced { args.msgs.min(args.rate * 5) } else { args.msgs }.to_string(),
            outcome.expected.to_string(),
            outcome.delivered.to_string(),
            table::number(Some(outcome.per_second())),
            ms(0.5),
            ms(0.95),
            ms(0.99),
            ms(1.0),
            table::number(self.cpu_us),
            table::number(self.connect_cpu_us),
            table::number(self.kb),
        ]
    }
}

fn chart(args: &Args, kinds: &[Kind], rows: &[Row]) -> Chart {
    let mut panels = Vec::new();
    for qos in &args.qos {
        let of = |kind: Kind, paced: bool, value: &dyn Fn(&Row) -> Option<f64>| -> Vec<(f64, f64)> {
            let point = |subs: &usize| {
                let same = rows.iter().filter(|r| (r.kind, r.subs, r.qos, r.paced) == (kind, *subs, *qos, paced));
                Some((*subs as f64, table::median(same.filter_map(value))?))
            };
            args.subs.iter().filter_map(point).collect()
        };
        let lines = |paced: bool, value: &dyn Fn(&Row) -> Option<f64>| -> Vec<Line> {
            let line = |(color, kind): (usize, &Kind)| Line {
                name: kind.name().into(),
                color,
                dashed: false,
                points: of(*kind, paced, value),
            };
            with_qos(kinds, *qos).map(line).collect()
        };
        let mut latency = Vec::new();
        for (color, kind) in with_qos(kinds, *qos) {
            for (quantile, name, dashed) in [(0.5, "p50", false), (0.99, "p99", true)] {
                let points = of(*kind, true, &|row| Some(row.outcome.latency_ms(quantile)));
                latency.push(Line { name: format!("{} {name}", kind.name()), color, dashed, points });
            }
        }
        let x = "connected subscribers";
        let rate = args.rate;
        let panel = |title: String, lines| Panel { title, x: x.into(), lines };
        panels.push(panel(
            format!("QoS {qos}: deliveries per second, unpaced (higher is better)"),
            lines(false, &|row| Some(row.outcome.per_second())),
        ));
        panels.push(panel(format!("QoS {qos}: latency in ms at {rate} messages/s (lower is better)"), latency));
        panels.push(panel(
            format!("QoS {qos}: broker CPU in µs per delivery, unpaced (lower is better)"),
            lines(false, &|row| row.cpu_us),
        ));
        panels.push(panel(
            format!("QoS {qos}: broker memory in KB per connection (lower is better)"),
            lines(false, &|row| row.kb),
        ));
    }
    let cores =
        args.common.cores().map_or_else(String::new, |(broker, _)| format!(", broker on {} core(s)", broker.len()));
    Chart {
        title: "A backend publishes to its users' devices: what a broker delivers, and at what cost".into(),
        subtitle: format!(
            "{} node(s), {} messages of {} bytes, {} device(s) per user, median of {} round(s){cores}; {}",
            args.common.nodes,
            args.msgs,
            args.payload,
            args.common.devices_per_user,
            args.rounds,
            machine()
        ),
        panels,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_is_measured_at_what_it_grants_and_keeps_its_colour() {
        let kinds = [Kind::Own, Kind::Rabbitmq, Kind::Mosquitto];
        let of = |qos| with_qos(&kinds, qos).map(|(color, kind)| (color, *kind)).collect::<Vec<_>>();
        assert_eq!(of(1), [(0, Kind::Own), (1, Kind::Rabbitmq), (2, Kind::Mosquitto)]);
        assert_eq!(of(2), [(0, Kind::Own), (2, Kind::Mosquitto)]);
    }
}
