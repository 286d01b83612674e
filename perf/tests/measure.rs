//! The measurements against the real binary, small: what they write, and that nothing is lost on the way.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `CIQADAMQ_BIN`, else the development build of this workspace.
fn broker() -> PathBuf {
    if let Some(path) = std::env::var_os("CIQADAMQ_BIN") {
        return path.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let path = target.join("debug").join(format!("ciqadamq{}", std::env::consts::EXE_SUFFIX));
    assert!(
        path.is_file(),
        "{} is not there; build it with `cargo build -p ciqadamq`, or set CIQADAMQ_BIN",
        path.display()
    );
    path
}

/// Runs a measurement and gives the rows of a CSV that it wrote, by column.
fn measure(task: &str, args: &[&str], dir: &Path) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ciqadamq-perf"));
    command.arg(task).args(args).arg("--out").arg(dir).arg("--binary").arg(broker());
    // The machine that runs the tests has other things to do on every core.
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

fn rows(path: &Path) -> Vec<Vec<(String, String)>> {
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines().map(|line| line.split(',').map(String::from).collect::<Vec<_>>());
    let head = lines.next().unwrap();
    lines.map(|line| head.iter().cloned().zip(line).collect()).collect()
}

fn cell<'a>(row: &'a [(String, String)], name: &str) -> &'a str {
    &row.iter().find(|(head, _)| head == name).unwrap().1
}

#[test]
fn a_sweep_delivers_everything_and_draws_it() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--subs", "4,9", "--msgs", "50", "--rate", "200", "--qos", "0,1,2", "--payload", "20"];
    measure("perf", &args, dir.path());
    let rows = rows(&dir.path().join("perf-results.csv"));
    // Two numbers of subscribers, three QoS levels, paced and unpaced.
    assert_eq!(rows.len(), 12);
    for row in &rows {
        assert_eq!(cell(row, "delivered"), cell(row, "expected"), "{row:?}");
        assert!(cell(row, "delivered_per_s").parse::<f64>().unwrap() > 0.0, "{row:?}");
        assert!(cell(row, "p99_ms").parse::<f64>().unwrap() >= cell(row, "p50_ms").parse::<f64>().unwrap());
    }
    // Four subscribers are two users with two devices: each of 50 messages arrives twice.
    assert_eq!(cell(&rows[0], "expected"), "100");
    let svg = fs::read_to_string(dir.path().join("perf-results.svg")).unwrap();
    for text in ["connected subscribers", "QoS 2: deliveries per second", "ciqadamq"] {
        assert!(svg.contains(text), "{text} is missing in the chart");
    }
}

#[test]
fn a_ramp_samples_every_workload() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--subs", "0,6", "--settle-secs", "1", "--samples", "2", "--sample-secs", "1", "--publishers", "1"];
    measure("perf-resources", &args, dir.path());
    for workload in ["idle", "qos1", "qos2"] {
        let rows = rows(&dir.path().join(format!("perf-resources-{workload}.csv")));
        assert_eq!(rows.len(), 4, "two numbers of clients, two samples each");
        if cfg!(target_os = "linux") {
            assert!(rows.iter().all(|row| cell(row, "resident_mb").parse::<f64>().unwrap() > 1.0), "{rows:?}");
        }
        let delivers = workload != "idle";
        assert_eq!(!cell(&rows[2], "delivered_per_s").is_empty(), delivers, "{rows:?}");
        assert!(dir.path().join(format!("perf-resources-{workload}.svg")).is_file());
    }
}

#[test]
fn what_cannot_be_measured_is_refused_with_the_reason() {
    let run = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_ciqadamq-perf")).args(args).env_clear().output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(run(&["perf", "--payload", "3"]).contains("--payload"));
    assert!(run(&["perf", "--subs", "0"]).contains("--subs"));
    assert!(run(&["perf", "--binary", "/nowhere/ciqadamq"]).contains("/nowhere/ciqadamq"));
    assert!(run(&["perf-resources", "--subs", "9,3"]).contains("rise"));
}
