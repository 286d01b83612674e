//! Quality of service: levels, duplicates, bursts, order.

use std::thread;

use ciqadamq_tests::mqtt::{Event, Packet, Publish, kind, packet, publish};
use ciqadamq_tests::{Broker, Client, Link, Version, WAIT};

#[test]
fn the_lower_of_both_levels_is_delivered() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    for version in Version::COMMON {
        for subscribed in 0..=2 {
            let mut phone = broker.client(&ua, version, "phone");
            assert_eq!(phone.try_subscribe(&[("chat/ua/x", subscribed)]), [subscribed]);
            for published in 0..=2 {
                let text = format!("{subscribed} {published}");
                watcher.client().publish_ok("chat/ua/x", &text, published);
                let message = phone.expect("chat/ua/x", &text);
                assert_eq!(message.qos, subscribed.min(published));
                assert!(!message.dup && !message.retain);
            }
        }
    }
}

#[test]
fn a_qos_2_message_sent_twice_is_delivered_once() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    for version in Version::COMMON {
        let mut phone = broker.client(&ua, version, "phone");
        let message = Publish::new("chatsync", "once", 2);
        phone.send(&publish(version, &message, 9));
        assert!(matches!(phone.next(WAIT), Event::Packet(Packet::Ack { kind: kind::PUBREC, id: 9, .. })));
        phone.send(&publish(version, &Publish { dup: true, ..message }, 9));
        assert!(matches!(phone.next(WAIT), Event::Packet(Packet::Ack { kind: kind::PUBREC, id: 9, .. })));
        phone.send(&packet(kind::PUBREL, 2, &9_u16.to_be_bytes()));
        assert!(matches!(phone.next(WAIT), Event::Packet(Packet::Ack { kind: kind::PUBCOMP, id: 9, .. })));
        phone.publish_ok("chatsync", "next", 2);
        let seen: Vec<String> = watcher.seen().into_iter().map(|(_, text)| text).collect();
        assert_eq!(seen, ["once", "next"]);
    }
}

#[test]
fn what_was_not_acknowledged_is_sent_again() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    for version in Version::COMMON {
        let connect = ua.connect(version, "phone").persistent(600);
        let (mut phone, _) = broker.connect(&connect).accepted();
        phone.subscribe(&["chat/ua/x"]);
        phone.auto_ack = false;
        watcher.publish("chat/ua/x", "unacknowledged");
        phone.expect("chat/ua/x", "unacknowledged");
        phone.cut();
        broker.rest.wait_offline("phone");
        let (mut phone, connack) = broker.connect(&connect).accepted();
        assert!(connack.session_present);
        assert!(phone.expect("chat/ua/x", "unacknowledged").dup);
        phone.disconnect();
        broker.rest.delete("/api/v1/sessions/phone");
        broker.rest.wait_gone("phone");
    }
}

#[test]
fn a_client_that_is_away_gets_everything_in_order_when_it_is_back() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    for version in Version::COMMON {
        let connect = ua.connect(version, "phone").persistent(600);
        let (mut phone, _) = broker.connect(&connect).accepted();
        assert_eq!(phone.try_subscribe(&[("chat/ua/x", 2)]), [2]);
        phone.disconnect();
        broker.rest.wait_offline("phone");
        for i in 0..50_u8 {
            watcher.client().publish_ok("chat/ua/x", &i.to_string(), 1 + i % 2);
        }
        let (mut phone, _) = broker.connect(&connect).accepted();
        for i in 0..50 {
            phone.expect("chat/ua/x", &i.to_string());
        }
        phone.disconnect();
        broker.rest.delete("/api/v1/sessions/phone");
        broker.rest.wait_gone("phone");
    }
}

/// One publisher, as fast as it can, to readers of each kind.
fn burst(qos: u8, count: u32) {
    let broker = Broker::start_default();
    let (root, ua) = (broker.superuser("root"), broker.user("ua"));
    let mut readers: Vec<Client> = Vec::new();
    for version in Version::COMMON {
        for link in Link::both() {
            let id = format!("reader{}", readers.len());
            let connect = ciqadamq_tests::Connect::new(version, link, &id).login(&ua.username, &ua.password);
            let (mut reader, _) = broker.connect(&connect).accepted();
            assert_eq!(reader.try_subscribe(&[("chat/ua/x", qos)]), [qos]);
            readers.push(reader);
        }
    }
    let mut publisher = broker.client(&root, Version::V5, "publisher");
    thread::scope(|scope| {
        for mut reader in readers {
            scope.spawn(move || {
                for i in 0..count {
                    reader.expect("chat/ua/x", &i.to_string());
                }
            });
        }
        // At most so many are on their way at once, as with any client.
        for chunk in (0..count).collect::<Vec<_>>().chunks(200) {
            let ids: Vec<u16> =
                chunk.iter().map(|i| publisher.send_publish(&Publish::new("chat/ua/x", i.to_string(), qos))).collect();
            match qos {
                0 => assert!(publisher.ping()),
                _ => finish(&mut publisher, qos, &ids),
            }
        }
    });
    // What is on its way when a reader leaves counts as dropped too, for another reason.
    let dropped = broker.rest.metric("ciqadamq_messages_dropped_total", &["queue_full"]);
    assert!(dropped < 0.5, "{dropped} dropped");
}

/// Plays the acknowledgements of several messages to their end.
fn finish(publisher: &mut Client, qos: u8, ids: &[u16]) {
    let mut open = ids.len();
    while open > 0 {
        match publisher.next(WAIT) {
            Event::Packet(Packet::Ack { kind: kind::PUBACK | kind::PUBCOMP, .. }) => open -= 1,
            Event::Packet(Packet::Ack { kind: kind::PUBREC, id, .. }) if qos == 2 => publisher.ack(kind::PUBREL, id),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_burst_at_qos_0_arrives_whole_and_in_order() {
    burst(0, 3_000);
}

#[test]
fn a_burst_at_qos_1_arrives_whole_and_in_order() {
    burst(1, 3_000);
}

#[test]
fn a_burst_at_qos_2_arrives_whole_and_in_order() {
    burst(2, 1_500);
}

#[test]
fn many_publishers_keep_their_own_order() {
    let broker = Broker::start_default();
    let root = broker.superuser("root");
    let ua = broker.user("ua");
    let mut reader = broker.client(&root, Version::V5, "reader");
    reader.subscribe(&["chatsync"]);
    thread::scope(|scope| {
        for n in 0..5 {
            let mut device = broker.client(&ua, Version::COMMON[n % 2], &format!("device{n}"));
            scope.spawn(move || {
                for i in 0..200 {
                    device.publish_ok("chatsync", &format!("{n} {i}"), 1);
                }
            });
        }
        let mut next = [0; 5];
        for _ in 0..1_000 {
            let text = reader.message().text();
            let (n, i) = text.split_once(' ').unwrap();
            let n: usize = n.parse().unwrap();
            assert_eq!(i.parse::<u32>().unwrap(), next[n], "device {n}");
            next[n] += 1;
        }
    });
}
