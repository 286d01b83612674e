//! How a refusal looks to the client that is refused.

use ciqadamq_tests::mqtt::{Event, Packet, Publish, kind, publish};
use ciqadamq_tests::{Broker, BrokerOptions, Outcome, Version, WAIT};

fn dropping() -> Broker {
    Broker::start(BrokerOptions::new().set("acl.on_deny", "drop"))
}

#[test]
fn by_default_a_refused_publish_closes_the_connection() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    for version in Version::COMMON {
        for qos in 0..=2 {
            let mut client = broker.client(&ua, version, "sender");
            client.send_publish(&Publish::new("chat/ub/x", "forged", qos));
            // Whatever was sent behind it is not looked at any more.
            client.send_publish(&Publish::new("chatsync", "behind", 0));
            assert_eq!(client.expect_closed(), version.pick(Some(0x87), None));
            let seen = watcher.seen();
            assert!(!seen.iter().any(|(topic, _)| topic == "chat/ub/x"), "{seen:?}");
        }
    }
}

#[test]
fn with_drop_a_refused_publish_is_acknowledged_and_goes_nowhere() {
    let broker = dropping();
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    for version in Version::COMMON {
        let mut client = broker.client(&ua, version, "sender");
        for qos in 0..=2 {
            let outcome = client.publish(&Publish::new("chat/ub/x", "forged", qos));
            let expected = if qos == 0 { Outcome::Sent } else { Outcome::Acked(version.pick(0x87, 0)) };
            assert_eq!(outcome, expected, "{version:?} QoS {qos}");
            client.publish_ok("chatsync", "after", qos);
            assert!(client.ping());
            assert_eq!(watcher.seen(), [("chatsync".to_owned(), "after".to_owned())], "{version:?} QoS {qos}");
        }
    }
}

#[test]
fn a_refused_qos_2_publish_frees_its_packet_identifier() {
    let broker = dropping();
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    for version in Version::COMMON {
        let mut client = broker.client(&ua, version, "sender");
        for round in 0..5 {
            client.send(&publish(version, &Publish::new("chat/ub/x", "forged", 2), 7));
            assert_eq!(client.finish_publish(2, 7), Outcome::Acked(version.pick(0x87, 0)));
            client.send(&publish(version, &Publish::new("chatsync", round.to_string(), 2), 7));
            assert!(matches!(client.finish_publish(2, 7), Outcome::Acked(0 | 0x10)));
            assert_eq!(watcher.seen(), [("chatsync".to_owned(), round.to_string())]);
        }
    }
}

#[test]
fn one_subscribe_is_answered_filter_by_filter() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    for version in Version::COMMON {
        let mut client = broker.client(&ua, version, "reader");
        let codes = client.try_subscribe(&[("chat/ua/x", 0), ("chat/ub/x", 0), ("fanout/#", 0)]);
        assert_eq!(codes, [0, version.pick(0x87, 0x80), 0]);
        for topic in ["chat/ub/x", "chat/ua/x", "fanout/y"] {
            watcher.publish(topic, "m");
        }
        client.expect("chat/ua/x", "m");
        client.expect("fanout/y", "m");
        assert_eq!(broker.rest.session("reader").unwrap()["subscriptions"], 2);
    }
}

#[test]
fn a_flood_of_refused_publishes_costs_neither_memory_nor_log() {
    const FLOOD: u32 = 100_000;
    let broker = dropping();
    let ua = broker.user("ua");
    let mut client = broker.client(&ua, Version::V5, "flooder");
    let mut flood = |n: u32| {
        for _ in 0..n / 100 {
            let batch: Vec<u8> =
                (1..=100).flat_map(|id| publish(Version::V5, &Publish::new("chat/ub/x", "forged", 1), id)).collect();
            client.send(&batch);
            for _ in 0..100 {
                match client.next(WAIT) {
                    Event::Packet(Packet::Ack { kind: kind::PUBACK, code: 0x87, .. }) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    };
    flood(2_000);
    let before = broker.resident_kb();
    flood(FLOOD);
    let after = broker.resident_kb();
    if let (Some(before), Some(after)) = (before, after) {
        assert!(after < before + 16 * 1024, "{before} KB grew to {after} KB");
    }
    let lines = broker.log().lines().count();
    // So many a second, and a slow machine takes its time.
    assert!(lines < FLOOD as usize / 20, "{lines} lines of log");
    assert!(broker.rest.metric("ciqadamq_acl_publish_refused_total", &[]) >= f64::from(FLOOD));
}
