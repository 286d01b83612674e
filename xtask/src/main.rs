//! The tasks of this repository: `cargo xtask help`.
//!
//! A file per task. All of them go through [`cargo`], which brings the protobuf compiler along, so that a machine with
//! a Rust toolchain, a C/C++ compiler and make can build everything.

mod cargo;
mod ci;
mod cluster;
mod e2e;
mod faults;
mod features;
mod fuzz;
mod haproxy;
mod licences;
mod lint;
mod perf;
mod process;
mod quick_start;
mod run;
mod spdx;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "The tasks of this repository", disable_version_flag = true)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Build and start the broker, and say what to do next; data goes to ./data
    Run(run::Args),
    /// Build everything once and run all tests
    Test(test::Args),
    /// Run the fuzz targets
    Fuzz(fuzz::Args),
    /// Formatting, clippy, documentation, licences
    Lint,
    /// Start a cluster on this machine, and say how to try it
    ClusterUp(cluster::Up),
    /// End it; its data stays
    ClusterDown,
    /// Say how each node is; fails unless all are ready and agree
    ClusterStatus,
    /// End one node as a power cut would
    ClusterKill(cluster::One),
    /// Start a node that was ended
    ClusterStart(cluster::One),
    /// Print a node's log
    ClusterLogs(cluster::One),
    /// Start a cluster and HAProxy, here or with Docker, run the tests of several nodes against it, and end it
    E2e(e2e::Args),
    /// Kill and stop nodes of a cluster under load, and check what became of what was acknowledged
    Faults(faults::Args),
    /// What has to pass before a change goes in: test, lint, and each fuzz target for a few seconds
    Ci,
    /// Throughput, latency and CPU of deliveries, alone or against other brokers
    #[command(disable_help_flag = true)]
    Perf(perf::Args),
    /// CPU and memory for growing numbers of clients, idle and with messages
    #[command(disable_help_flag = true)]
    PerfResources(perf::Args),
    /// How long clients wait to get in and to subscribe, on a cluster, and what idle nodes cost
    #[command(disable_help_flag = true)]
    PerfConnects(perf::Args),
    /// Many clients and as many messages as are sustained, for minutes: losses, and memory over time
    #[command(disable_help_flag = true)]
    PerfSoak(perf::Args),
    /// Where the broker's CPU time goes under a workload
    #[command(disable_help_flag = true)]
    Flamegraph(perf::Args),
}

fn main() -> ExitCode {
    match run(Cli::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        // One line, also where backtraces are asked for: it is for whoever gave the command.
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<()> {
    match task {
        Task::Run(args) => run::run(&args),
        Task::Test(args) => test::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Lint => lint::run(),
        Task::ClusterUp(args) => cluster::up(&args),
        Task::ClusterDown => cluster::down(),
        Task::ClusterStatus => cluster::status(),
        Task::ClusterKill(args) => cluster::kill(&args),
        Task::ClusterStart(args) => cluster::start_one(&args),
        Task::ClusterLogs(args) => cluster::logs(&args),
        Task::E2e(args) => e2e::run(&args),
        Task::Faults(args) => faults::run(&args),
        Task::Ci => ci::run(),
        Task::Perf(args) => perf::run("perf", &args),
        Task::PerfResources(args) => perf::run("perf-resources", &args),
        Task::PerfConnects(args) => perf::run("perf-connects", &args),
        Task::PerfSoak(args) => perf::run("perf-soak", &args),
        Task::Flamegraph(args) => perf::run("flamegraph", &args),
    }
}
