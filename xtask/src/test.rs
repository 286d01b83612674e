//! `cargo xtask test`: builds everything once, then runs unit, end-to-end and documentation tests.

use std::process::Command;

use crate::cargo::{broker_binary, cargo, execute, is_there};
use crate::perf;

/// What to run.
#[derive(Debug, Default, clap::Args)]
pub struct Args {
    /// Only tests whose names contain one of these
    filter: Vec<String>,
}

/// The end-to-end tests find the broker through `CIQADAMQ_BIN`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    // The broker first, and once: tests in several packages need it.
    execute(&mut cargo(&["build", "--workspace", "--bins", "--tests", "--locked"])?)?;

    let nextest = is_there(Command::new("cargo-nextest").args(["nextest", "--version"]));
    let mut tests = if nextest {
        // They wait for brokers most of the time, and for time to pass.
        let threads = 2 * std::thread::available_parallelism()?.get();
        let mut tests = cargo(&["nextest", "run", "--workspace", "--locked", "--no-fail-fast"])?;
        tests.args(["--test-threads", &threads.to_string()]);
        tests
    } else {
        eprintln!("cargo-nextest is not installed: running cargo test");
        cargo(&["test", "--workspace", "--locked", "--no-fail-fast", "--bins", "--lib", "--tests"])?
    };
    tests.env("CIQADAMQ_BIN", broker_binary(false)?);
    if nextest {
        tests.args(&args.filter);
    } else if !args.filter.is_empty() {
        tests.arg("--").args(&args.filter);
    }
    let tested = execute(&mut tests);

    // The load generator is a workspace of its own; its tests measure the same broker.
    let measured = if args.filter.is_empty() {
        let mut tests = cargo(&["test", "--locked"])?;
        execute(tests.args(perf::package()?).env("CIQADAMQ_BIN", broker_binary(false)?))
    } else {
        Ok(())
    };

    // nextest does not know documentation tests.
    let documented = if args.filter.is_empty() {
        execute(&mut cargo(&["test", "--workspace", "--locked", "--doc"])?)
    } else {
        Ok(())
    };
    tested.and(measured).and(documented)
}
