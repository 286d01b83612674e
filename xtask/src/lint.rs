//! `cargo xtask lint`: formatting, clippy, documentation, licences, features.

use std::process::Command;

use anyhow::bail;

use crate::cargo::{cargo, execute, is_there};
use crate::{features, licences, perf};

type Check = fn() -> anyhow::Result<()>;

/// Runs every check, whatever the others say, and reports at the end.
pub fn run() -> anyhow::Result<()> {
    let checks: [(&str, Check); 6] = [
        ("formatting", formatting),
        ("clippy", clippy),
        ("documentation", documentation),
        ("licences", licences::check),
        ("features", features::check),
        ("cargo-deny", deny),
    ];
    let mut failed = Vec::new();
    for (name, check) in checks {
        if let Err(error) = check() {
            eprintln!("{name}: {error:#}");
            failed.push(name);
        }
    }
    if failed.is_empty() {
        eprintln!("lint: all passed");
        Ok(())
    } else {
        bail!("lint failed: {}", failed.join(", "))
    }
}

fn formatting() -> anyhow::Result<()> {
    execute(&mut cargo(&["fmt", "--all", "--check"])?)?;
    // Workspaces of their own.
    for manifest in ["perf/Cargo.toml", "fuzz/Cargo.toml"] {
        execute(&mut cargo(&["fmt", "--manifest-path", manifest, "--check"])?)?;
    }
    Ok(())
}

fn clippy() -> anyhow::Result<()> {
    execute(&mut cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])?)?;
    let mut own = cargo(&["clippy", "--all-targets", "--locked"])?;
    execute(own.args(perf::package()?).args(["--", "-D", "warnings"]))
}

fn documentation() -> anyhow::Result<()> {
    let mut doc = cargo(&["doc", "--workspace", "--no-deps", "--locked", "--document-private-items"])?;
    execute(doc.env("RUSTDOCFLAGS", "-D warnings"))
}

/// cargo-deny sees more than our own check (yanked crates, sources); it is not asked for on every machine.
fn deny() -> anyhow::Result<()> {
    if !is_there(Command::new("cargo-deny").arg("--version")) {
        eprintln!("cargo-deny: skipped: not installed (the licence check above needs no tool)");
        return Ok(());
    }
    // Advisories need a database from the network, so they are not part of what gates a change.
    execute(&mut cargo(&["deny", "--offline", "check", "licenses", "bans", "sources"])?)
}
