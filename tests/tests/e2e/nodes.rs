//! What nodes say of each other, and how they are taken out and in.

use std::time::{Duration, Instant};

use ciqadamq_tests::{BrokerOptions, Cluster, eventually};
use serde_json::{Value, json};

use crate::audit;

/// The nodes as node `n` shows them.
#[track_caller]
fn shown(cluster: &Cluster, n: u8) -> Vec<Value> {
    let response = cluster[n].rest.get("/api/v1/cluster");
    assert_eq!(response.status, 200, "{}", response.text());
    let view = response.json();
    assert_eq!(view["node"], n);
    view["nodes"].as_array().unwrap().clone()
}

#[test]
fn every_node_shows_all_nodes_and_says_which_one_is_gone() {
    let mut cluster = Cluster::start_default();
    cluster[1].user("ua");
    for n in cluster.ids() {
        // What is committed reaches the others with the next heartbeat.
        let nodes = eventually("all have applied the same", || {
            let nodes = shown(&cluster, n);
            nodes.iter().all(|node| node["users"]["count"] == 1 && node["ready"] == true).then_some(nodes)
        });
        assert_eq!(nodes.iter().map(|node| node["id"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
        let mut roles: Vec<_> = nodes.iter().map(|node| node["role"].as_str().unwrap()).collect();
        roles.sort_unstable();
        assert_eq!(roles, ["follower", "follower", "leader"]);
        for node in &nodes {
            assert_eq!((&node["reachable"], &node["error"]), (&json!(true), &Value::Null));
            let names: Vec<_> = node["plugins"].as_array().unwrap().iter().map(|plugin| &plugin["name"]).collect();
            assert!(names.iter().any(|name| **name == "ciqadamq-cluster"), "{names:?}");
            let users = &node["rafts"]["users"];
            let leader = nodes.iter().find(|node| node["role"] == "leader").unwrap();
            assert_eq!((&users["leader"], &users["voters"]), (&leader["id"], &json!([1, 2, 3])));
            assert_eq!(users["term"], leader["rafts"]["users"]["term"]);
            assert!(users["last_log_index"].is_u64() && users["applied_index"].is_u64(), "{users}");
            assert!(node["rafts"]["routes"]["leader"].is_u64(), "{node}");
        }
    }

    cluster.kill(3);
    for n in [1, 2] {
        let since = Instant::now();
        let nodes = shown(&cluster, n);
        assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
        let gone = &nodes[2];
        assert_eq!((&gone["id"], &gone["reachable"], &gone["ready"]), (&json!(3), &json!(false), &Value::Null));
        // A connection that was open breaks, another one is refused.
        let error = gone["error"].as_str().unwrap_or_default();
        assert!(error.starts_with("not reachable: ") || error.starts_with("no answer: "), "{gone}");
        assert!(nodes[..2].iter().all(|node| node["reachable"] == true), "{nodes:?}");
    }
    let leader = eventually("the two others have a leader", || {
        let nodes = shown(&cluster, 1);
        nodes.iter().find(|node| node["role"] == "leader").and_then(|node| node["id"].as_u64())
    });
    let rest = &cluster[u8::try_from(leader).unwrap()].rest;
    eventually("the metrics say so too", || {
        let reachable = rest.metric("ciqadamq_users_raft_peer_reachable", &["peer=\"3\""]);
        let up = rest.metric("ciqadamq_cluster_node_up", &["node=\"3\""]);
        (reachable == 0.0 && up == 0.0).then_some(())
    });
    let config = cluster[1].config().display().to_string();
    let output = cluster[1].run(&["cluster", "status", "--config", &config]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for wanted in ["1 (asked)", "NOT REACHABLE", &format!("users: node {leader} leads, term ")] {
        assert!(text.contains(wanted), "{wanted}\nnot in\n{text}");
    }
    cluster[3].spawn();
    cluster.wait_ready();
    assert_eq!(shown(&cluster, 2)[2]["reachable"], true);
}

#[test]
fn a_node_is_taken_out_and_in_again_and_the_audit_says_by_whom() {
    let mut cluster = Cluster::start(3, |_| BrokerOptions::new().args(&["--log-format", "json"]));
    cluster[1].user("ua");
    cluster.kill(3);
    let response = eventually("a leader without node 3", || {
        let response = cluster[1].rest.delete("/api/v1/cluster/members/3");
        (response.status != 503).then_some(response)
    });
    assert_eq!(response.status, 204, "{}", response.text());
    // A node whose disk was lost.
    std::fs::remove_dir_all(cluster[3].dir().join("data")).unwrap();
    cluster[3].spawn();
    let add = json!({"id": 3, "url": format!("http://{}", cluster[3].rest.addr)});
    let response = eventually("node 3 has caught up", || {
        let response = cluster[1].rest.post("/api/v1/cluster/members", &add);
        (response.status != 503).then_some(response)
    });
    assert_eq!(response.status, 200, "{}", response.text());
    cluster.wait_ready();
    assert_eq!(shown(&cluster, 3)[2]["users"]["count"], 1);

    let events = audit::events(&cluster[1]);
    for (name, fields) in audit::documented().into_iter().filter(|(name, _)| name.starts_with("member_")) {
        let event = events.iter().find(|event| event["event"] == name.as_str());
        let event = event.unwrap_or_else(|| panic!("{name} did not occur: {events:?}"));
        assert!(fields.iter().all(|field| !event[field.as_str()].is_null()), "{fields:?} {event}");
        assert_eq!((&event["node"], &event["by"]), (&json!(3), &json!("management")), "{event}");
    }
}
