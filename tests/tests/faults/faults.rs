//! What happens to nodes.

use std::thread;
use std::time::{Duration, Instant};

use ciqadamq_tests::Cluster;

use crate::ledger::Ledger;
use crate::random::Random;

/// One fault, and the return to a cluster that works.
pub fn one(cluster: &mut Cluster, ledger: &Ledger, random: &mut Random) {
    thread::sleep(random.millis(500, 2500));
    let any = 1 + random.below(3) as u8;
    let leader = cluster.ids().find_map(|n| cluster.routes_leader(n)).unwrap_or(any);
    let began = Instant::now();
    let victims: Vec<u8> = match random.below(13) {
        0..=2 => kill(cluster, ledger, &[any], random.millis(0, 3000)),
        3..=4 => kill(cluster, ledger, &[leader], random.millis(0, 3000)),
        5..=6 => stop(cluster, ledger, any, random.millis(300, 6000)),
        7..=8 => stop(cluster, ledger, leader, random.millis(300, 6000)),
        10 if cluster.can_cut() => cut(cluster, ledger, any, random.millis(500, 12_000)),
        11 if cluster.can_cut() => cut(cluster, ledger, leader, random.millis(500, 12_000)),
        _ => {
            let other = cluster.ids().find(|n| *n != any && random.below(2) == 0).unwrap_or(any % 3 + 1);
            kill(cluster, ledger, &[any, other], random.millis(0, 2000))
        }
    };
    cluster.wait_ready();
    println!("  {victims:?} back after {:?}", began.elapsed());
}

fn kill(cluster: &mut Cluster, ledger: &Ledger, nodes: &[u8], pause: Duration) -> Vec<u8> {
    println!("kill {nodes:?}, start after {pause:?}");
    for node in nodes {
        ledger.disturb(*node);
        cluster.kill(*node);
    }
    thread::sleep(pause);
    for node in nodes {
        cluster[*node].spawn();
    }
    nodes.to_vec()
}

fn stop(cluster: &mut Cluster, ledger: &Ledger, node: u8, pause: Duration) -> Vec<u8> {
    println!("stop {node} for {pause:?}");
    ledger.disturb(node);
    cluster.stop(node);
    thread::sleep(pause);
    cluster.resume(node);
    ledger.disturb(node);
    vec![node]
}

fn cut(cluster: &mut Cluster, ledger: &Ledger, node: u8, pause: Duration) -> Vec<u8> {
    println!("cut {node} off for {pause:?}");
    ledger.disturb(node);
    cluster.cut_off(node);
    thread::sleep(pause);
    cluster.mend(node);
    ledger.disturb(node);
    vec![node]
}
