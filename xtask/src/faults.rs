//! `cargo xtask faults`: the fault run of `tests/tests/faults`, for as long as is asked for.

use anyhow::Context as _;

use crate::cargo::{broker_binary, cargo, execute};

/// How long, and in which order.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How long nodes are killed and stopped
    #[arg(long, default_value_t = 5)]
    minutes: u64,
    /// The order of faults; a run prints its own
    #[arg(long)]
    seed: Option<u64>,
    /// Build with optimisation
    #[arg(long)]
    release: bool,
}

/// Builds the broker and runs the test with its output.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let profile: &[&str] = if args.release { &["--release"] } else { &[] };
    execute(cargo(&["build", "--workspace", "--bins", "--tests", "--locked"])?.args(profile))?;
    let mut command = cargo(&["test", "--workspace", "--locked", "--test", "faults"])?;
    command.args(profile).args(["--", "--nocapture"]);
    command.env("CIQADAMQ_BIN", broker_binary(args.release)?);
    let secs = args.minutes.checked_mul(60).context("that is too long")?;
    command.env("CIQADAMQ_FAULTS_SECS", secs.to_string());
    if let Some(seed) = args.seed {
        command.env("CIQADAMQ_FAULTS_SEED", seed.to_string());
    }
    execute(&mut command)
}
