//! `cargo xtask flamegraph`: samples our broker with `perf` while it works, and draws where the time went.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::broker::{Broker, Kind};
use crate::load::{Fleet, PAYLOAD_MIN, Phase};
use crate::process::Started;
use crate::sweep::bar;
use crate::{Common, stacks};

/// What to profile.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Subscribers
    #[arg(long, default_value_t = 1000)]
    subs: usize,
    /// Seconds of work
    #[arg(long, default_value_t = 10)]
    secs: u64,
    /// Bytes of a message's payload
    #[arg(long, default_value_t = 256)]
    payload: usize,
    /// QoS of messages and subscriptions
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..3))]
    qos: u8,
    /// Messages per second; 0 = as fast as they are taken
    #[arg(long, default_value_t = 0)]
    rate: u64,
    /// Clients that publish
    #[arg(long, default_value_t = 1)]
    publishers: usize,
    /// Samples per second
    #[arg(long, default_value_t = 997)]
    frequency: u32,
}

/// Writes `flamegraph.svg`.
pub async fn run(args: &Args) -> anyhow::Result<()> {
    anyhow::ensure!(args.payload >= PAYLOAD_MIN, "--payload: at least {PAYLOAD_MIN} bytes");
    anyhow::ensure!(args.subs > 0 && args.publishers > 0 && args.secs > 0, "0 is not enough");
    let out = args.common.result("flamegraph.svg")?;
    let progress = bar(1)?;
    progress.set_prefix("flamegraph");
    let broker = Broker::start(Kind::Own, &args.common.setup(args.subs)).await?;
    let mut fleet = Fleet::new(&broker.addrs, &broker.users, args.qos)?;
    fleet.grow(args.subs, &progress).await?;
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("perf.data");
    let mut perf = Command::new("perf");
    perf.args(["record", "--quiet", "--call-graph", "fp", "--event", "cpu-clock"])
        .args(["--freq", &args.frequency.to_string(), "--output"])
        .arg(&data)
        .args(["--pid", &broker.pids().iter().map(u32::to_string).collect::<Vec<_>>().join(",")])
        .stdin(Stdio::null());
    let mut perf = Started::new(&mut perf).context("`perf` cannot be started; install linux-perf")?;
    let phase = Phase {
        messages: u64::MAX / 2,
        payload: args.payload,
        qos: args.qos,
        rate: args.rate,
        publishers: args.publishers,
        limit: Some(Duration::from_secs(args.secs)),
    };
    let outcome = fleet.publish(&phase, &progress).await;
    drop(fleet);
    // It ends by itself when what it watches has ended.
    broker.stop().await?;
    let status = perf.wait()?;
    let outcome = outcome?;
    // Some versions report the signal that ended what they watched.
    if !data.is_file() {
        bail!("`perf record` failed ({status}); see /proc/sys/kernel/perf_event_paranoid");
    }
    draw(&data, &out, args)?;
    progress.finish_and_clear();
    println!("{}: {:.0} deliveries per second while it was watched", out.display(), outcome.per_second());
    Ok(())
}

fn draw(data: &Path, out: &Path, args: &Args) -> anyhow::Result<()> {
    let script = Command::new("perf").arg("script").arg("--input").arg(data).stderr(Stdio::null()).output()?;
    let root = stacks::read(&String::from_utf8_lossy(&script.stdout));
    if root.samples == 0 {
        bail!("`perf script` gave no samples");
    }
    let pace = if args.rate == 0 { "unpaced".into() } else { format!("{} messages/s", args.rate) };
    let title = format!("ciqadamq: CPU time, QoS {}, {} subscribers, {pace}", args.qos, args.subs);
    std::fs::write(out, root.svg(&title)).with_context(|| out.display().to_string())
}
