//! A cluster under load while its nodes die, stop and come back.
//!
//! Kept apart: the [`workload`] does things and writes down what was acknowledged, the [`faults`] know nothing of it, and
//! the [`ledger`] says afterwards what must not be.
//!
//! `CIQADAMQ_FAULTS_SEED` chooses the order of things (printed; a run with the same seed does the same, as far as threads and
//! timing let it), `CIQADAMQ_FAULTS_SECS` how long. `cargo xtask faults --minutes N --seed S` sets both.
#![allow(clippy::unwrap_used)]

mod faults;
mod ledger;
mod random;
mod workload;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ciqadamq_tests::Cluster;

use ledger::Ledger;
use random::Random;
use workload::Workload;

/// Long enough for a few faults; every test run does it.
const SHORT_SECS: u64 = 25;

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn nothing_that_was_acknowledged_is_lost_whatever_node_fails() {
    let seed = variable("CIQADAMQ_FAULTS_SEED").unwrap_or_else(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        since.as_nanos() as u64 % 1_000_000
    });
    let secs = variable("CIQADAMQ_FAULTS_SECS").unwrap_or(SHORT_SECS);
    println!("seed {seed}, {secs} s");
    let mut random = Random::new(seed);
    let mut cluster = Cluster::start_default();
    let ledger = Arc::new(Ledger::default());
    let workload = Workload::start(&cluster, &ledger, &mut random);
    let end = Instant::now() + Duration::from_secs(secs);
    while Instant::now() < end {
        faults::one(&mut cluster, &ledger, &mut random);
    }
    cluster.wait_ready();
    let done = workload.stop();
    println!("{done}");
    ledger.check(&cluster);
}
