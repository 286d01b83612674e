//! Whose Retained Messages there are, and what becomes of them.

use std::thread;
use std::time::Duration;

use ciqadamq_tests::mqtt::{Event, Properties, Publish, Value, id, kind, packet, text};
use ciqadamq_tests::{Account, Broker, BrokerOptions, Client, Cluster, Outcome, Version, WAIT, eventually};
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

/// SUBSCRIBE with a Subscription Identifier.
fn subscribe_as(client: &mut Client, filter: &str, number: u32) {
    let packet_id = client.packet_id().to_be_bytes();
    let properties = Properties::new().with(id::SUBSCRIPTION_IDENTIFIER, Value::Varint(number));
    client.send(&packet(kind::SUBSCRIBE, 2, &[&packet_id[..], &properties.encode(), &text(filter), &[1]].concat()));
}

#[test]
fn a_retained_message_is_for_the_subscription_that_asked_for_it_and_never_for_a_shared_one() {
    let broker = Broker::start_default();
    let root = broker.superuser("root");
    let ua = broker.user("ua");
    let mut backend = broker.client(&root, Version::V5, "root");
    for name in ["x", "y"] {
        retain(&mut backend, &format!("chat/ua/{name}"), "kept");
    }
    // From a publisher without properties, too.
    let mut old = broker.client(&root, Version::V311, "old");
    retain(&mut old, "chat/ua/z", "kept");
    for version in Version::COMMON {
        let mut member = broker.client(&ua, version, "member");
        member.subscribe(&["$share/g/chat/ua/#", "chat/ua/end"]);
        // Not with another subscription either, but for what is that one's.
        member.subscribe(&["chat/ua/y"]);
        member.expect("chat/ua/y", "kept");
        backend.publish_ok("chat/ua/x", "now", 1);
        member.expect("chat/ua/x", "now");
        backend.publish_ok("chat/ua/end", "end", 1);
        let others = member.until("chat/ua/end", "end");
        assert!(others.is_empty(), "{version:?}: {others:?}");
        member.disconnect();
    }
    let filters: [(&str, u32, &[&str]); 3] =
        [("chat/ua/x", 7, &["x"]), ("chat/ua/+", 300, &["x", "y", "z"]), ("+/ua/z", 9, &["z"])];
    for connect in [ua.connect(Version::V5, "phone"), ua.connect(Version::V5, "phone").persistent(60)] {
        let (mut phone, _) = broker.connect(&connect).accepted();
        for (filter, number, expected) in filters {
            subscribe_as(&mut phone, filter, number);
            let mut names: Vec<String> = Vec::new();
            while names.len() < expected.len() {
                match phone.message_within(WAIT) {
                    Ok(message) => {
                        let told = message.properties.number(id::SUBSCRIPTION_IDENTIFIER);
                        assert_eq!(told, Some(number), "{filter}: {message:?}");
                        names.push(message.topic.replace("chat/ua/", ""));
                    }
                    // The SUBACK comes before or after them.
                    Err(Event::Packet(_)) => {}
                    Err(other) => panic!("{filter}: {other:?}"),
                }
            }
            names.sort();
            assert_eq!(names, expected, "{filter}");
        }
        for publisher in [&mut backend, &mut old] {
            publisher.publish_ok("chat/ua/w", "now", 1);
            let message = loop {
                match phone.message_within(WAIT) {
                    Ok(message) => break message,
                    // The last SUBACK.
                    Err(Event::Packet(_)) => {}
                    Err(other) => panic!("{other:?}"),
                }
            };
            let told = message.properties.number(id::SUBSCRIPTION_IDENTIFIER);
            assert_eq!((message.topic.as_str(), told), ("chat/ua/w", Some(300)));
        }
        phone.disconnect();
    }
}

/// The same on a node of a cluster, which may take a subscription into account a moment after it has acknowledged it.
fn retained_on(node: &Broker, root: &Account) -> Vec<(String, String)> {
    let mut late = node.client(root, Version::V5, "late");
    late.subscribe(&["#"]);
    let messages = std::iter::from_fn(|| late.message_within(Duration::from_millis(500)).ok());
    // What was published for somebody of the same name before may come, too.
    let mut got: Vec<_> = messages.filter(|m| m.retain).map(|m| (m.topic.clone(), m.text())).collect();
    late.disconnect();
    got.sort();
    got
}

fn of(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(topic, text)| ((*topic).to_owned(), (*text).to_owned())).collect()
}

