//! `cargo xtask fuzz`: builds the fuzz targets and runs them.
//!
//! With the stable compiler: libFuzzer needs coverage, which plain code generation flags give, and only the sanitizers
//! need a nightly one.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::cargo::{cargo, execute, root};

/// What `cargo-fuzz` passes too, but for the sanitizer.
const FLAGS: &[&str] = &[
    "--cfg",
    "fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
];

/// What to run, and for how long.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One target; all of them when left out
    target: Option<String>,
    /// Seconds for each target
    #[arg(long, visible_alias = "secs", default_value_t = 60)]
    seconds: u32,
    /// Add the inputs that reached something new to the corpus
    #[arg(long)]
    keep: bool,
}

impl Args {
    /// Every target, for so long that its corpus and what is near it are tried: whether they build, and agree with what they
    /// are held against today.
    pub fn short() -> Self {
        Self { target: None, seconds: 10, keep: false }
    }
}

/// Every target runs, whatever the others find.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if !cfg!(any(target_os = "linux", target_os = "macos")) {
        eprintln!("fuzz: SKIPPED, NOTHING IS FUZZED HERE: the fuzzer runs on Linux and macOS");
        return Ok(());
    }
    let fuzz = root().join("fuzz");
    let known = targets(&fuzz)?;
    let wanted: Vec<&String> = match &args.target {
        Some(target) => known.iter().filter(|name| *name == target).collect(),
        None => known.iter().collect(),
    };
    if wanted.is_empty() {
        bail!("no such fuzz target; there are {}", known.join(", "));
    }
    let host = host()?;
    let mut build = cargo(&["build", "--release", "--locked", "--target-dir", "target", "--target", &host])?;
    build.current_dir(&fuzz);
    build.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}"));
    if let Some(target) = &args.target {
        build.args(["--bin", target]);
    }
    execute(&mut build)?;
    let mut failed = Vec::new();
    for target in wanted {
        eprintln!("fuzzing {target} for {} s", args.seconds);
        if let Err(error) = fuzz_one(&fuzz, &host, target, args) {
            eprintln!("{target}: {error:#}");
            failed.push(target.as_str());
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("found something: {}; see fuzz/artifacts", failed.join(", ")) }
}

fn fuzz_one(fuzz: &Path, host: &str, target: &str, args: &Args) -> anyhow::Result<()> {
    let corpus = fuzz.join("corpus").join(target);
    let artifacts = fuzz.join("artifacts").join(target);
    let found = fuzz.join("target/corpus").join(target);
    for dir in [&corpus, &artifacts, &found] {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let mut run = Command::new(fuzz.join("target").join(host).join("release").join(target));
    run.current_dir(fuzz);
    // New inputs go to the first directory.
    if !args.keep {
        run.arg(&found);
    }
    run.arg(&corpus);
    run.args([
        format!("-max_total_time={}", args.seconds),
        format!("-artifact_prefix={}/", artifacts.display()),
        "-timeout=10".into(),
        "-rss_limit_mb=2048".into(),
        "-max_len=4096".into(),
        "-print_final_stats=1".into(),
        "-verbosity=0".into(),
    ]);
    execute(&mut run)
}

fn targets(fuzz: &Path) -> anyhow::Result<Vec<String>> {
    let dir = fuzz.join("fuzz_targets");
    let entries = std::fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let files = entries.filter_map(|entry| Some(PathBuf::from(entry.ok()?.file_name())));
    let mut names: Vec<String> = files.filter_map(|file| Some(file.file_stem()?.to_str()?.to_owned())).collect();
    names.sort();
    Ok(names)
}

/// With a target named, build scripts and macros are built without the flags.
fn host() -> anyhow::Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("rustc cannot be run")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc does not name its host")
}
