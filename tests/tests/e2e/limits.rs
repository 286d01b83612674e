//! What one client may use up.

use std::time::{Duration, Instant};

use ciqadamq_tests::mqtt::{Answer, Event, Publish, publish};
use ciqadamq_tests::{Broker, BrokerOptions, Outcome, Version, WAIT, eventually};

const QUOTA: u8 = 0x97;

fn limited(key: &str, value: i64) -> Broker {
    Broker::start(BrokerOptions::new().set(&format!("limits.{key}"), value))
}

#[test]
fn a_user_has_so_many_sessions_and_keeps_those_there_are() {
    let broker = limited("sessions_per_user", 2);
    let (ua, ub) = (broker.user("ua"), broker.user("ub"));
    for version in Version::COMMON {
        let mut first = broker.client(&ua, version, "one");
        let (second, _) = broker.connect(&ua.connect(version, "two").persistent(600)).accepted();
        second.disconnect();
        broker.rest.wait_offline("two");
        for link in ciqadamq_tests::Link::both() {
            let mut third = ua.connect(version, "three");
            third.link = link;
            assert_eq!(broker.connect(&third).refused(), version.pick(QUOTA, 3), "{version:?}");
        }
        assert!(first.ping());
        // Its own sessions, a takeover and somebody else's are no third one.
        broker.client(&ub, version, "three").disconnect();
        let (second, connack) = broker.connect(&ua.connect(version, "two").persistent(600)).accepted();
        assert!(connack.session_present);
        let mut first = broker.client(&ua, version, "one");
        assert!(first.ping());
        second.disconnect();
        assert_eq!(broker.rest.delete("/api/v1/sessions/two").status, 204);
        broker.rest.wait_gone("two");
        broker.client(&ua, version, "three").disconnect();
        first.disconnect();
        for id in ["one", "three"] {
            broker.rest.wait_gone(id);
        }
    }
    assert!(broker.rest.metric("ciqadamq_auth_too_many_sessions_total", &[]) >= 4.0);
    // A backend has no such bound.
    let root = broker.superuser("root");
    let all: Vec<_> = (0..5).map(|i| broker.client(&root, Version::V5, &format!("root{i}"))).collect();
    all.into_iter().for_each(ciqadamq_tests::Client::disconnect);
}

#[test]
fn a_session_has_so_many_subscriptions() {
    let broker = limited("subscriptions_per_session", 3);
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    for version in Version::COMMON {
        let mut client = broker.client(&ua, version, "reader");
        let codes = client.try_subscribe(&[
            ("chat/ua/1", 0),
            ("chat/ua/2", 0),
            ("chat/ua/3", 0),
            ("chat/ua/4", 0),
            ("chat/ua/1", 1),
        ]);
        assert_eq!(codes, [0, 0, 0, version.pick(QUOTA, 0x80), 1], "{version:?}");
        watcher.publish("chat/ua/4", "no");
        watcher.publish("chat/ua/3", "yes");
        client.expect("chat/ua/3", "yes");
        client.unsubscribe(&["chat/ua/3"]);
        client.subscribe(&["chat/ua/4"]);
        watcher.publish("chat/ua/4", "now");
        client.expect("chat/ua/4", "now");
        client.disconnect();
    }
    let refused = broker.rest.metric("ciqadamq_acl_subscribe_refused_total", &["too_many_subscriptions"]);
    assert_eq!(refused, 2.0);
    let root = broker.superuser("root");
    broker.client(&root, Version::V5, "root").subscribe(&["a", "b", "c", "d", "e"]);
}

#[test]
fn a_session_has_so_many_bytes_of_filters() {
    let broker = limited("subscription_bytes_per_session", 1000);
    let ua = broker.user("ua");
    let long = |name: &str| format!("chat/ua/{name}{}", "x".repeat(391));
    for version in Version::COMMON {
        let mut client = broker.client(&ua, version, "reader");
        let (a, b, c) = (long("a"), long("b"), long("c"));
        let codes = client.try_subscribe(&[(&a, 0), (&b, 0), (&c, 0), ("chat/ua/short", 0), (&a, 1)]);
        assert_eq!(codes, [0, 0, version.pick(QUOTA, 0x80), 0, 1], "{version:?}");
        client.unsubscribe(&[&a]);
        client.subscribe(&[&c]);
        client.disconnect();
    }
}

