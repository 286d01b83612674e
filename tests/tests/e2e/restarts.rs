//! A node that has to start anew by itself.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ciqadamq_tests::{BrokerOptions, Cluster, eventually};

/// Two of three nodes die and one comes back: the third has to start anew. It is asked to end when it has logged `line`.
fn a_node_that_starts_anew_is_asked_to_end(line: &str) {
    // As if it had been restarted often: the pause before the next one is ten seconds.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let before = vec![now.to_string(); 8].join(",");
    let mut cluster = Cluster::start(3, |_| BrokerOptions::new().env("CIQADAMQ_RESTARTS", &before));
    let survivor = 3;
    let dead: Vec<u8> = cluster.ids().filter(|n| *n != survivor).collect();
    for node in &dead {
        cluster.kill(*node);
    }
    cluster[dead[0]].spawn();
    eventually(line, || cluster[survivor].log().contains(line).then_some(()));
    let exit = cluster[survivor].sigterm();
    let log = cluster[survivor].log();
    assert_eq!(exit.code, Some(0), "{exit:?}\n{log}");
    assert!(exit.took < Duration::from_secs(9), "{exit:?}\n{log}");
    assert!(log.contains("asked to end: not restarted"), "{log}");
}

#[test]
fn a_node_that_drains_to_start_anew_ends_if_it_is_asked_to() {
    a_node_that_starts_anew_is_asked_to_end("the routing cluster needs a new process");
}

#[test]
fn a_node_that_pauses_before_it_starts_anew_ends_if_it_is_asked_to() {
    a_node_that_starts_anew_is_asked_to_end("restarting");
}

#[test]
fn a_node_that_waits_for_its_users_is_left_alone_by_what_becomes_of_the_routes() {
    let mut cluster = Cluster::start_default();
    cluster.kill(3);
    std::fs::remove_dir_all(cluster[3].dir().join("data")).unwrap();
    let before = cluster[3].log().len();
    cluster[3].spawn();
    // With another data directory it is not the member it was.
    cluster.wait_why(3, "this node was a member and has lost its data");
    cluster.wait_why(3, "this node takes part as soon as it is a member");
    for node in [1, 2] {
        cluster.kill(node);
    }
    for node in [1, 2] {
        cluster[node].spawn();
    }
    for node in [1, 2] {
        cluster[node].wait_ready().unwrap();
    }
    cluster.wait_why(3, "this node was a member and has lost its data");
    assert!(!cluster[3].log()[before..].contains("restarting"), "{}", &cluster[3].log()[before..]);
}
