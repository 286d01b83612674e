//! Whose Retained Messages there are, and what becomes of them.

use ciqadamq_tests::mqtt::Publish;
use ciqadamq_tests::{Account, Broker, BrokerOptions, Client, Outcome, Version, eventually};
use serde_json::json;

fn retain(client: &mut Client, topic: &str, text: &str) -> Outcome {
    client.publish(&Publish::new(topic, text, 1).retained())
}

/// What a new subscriber to everything gets at once, sorted.
fn retained(broker: &Broker, root: &Account) -> Vec<(String, String)> {
    let mut late = broker.client(root, Version::V5, "late");
    late.subscribe(&["#"]);
    late.publish_ok("end", "end", 1);
    let mut got: Vec<_> = late.until("end", "end").iter().map(|m| (m.topic.clone(), m.text())).collect();
    late.disconnect();
    got.sort();
    got
}

#[track_caller]
fn wait_for(broker: &Broker, root: &Account, expected: &[(&str, &str)]) {
    let expected: Vec<_> = expected.iter().map(|(topic, text)| ((*topic).to_owned(), (*text).to_owned())).collect();
    eventually(&format!("retained are {expected:?}"), || (retained(broker, root) == expected).then_some(()));
}

#[test]
fn a_deleted_users_retained_messages_go_and_nobody_elses() {
    let mut broker = Broker::start_default();
    let root = broker.superuser("root");
    let (ua, ub) = (broker.user("ua"), broker.user("ub"));
    let mut a = broker.client(&ua, Version::V5, "a");
    let mut b = broker.client(&ub, Version::V5, "b");
    let mut backend = broker.client(&root, Version::V5, "root");
    retain(&mut a, "chatsync", "a's");
    retain(&mut a, "updates", "a's");
    retain(&mut backend, "news", "root's");
    wait_for(&broker, &root, &[("chatsync", "a's"), ("news", "root's"), ("updates", "a's")]);
    // The last one to write owns it.
    retain(&mut b, "updates", "b's");
    wait_for(&broker, &root, &[("chatsync", "a's"), ("news", "root's"), ("updates", "b's")]);
    // It is known after a restart, too.
    drop((a, b, backend));
    broker.restart();
    wait_for(&broker, &root, &[("chatsync", "a's"), ("news", "root's"), ("updates", "b's")]);
    // A lock or a new password takes nothing away.
    broker.rest.change_user(&ub.username, &json!({"disabled": true}));
    broker.rest.delete_user(&ua.username);
    wait_for(&broker, &root, &[("news", "root's"), ("updates", "b's")]);
    eventually("the log says so", || broker.log().contains("retained_cleared").then_some(()));
    // A re-created user finds nothing, and may retain again.
    let mut a = broker.client(&broker.user("ua"), Version::V5, "a");
    retain(&mut a, "chatsync", "new");
    wait_for(&broker, &root, &[("chatsync", "new"), ("news", "root's"), ("updates", "b's")]);
    // What a backend account retained belongs to the application.
    let second = broker.superuser("second");
    broker.rest.delete_user("root");
    let mut backend = broker.client(&second, Version::V5, "root");
    retain(&mut backend, "more", "second's");
    wait_for(&broker, &second, &[("chatsync", "new"), ("more", "second's"), ("news", "root's"), ("updates", "b's")]);
}

#[test]
fn the_retain_flag_may_be_for_superusers_only() {
    let options = BrokerOptions::new().set("acl.retain", "superusers").set("acl.on_deny", "drop");
    let broker = Broker::start(options);
    let root = broker.superuser("root");
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    for version in Version::COMMON {
        let mut client = broker.client(&ua, version, "client");
        for qos in [1, 2] {
            let refused = client.publish(&Publish::new("chatsync", "kept", qos).retained());
            assert_eq!(refused, Outcome::Acked(version.pick(0x87, 0)));
        }
        client.publish_ok("chatsync", "passing", 1);
        watcher.expect("chatsync", "passing");
        // A Will is a message, too.
        let will = Publish::new("updates", "kept", 1).retained();
        assert_eq!(broker.connect(&ua.connect(version, "will").will(will)).refused(), version.pick(0x87, 5));
        let will = Publish::new("updates", "passing", 1);
        broker.connect(&ua.connect(version, "will").will(will)).accepted().0.cut();
        watcher.expect("updates", "passing");
    }
    retain(&mut broker.client(&root, Version::V5, "root"), "news", "root's");
    wait_for(&broker, &root, &[("news", "root's")]);
    assert_eq!(broker.rest.metric("ciqadamq_acl_publish_refused_total", &["retain_not_allowed"]), 4.0);
}
