//! What the broker counts.

use ciqadamq_tests::mqtt::Publish;
use ciqadamq_tests::{Broker, BrokerOptions, Connect, Link, Version};

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
