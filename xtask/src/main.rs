//! The tasks of this repository: `cargo xtask help`.
//!
//! A file per task. All of them go through [`cargo`], which brings the protobuf compiler along, so that a machine with
//! a Rust toolchain, a C/C++ compiler and make can build everything.

mod cargo;
mod ci;
mod fuzz;
mod licences;
mod lint;
mod perf;
mod quick_start;
mod run;
mod spdx;
mod test;

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
    /// What has to pass before a change goes in: test and lint
    Ci,
    /// Throughput, latency and CPU of deliveries, alone or against other brokers
    #[command(disable_help_flag = true)]
    Perf(perf::Args),
    /// CPU and memory for growing numbers of clients, idle and with messages
    #[command(disable_help_flag = true)]
    PerfResources(perf::Args),
    /// Where the broker's CPU time goes under a workload
    #[command(disable_help_flag = true)]
    Flamegraph(perf::Args),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().task {
        Task::Run(args) => run::run(&args),
        Task::Test(args) => test::run(&args),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Lint => lint::run(),
        Task::Ci => ci::run(),
        Task::Perf(args) => perf::run("perf", &args),
        Task::PerfResources(args) => perf::run("perf-resources", &args),
        Task::Flamegraph(args) => perf::run("flamegraph", &args),
    }
}
