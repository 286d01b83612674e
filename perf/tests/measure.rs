//! The measurements against the real binary, small: what they write, and that nothing is lost on the way.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What is measured: whoever starts these tests says so, as `cargo xtask test` does. A binary that happens to lie about may be of
/// yesterday.
fn broker() -> PathBuf {
    let path = std::env::var_os("CIQADAMQ_BIN").map(PathBuf::from);
    let path =
        path.expect("CIQADAMQ_BIN is not set: name the broker's binary, or run `cargo xtask test`, which builds it");
    assert!(path.is_file(), "CIQADAMQ_BIN: there is no file `{}`", path.display());
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
fn clients_get_in_and_subscribe_on_a_cluster() {
    let dir = tempfile::tempdir().unwrap();
    measure("perf-connects", &["--at-once", "1,8", "--secs", "1", "--idle-secs", "1"], dir.path());
    let rows = rows(&dir.path().join("perf-connects.csv"));
    assert_eq!(rows.len(), 2);
    for row in &rows {
        let number = |name| cell(row, name).parse::<f64>().unwrap();
        assert!(number("clients") > 0.0 && number("connect_p50_ms") > 0.0, "{row:?}");
        assert!(number("with_subscribe_p50_ms") >= number("connect_p50_ms"), "{row:?}");
        assert!(number("slowest_ms") >= number("with_subscribe_p99_ms"), "{row:?}");
    }
}

/// A measurement that is ended from outside takes its broker along.
#[test]
#[cfg(target_os = "linux")]
fn no_broker_outlives_a_measurement_that_is_ended() {
    for signal in ["-TERM", "-KILL"] {
        let dir = tempfile::tempdir().unwrap();
        let mut measurement = Command::new(env!("CARGO_BIN_EXE_ciqadamq-perf"))
            .args(["perf", "--subs", "1", "--msgs", "100000000", "--rate", "1", "--binary"])
            .arg(broker())
            .arg("--out")
            .arg(dir.path())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let pid = measurement.id();
        let wait = |what: &str, is_so: &dyn Fn() -> bool| {
            let began = Instant::now();
            while !is_so() {
                assert!(began.elapsed() < Duration::from_secs(60), "{signal}: {what}");
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        let children = || fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        wait("no broker is started", &|| !children().is_empty());
        let broker = children().trim().to_owned();
        assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
        assert!(!measurement.wait().unwrap().success());
        wait("the broker lives on", &|| {
            let stat = fs::read_to_string(format!("/proc/{broker}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        });
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
    assert!(run(&["perf", "--only-peers", "--peer", "rabbitmq", "--qos", "2"]).contains("--qos"));
}
