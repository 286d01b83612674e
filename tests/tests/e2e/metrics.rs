//! What the broker counts.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use ciqadamq_tests::mqtt::Publish;
use ciqadamq_tests::{Broker, BrokerOptions, Cluster, Connect, Link, Version};

#[test]
fn the_documented_metrics_are_there_and_count() {
    let broker = Broker::start(BrokerOptions::new().set("acl.on_deny", "drop"));
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    let mut phone = broker.client(&ua, Version::V5, "phone");
    phone.subscribe(&["chat/ua/#"]);
    assert!(!phone.may_subscribe("#"));
    phone.publish(&Publish::new("chat/ub/x", "forged", 1));
    phone.publish_ok("chatsync", "x", 1);
    watcher.publish("chat/ua/x", "y");
    phone.expect("chat/ua/x", "y");
    watcher.publish("chat/ua/x", "z");
    phone.expect("chat/ua/x", "z");
    broker.connect(&Connect::new(Version::V5, Link::Tcp, "x").login(&ua.username, "guess")).refused();

    let at_least = |name: &str, labels: &[&str], least: f64| {
        let value = broker.rest.metric(name, labels);
        assert!(value >= least, "{name} {labels:?} is {value}, not {least} or more");
    };
    at_least("ciqadamq_connections", &[], 2.0);
    at_least("ciqadamq_sessions", &[], 2.0);
    at_least("ciqadamq_messages_received_total", &[], 2.0);
    at_least("ciqadamq_messages_delivered_total", &[], 3.0);
    at_least("ciqadamq_auth_logins_total", &["result=\"ok\""], 2.0);
    at_least("ciqadamq_auth_logins_total", &[], 3.0);
    at_least("ciqadamq_auth_login_seconds_count", &[], 3.0);
    at_least("ciqadamq_acl_publish_refused_total", &["not_granted"], 1.0);
    at_least("ciqadamq_acl_subscribe_refused_total", &["not_granted"], 1.0);
    at_least("ciqadamq_router_misses_total", &[], 2.0);
    at_least("ciqadamq_router_hits_total", &[], 1.0);
    at_least("ciqadamq_rest_requests_total", &[], 2.0);
    at_least("ciqadamq_users", &[], 2.0);
}

#[test]
fn the_exposition_is_well_formed() {
    let broker = Broker::start_default();
    broker.user("ua");
    let response = broker.rest.get("/metrics");
    assert!(response.header("content-type").unwrap().starts_with("text/plain"));
    for line in response.text().lines().filter(|line| !line.is_empty()) {
        if let Some(comment) = line.strip_prefix('#') {
            assert!(comment.starts_with(" HELP ") || comment.starts_with(" TYPE "), "{line}");
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(series.starts_with("ciqadamq_") || series.starts_with("process_"), "{line}");
        assert!(value.parse::<f64>().is_ok(), "{line}");
        assert!(!line.contains("ua-token"), "no name of a user is a label: {line}");
    }
}

/// The names in the tables of `docs/operating/monitor.md`.
fn listed() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operating/monitor.md");
    let text = fs::read_to_string(path).unwrap();
    let tables = text.split("<!-- metrics -->").nth(1).unwrap();
    let rows = tables.lines().filter_map(|line| line.strip_prefix("| `ciqadamq_"));
    rows.map(|row| format!("ciqadamq_{}", row.split(['`', '{']).next().unwrap())).collect()
}

/// Whether the sources name it: what has labels is shown only when something has happened.
fn in_the_sources(name: &str, dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).any(|path| match path.is_dir() {
        true => in_the_sources(name, &path),
        false => {
            let is_source = path.extension().is_some_and(|extension| extension == "rs");
            is_source && fs::read_to_string(&path).unwrap().contains(&format!("\"{name}\""))
        }
    })
}

#[test]
fn every_metric_is_in_the_operators_list_and_what_is_there_is_a_metric() {
    let secrets = tempfile::TempDir::new().unwrap();
    let cluster = Cluster::start(2, |_| {
        BrokerOptions::new()
            .set("acl.on_deny", "drop")
            .set("secrets.provider", "files")
            .set("secrets.dir", secrets.path().display().to_string())
            .set("secrets.start_timeout_secs", 0)
    });
    let node = &cluster[1];
    let ua = node.user("ua");
    let mut phone = node.client(&ua, Version::V5, "phone");
    assert!(!phone.may_subscribe("#"));
    phone.publish(&Publish::new("chat/ub/x", "forged", 1));
    node.connect(&ua.connect(Version::V5, "x").login("nobody", "guess")).refused();
    assert_eq!(ciqadamq_tests::request(node.rest.addr, "GET", "/metrics", &[], None).unwrap().status, 401);

    // A node alone has parts that one of several has not, and the other way round.
    let alone = Broker::start_default();
    let shown = node.rest.get("/metrics").text() + &alone.rest.get("/metrics").text();
    let types = shown.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let shown: BTreeSet<String> = types.map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    let listed = listed();
    let missing: Vec<_> = shown.difference(&listed).collect();
    assert!(missing.is_empty(), "not in docs/operating/monitor.md: {missing:?}");
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let gone: Vec<_> = listed.difference(&shown).filter(|name| !in_the_sources(name, &crates)).collect();
    assert!(gone.is_empty(), "no metrics: {gone:?}");
}
