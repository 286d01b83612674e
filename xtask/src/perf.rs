//! `cargo xtask perf`, `perf-resources`, `perf-connects`, `perf-soak`, `flamegraph`: builds the broker optimised and hands over to `ciqadamq-perf`.
//!
//! That is a workspace of its own: what it draws charts with must not change what the broker is built from.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context as _;

use crate::cargo::{cargo, execute, target_directory};

/// Everything is handed on; `--help` shows it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Arguments of the measurement
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
}

/// Builds what is needed and measures. With `--binary` or `CIQADAMQ_BIN`, that broker is measured and none is built.
pub fn run(task: &str, args: &Args) -> anyhow::Result<()> {
    let given = |names: [&str; 2]| {
        let same = |arg: &str| names.iter().any(|name| arg == *name || arg.starts_with(&format!("{name}=")));
        args.rest.iter().any(|arg| same(&arg.to_string_lossy()))
    };
    let mut measure = cargo(&["run", "--quiet", "--release", "--locked"])?;
    measure.args(package()?).args(["--", task]).args(&args.rest);
    if !given(["--binary", "--only-peers"]) && !given(["--help", "-h"]) && std::env::var_os("CIQADAMQ_BIN").is_none() {
        measure.env("CIQADAMQ_BIN", build(task == "flamegraph")?);
    }
    execute(&mut measure)
}

/// What makes cargo work on that package. Its builds go below ours, so that one `target` is all there is.
pub fn package() -> anyhow::Result<[OsString; 4]> {
    let target = target_directory()?.join("perf");
    Ok(["--manifest-path".into(), "perf/Cargo.toml".into(), "--target-dir".into(), target.into()])
}

/// The optimised build; for a profile with names and frame pointers, in a directory of its own.
fn build(for_profile: bool) -> anyhow::Result<PathBuf> {
    let name = format!("ciqadamq{}", std::env::consts::EXE_SUFFIX);
    let target = target_directory()?;
    if !for_profile {
        eprintln!("building ciqadamq as for production, which takes many minutes the first time");
        execute(&mut cargo(&["build", "--release", "--package", "ciqadamq"])?)?;
        return Ok(target.join("release").join(name));
    }
    eprintln!("building ciqadamq with names and frame pointers, which takes many minutes the first time");
    let dir = target.join("flamegraph");
    let mut build = cargo(&["build", "--profile", "profiling", "--package", "ciqadamq", "--target-dir"])?;
    execute(build.arg(&dir).env("RUSTFLAGS", "-C force-frame-pointers=yes")).context("flame graph build")?;
    Ok(dir.join("profiling").join(name))
}