/// The engine walks filters recursively: tens of thousands of levels ended the process.
#[test]
fn deep_topics_and_filters_are_refused() {
    let broker = Broker::start_default();
    let (ua, root) = (broker.user("ua"), broker.superuser("root"));
    let mut other = broker.client(&ua, Version::V5, "other");
    for levels in [129, 1_000, 60_000] {
        for version in Version::COMMON {
            let slashes = "/".repeat(levels - 2);
            let mut client = broker.client(&ua, version, "deep");
            let codes = client.try_subscribe(&[(&format!("chat/ua{slashes}"), 1), ("chat/ua/x", 1)]);
            assert_eq!(codes, [version.pick(0x8F, 0x80), 1], "{levels} levels");
            client.disconnect();
            let mut backend = broker.client(&root, version, "root");
            assert!(backend.try_subscribe(&[(&format!("a{slashes}/b"), 1)])[0] >= 0x80);
            backend.send_publish(&Publish::new(format!("a{slashes}/b"), "deep", 1).retained());
            assert_eq!(backend.expect_closed(), version.pick(Some(0x90), None));
            let will = Publish::new(format!("a{slashes}/b"), "deep", 1).retained();
            broker.connect(&root.connect(version, "root").will(will)).refused();
        }
        assert!(other.ping(), "{levels} levels ended the broker");
    }
    // What is allowed works.
    let deep = format!("chat/ua/{}", vec!["x"; 126].join("/"));
    let mut client = broker.client(&ua, Version::V5, "deep");
    client.subscribe(&[&deep]);
    broker.client(&root, Version::V5, "root").publish_ok(&deep, "deep", 1);
    client.expect(&deep, "deep");
}

/// The widest setting must not bring the engine's recursion to its end either, in a build without optimisation.
#[test]
fn as_many_levels_as_can_be_configured_are_handled() {
    let broker = limited("topic_levels", 512);
    let root = broker.superuser("root");
    let deep = vec!["x"; 512].join("/");
    let mut client = broker.client(&root, Version::V5, "root");
    client.subscribe(&[&deep, &format!("{}/#", vec!["+"; 511].join("/"))]);
    client.publish(&Publish::new(&deep, "deep", 1).retained());
    client.expect(&deep, "deep");
    let without_rule = Broker::start(BrokerOptions::new().set("acl.enabled", false));
    let mut client = without_rule.client(&without_rule.user("ua"), Version::V5, "deep");
    assert!(client.try_subscribe(&[(&"/".repeat(60_000), 1)])[0] >= 0x80);
    client.send_publish(&Publish::new("/".repeat(60_000), "deep", 1).retained());
    client.expect_closed();
    without_rule.client(&without_rule.user("ub"), Version::V5, "still").disconnect();
}

#[test]
fn who_publishes_too_fast_is_slowed_down_and_loses_nothing() {
    const RATE: u32 = 50;
    const COUNT: u32 = 250;
    let broker = limited("publish_messages_per_sec", RATE.into());
    let mut watcher = broker.watch();
    let (ua, ub) = (broker.user("ua"), broker.user("ub"));
    for version in Version::COMMON {
        let mut flooder = broker.client(&ua, version, "flooder");
        let mut calm = broker.client(&ub, version, "calm");
        let begun = Instant::now();
        let packets: Vec<u8> =
            (1..=COUNT).flat_map(|n| publish(version, &Publish::new("chatsync", n.to_string(), 1), n as u16)).collect();
        flooder.send(&packets);
        // Somebody else is not slowed down.
        calm.publish_ok("updates", "calm", 1);
        let calm_after = begun.elapsed();
        let mut got = Vec::new();
        while got.len() < COUNT as usize {
            let message = watcher.client().message();
            if message.topic == "chatsync" {
                got.push(message.text());
            }
        }
        let took = begun.elapsed();
        assert_eq!(got, (1..=COUNT).map(|n| n.to_string()).collect::<Vec<_>>());
        // Two seconds' worth may come at once.
        let least = Duration::from_secs(((COUNT - 2 * RATE) / RATE).into()).mul_f64(0.9);
        assert!(took >= least, "{COUNT} messages in {took:?}");
        assert!(calm_after < least, "the calm one waited {calm_after:?}");
        for n in 1..=COUNT {
            assert!(matches!(flooder.finish_publish(1, n as u16), Outcome::Acked(0 | 0x10)));
        }
        for client in [flooder, calm] {
            client.disconnect();
        }
    }
    assert!(broker.rest.metric("ciqadamq_auth_throttled_total", &[]) > 0.0);
}

