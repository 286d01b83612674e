//! Whether the product and its tests are built from the same dependencies.
//!
//! Cargo joins the features that all packages of a build ask of a dependency. If a test asks for one more, `cargo xtask run` and
//! `cargo xtask test` compile that dependency, and all that stands on it, once each: ten minutes and more with the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;

use anyhow::{Context as _, bail};

use crate::cargo::cargo;

/// Compares the dependencies of the broker alone with those of everything.
pub fn check() -> anyhow::Result<()> {
    let product = dependencies(&["--package", "ciqadamq", "--edges", "normal,build"])?;
    let all = dependencies(&["--workspace", "--edges", "normal,build,dev"])?;
    let mut problems = Vec::new();
    for (dependency, features) in &product {
        let of_all =
            all.get(dependency).with_context(|| format!("{dependency} is in the product and not in everything"))?;
        let more: Vec<_> = of_all.difference(features).map(String::as_str).collect();
        if !more.is_empty() {
            problems.push(format!("{dependency}: {}", more.join(", ")));
        }
    }
    if problems.is_empty() {
        eprintln!("features: {} dependencies are the same for the product alone and with its tests", product.len());
        return Ok(());
    }
    bail!("only tests and tools ask for\n  {}\nlet the product ask for them too, or nobody", problems.join("\n  "))
}

/// Name and version with all features that are on.
fn dependencies(of: &[&str]) -> anyhow::Result<BTreeMap<String, BTreeSet<String>>> {
    let mut command = cargo(&["tree", "--locked", "--prefix", "none", "--no-dedupe", "--format", "{p}|{f}"])?;
    let output = command.args(of).stderr(Stdio::inherit()).output().context("cargo tree cannot be started")?;
    if !output.status.success() {
        bail!("cargo tree failed: {}", output.status);
    }
    let text = String::from_utf8(output.stdout).context("cargo tree gave something that is no text")?;
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (package, features) in text.lines().filter_map(|line| line.split_once('|')) {
        // What follows name and version says where it is from, or that it is a macro.
        let package: Vec<_> = package.split(' ').take(2).collect();
        let features = features.trim_end_matches(" (*)").split(',').filter(|feature| !feature.is_empty());
        found.entry(package.join(" ")).or_default().extend(features.map(Into::into));
    }
    Ok(found)
}
