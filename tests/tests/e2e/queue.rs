//! An overflowing queue loses the oldest, keeps the order, and says so.

use std::thread;
use std::time::Duration;

use ciqadamq_tests::mqtt::{Event, Packet, Publish, kind};
use ciqadamq_tests::{Broker, Client, Version, WAIT, eventually};

const LIMIT: u32 = 1_000;

/// Publishes a range of numbers, many at once, and waits for all acknowledgements.
fn publish_all(client: &mut Client, topic: &str, numbers: std::ops::RangeInclusive<u32>) {
    let numbers: Vec<u32> = numbers.collect();
    for chunk in numbers.chunks(100) {
        for n in chunk {
            client.send_publish(&Publish::new(topic, n.to_string(), 1));
        }
        for _ in chunk {
            match client.next(WAIT) {
                Event::Packet(Packet::Ack { kind: kind::PUBACK, .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

fn numbers(client: &mut Client, topic: &str) -> Vec<u32> {
    client.until(topic, "end").iter().map(|message| message.text().parse().unwrap()).collect()
}

fn dropped(broker: &Broker) -> u32 {
    broker.rest.metric("ciqadamq_messages_dropped_total", &["queue_full"]) as u32
}

#[test]
fn an_offline_client_gets_the_newest_in_order_and_the_loss_is_counted() {
    for version in Version::COMMON {
        let broker = Broker::start_default();
        let (root, ua) = (broker.superuser("root"), broker.user("ua"));
        let mut publisher = broker.client(&root, Version::V5, "publisher");
        let connect = ua.connect(version, "phone").persistent(600);
        let (mut phone, _) = broker.connect(&connect).accepted();
        phone.subscribe(&["chat/ua/x"]);
        phone.disconnect();
        broker.rest.wait_offline("phone");
        publish_all(&mut publisher, "chat/ua/x", 1..=1_500);
        assert_eq!(broker.rest.session("phone").unwrap()["queued"], LIMIT);
        eventually("500 are counted as dropped", || (dropped(&broker) == 500).then_some(()));

        let (mut phone, connack) = broker.connect(&connect).accepted();
        assert!(connack.session_present);
        let got: Vec<u32> = (0..LIMIT).map(|_| phone.message().text().parse().unwrap()).collect();
        assert_eq!(got, (501..=1_500).collect::<Vec<_>>(), "{version:?}");
        publisher.publish_ok("chat/ua/x", "end", 1);
        assert_eq!(numbers(&mut phone, "chat/ua/x"), [0; 0]);
    }
}

/// Comes back to 900 waiting messages and acknowledges nothing while 700 more are sent, and for a while after; gives what it got.
fn come_back(look_first: bool, silent: Duration) -> Vec<u32> {
    let broker = Broker::start_default();
    let (root, ua) = (broker.superuser("root"), broker.user("ua"));
    let mut publisher = broker.client(&root, Version::V5, "publisher");
    let connect = ua.connect(Version::V5, "phone").persistent(600);
    let (mut phone, _) = broker.connect(&connect).accepted();
    phone.subscribe(&["chat/ua/x"]);
    phone.disconnect();
    broker.rest.wait_offline("phone");
    publish_all(&mut publisher, "chat/ua/x", 1..=900);
    let (mut phone, _) = broker.connect(&connect.receive_maximum(20)).accepted();
    let mut got = Vec::new();
    if look_first {
        phone.auto_ack = false;
        let first = phone.message();
        got.push(first.text().parse().unwrap());
        publish_all(&mut publisher, "chat/ua/x", 901..=1_600);
        phone.auto_ack = true;
        phone.ack(kind::PUBACK, first.packet_id.unwrap());
    } else {
        publish_all(&mut publisher, "chat/ua/x", 901..=1_600);
    }
    thread::sleep(silent);
    publisher.publish_ok("chat/ua/x", "end", 1);
    got.extend(numbers(&mut phone, "chat/ua/x"));
    let lost = 1_600 - got.len() as u32;
    eventually("what is lost is counted", || (dropped(&broker) == lost).then_some(()));
    got
}

#[track_caller]
fn in_order(got: &[u32]) {
    assert!(got.is_sorted_by(|a, b| a < b), "out of order: {got:?}");
    assert_eq!(got.last(), Some(&1_600));
}

#[test]
fn a_client_that_is_back_and_does_not_read_keeps_the_order() {
    in_order(&come_back(true, Duration::ZERO));
}

#[test]
fn what_is_sent_during_the_return_comes_after_what_waited() {
    in_order(&come_back(false, Duration::ZERO));
}

#[test]
#[ignore = "takes ten seconds: so long the client reads nothing"]
fn a_client_that_is_back_and_reads_nothing_for_ten_seconds_keeps_the_order() {
    let got = come_back(false, Duration::from_secs(10));
    in_order(&got);
    // What is on its way (20) and what waits (1,000) is what it gets.
    assert!((1_000..=1_020).contains(&got.len()), "{}", got.len());
}