#[test]
fn bytes_count_as_well_as_messages() {
    let broker = limited("publish_bytes_per_sec", 20_000);
    let ua = broker.user("ua");
    let mut flooder = broker.client(&ua, Version::V5, "flooder");
    let begun = Instant::now();
    for _ in 0..8 {
        flooder.publish_ok("chatsync", &"x".repeat(10_000), 1);
    }
    // 80 KB: two seconds' worth at once, two more in two seconds; the last pause is not waited for.
    assert!(begun.elapsed() >= Duration::from_millis(1400), "{:?}", begun.elapsed());
}

/// A client that takes its messages more slowly than they come must not make the broker keep them all.
#[test]
fn a_slow_reader_loses_its_own_messages_and_nobody_elses() {
    let broker = limited("lag_secs", 2);
    let (ua, ub) = (broker.user("ua"), broker.user("ub"));
    let mut watcher = broker.watch();
    let (mut slow, _) = broker.connect(&ua.connect(Version::V5, "slow").persistent(600)).accepted();
    slow.try_subscribe(&[("fanout/#", 0)]);
    let mut quick = broker.client(&ub, Version::V5, "quick");
    quick.try_subscribe(&[("fanout/#", 0)]);
    let begun = Instant::now();
    let payload = "x".repeat(20_000);
    let mut sent = 0;
    // The slow one never reads.
    while broker.rest.metric("ciqadamq_auth_laggards_closed_total", &[]) == 0.0 {
        assert!(begun.elapsed() < WAIT * 2, "the slow reader is still there, after {sent} messages");
        for _ in 0..100 {
            watcher.client().publish_ok("fanout/x", &payload, 0);
            sent += 1;
        }
        watcher.client().publish_ok("fanout/end", &sent.to_string(), 0);
        assert_eq!(quick.until("fanout/end", &sent.to_string()).len(), 100, "the quick one lost some");
        watcher.seen();
    }
    broker.rest.wait_offline("slow");
    assert!(quick.ping());
    assert!(eventually("the log says so", || broker.log().contains("client_too_slow").then_some(true)));
    if let Some(resident) = broker.resident_kb() {
        println!("{sent} messages of 20 KB, resident {resident} KB");
    }
    // It finds its session, with the newest that fit.
    drop(slow);
    let (mut slow, connack) = broker.connect(&ua.connect(Version::V5, "slow").persistent(600)).accepted();
    assert!(connack.session_present);
    watcher.publish("fanout/after", "it is back");
    assert!(slow.until("fanout/after", "it is back").len() <= 1001);
}

#[test]
fn more_on_the_way_than_receive_maximum_ends_the_connection() {
    let broker = Broker::start(BrokerOptions::new().set("mqtt.max_inflight", 5));
    let ua = broker.user("ua");
    let mut client = broker.client(&ua, Version::V5, "sender");
    // QoS 2 without PUBREL: none of them ends.
    for _ in 0..6 {
        client.send_publish(&Publish::new("chatsync", "x", 2));
    }
    assert_eq!(client.expect_closed(), Some(0x93));
}