#[track_caller]
fn wait_on(node: &Broker, root: &Account, expected: &[(&str, &str)]) {
    let expected = of(expected);
    eventually(&format!("retained are {expected:?}"), || (retained_on(node, root) == expected).then_some(()));
}

#[test]
fn a_node_that_was_away_has_what_is_retained_and_brings_nothing_back_that_was_cleared() {
    let mut cluster = Cluster::start_default();
    let root = cluster[1].superuser("root");
    let mut publisher = cluster[1].client(&root, Version::V5, "backend");
    let before = [("again", "old"), ("changed", "old"), ("cleared", "private"), ("kept", "as it was")];
    for (topic, text) in before {
        retain(&mut publisher, topic, text);
    }
    // And one of a user who is deleted meanwhile.
    let gone = cluster[3].user("gone");
    retain(&mut cluster[3].client(&gone, Version::V5, "phone"), "chatsync", "private");
    let with_it =
        [("again", "old"), ("changed", "old"), ("chatsync", "private"), ("cleared", "private"), ("kept", "as it was")];
    wait_on(&cluster[1], &root, &with_it);
    wait_on(&cluster[3], &root, &with_it);
    cluster.kill(3);
    cluster[1].rest.delete_user(&gone.username);
    wait_on(&cluster[1], &root, &before);
    for (topic, text) in [("changed", "new"), ("cleared", ""), ("again", ""), ("again", "new"), ("further", "new")] {
        retain(&mut publisher, topic, text);
    }
    cluster[3].spawn();
    cluster.wait_ready();
    let after = of(&[("again", "new"), ("changed", "new"), ("further", "new"), ("kept", "as it was")]);
    assert_eq!(retained_on(&cluster[3], &root), after, "at once");
    // Nor does anybody else have it from there, or from its own disk.
    for node in [1, 2] {
        cluster.kill(node);
        cluster[node].spawn();
        cluster.wait_ready();
        assert_eq!(retained_on(&cluster[node], &root), after, "node {node}");
    }
}

/// Cuts a node off, and changes what is retained on both sides.
fn cut_off_and_back(is_killed: bool) {
    let mut cluster = Cluster::start_default();
    if !cluster.can_cut() {
        return println!("skipped: nodes can be cut off from each other by root only");
    }
    let root = cluster[1].superuser("root");
    let mut here = cluster[1].client(&root, Version::V5, "here");
    let mut there = cluster[3].client(&root, Version::V5, "there");
    retain(&mut here, "old", "private");
    wait_on(&cluster[3], &root, &[("old", "private")]);
    cluster.cut_off(3);
    eventually("the node is held for dead", || {
        (cluster[1].rest.metric("ciqadamq_cluster_node_up", &["3"]) == 0.0).then_some(())
    });
    for (client, topic, text) in [(&mut there, "there", "new"), (&mut here, "here", "new")] {
        retain(client, topic, text);
    }
    retain(&mut here, "old", "");
    if is_killed {
        cluster.kill(3);
    }
    cluster.mend(3);
    if is_killed {
        cluster[3].spawn();
    }
    cluster.wait_ready();
    for node in cluster.ids() {
        wait_on(&cluster[node], &root, &[("here", "new"), ("there", "new")]);
    }
}

#[test]
fn nodes_that_were_cut_off_from_each_other_have_the_newest_of_both() {
    cut_off_and_back(false);
}

#[test]
fn what_a_node_alone_had_retained_before_it_ended_is_everywhere_when_it_is_back() {
    cut_off_and_back(true);
}

#[test]
fn what_two_nodes_retain_at_the_same_moment_is_the_same_everywhere() {
    let cluster = Cluster::start_default();
    let root = cluster[1].superuser("root");
    let publishers: Vec<_> = [1, 2]
        .map(|node| {
            let mut client = cluster[node].client(&root, Version::V5, &format!("backend{node}"));
            thread::spawn(move || {
                for n in 0..300 {
                    // Like a Will and the return of its client; the last of each topic is cleared here and there.
                    let text = if n % 7 == u32::from(node) { String::new() } else { format!("{n} of node {node}") };
                    client.publish(&Publish::new(format!("t/{}", n % 30), &text, 1).retained());
                }
            })
        })
        .into_iter()
        .collect();
    publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
    eventually("all nodes retain the same", || {
        let all: Vec<_> = cluster.ids().map(|node| retained(&cluster[node], &root)).collect();
        (all[0] == all[1] && all[1] == all[2]).then_some(())
    });
}