#[test]
fn a_connection_that_ends_is_told_why() {
    let broker = Broker::start_default();
    let ua = broker.user("ua");
    for link in ciqadamq_tests::Link::both() {
        let client = |id: &str| {
            let mut connect = ua.connect(Version::V5, id);
            connect.link = link.clone();
            broker.connect(&connect).accepted().0
        };
        // Another connection of the same client.
        let mut first = client("taken");
        let second = client("taken");
        assert_eq!(first.expect_closed(), Some(0x8E), "{link:?}");
        second.disconnect();
        // No PINGREQ in time.
        let mut connect = ua.connect(Version::V5, "silent").keep_alive(1);
        connect.link = link.clone();
        let (mut silent, _) = broker.connect(&connect).accepted();
        assert_eq!(silent.expect_closed(), Some(0x8D), "{link:?}");
        // A packet that is none.
        let mut odd = client("odd");
        odd.send(&[0xF0, 0x01, 0x00]);
        assert!(matches!(odd.expect_closed(), Some(0x80..=0x82)), "{link:?}");
        // A CONNECT where none is due.
        let mut twice = client("twice");
        twice.send(&ua.connect(Version::V5, "twice").encode());
        assert_eq!(twice.expect_closed(), Some(0x82), "{link:?}");
        // What may not be published.
        let mut sender = client("sender");
        sender.send_publish(&Publish::new("chat/ub/x", "forged", 1));
        assert_eq!(sender.expect_closed(), Some(0x87), "{link:?}");
    }
}

#[test]
fn a_user_leaves_so_many_retained_messages() {
    let options = BrokerOptions::new()
        .set("limits.retained_per_user", 2)
        .set("acl.on_deny", "drop")
        .set("acl.publish_topics", ["chatsync", "updates", "dev/{clientid}"]);
    let broker = Broker::start(options);
    let (ua, ub, root) = (broker.user("ua"), broker.user("ub"), broker.superuser("root"));
    let retain = |client: &mut ciqadamq_tests::Client, topic: &str, text: &str| {
        client.publish(&Publish::new(topic, text, 1).retained())
    };
    let mut client = broker.client(&ua, Version::V5, "one");
    for topic in ["chatsync", "updates", "updates"] {
        assert!(matches!(retain(&mut client, topic, "mine"), Outcome::Acked(0 | 0x10)));
    }
    assert_eq!(retain(&mut client, "dev/one", "one too many"), Outcome::Acked(QUOTA));
    // Not retained it passes; and one that is cleared, or replaced by somebody else, makes room.
    assert!(matches!(client.publish(&Publish::new("dev/one", "x", 1)), Outcome::Acked(0 | 0x10)));
    assert!(matches!(retain(&mut client, "updates", ""), Outcome::Acked(0 | 0x10)));
    assert!(matches!(retain(&mut client, "dev/one", "now"), Outcome::Acked(0 | 0x10)));
    assert_eq!(retain(&mut client, "updates", "again"), Outcome::Acked(QUOTA));
    let mut other = broker.client(&ub, Version::V5, "two");
    assert!(matches!(retain(&mut other, "chatsync", "theirs"), Outcome::Acked(0 | 0x10)));
    assert!(matches!(retain(&mut client, "updates", "again"), Outcome::Acked(0 | 0x10)));
    let mut backend = broker.client(&root, Version::V5, "root");
    for n in 0..5 {
        assert!(matches!(retain(&mut backend, &format!("any/{n}"), "root's"), Outcome::Acked(0 | 0x10)));
    }
    let refused = broker.rest.metric("ciqadamq_acl_publish_refused_total", &["too_many_retained"]);
    assert_eq!(refused, 2.0);
    // With `disconnect` the client is told in its DISCONNECT.
    let strict = BrokerOptions::new().set("limits.retained_per_user", 1);
    let broker = Broker::start(strict);
    let mut client = broker.client(&broker.user("ua"), Version::V5, "one");
    retain(&mut client, "chatsync", "mine");
    client.send_publish(&Publish::new("updates", "one too many", 1).retained());
    assert_eq!(client.expect_closed(), Some(QUOTA));
}

#[test]
fn a_connection_that_is_refused_its_place_costs_nobody_else_anything() {
    let broker = limited("sessions_per_user", 1);
    let (ua, ub) = (broker.user("ua"), broker.user("ub"));
    let mut kept = broker.client(&ua, Version::V5, "kept");
    let mut other = broker.client(&ub, Version::V5, "other");
    for n in 0..50 {
        match broker.connect(&ua.connect(Version::V5, &format!("more{n}"))) {
            Answer::Refused(QUOTA) => {}
            answer => panic!("{answer:?}"),
        }
    }
    assert!(kept.ping() && other.ping());
    assert!(matches!(kept.next(Duration::from_millis(1)), Event::Timeout));
}
