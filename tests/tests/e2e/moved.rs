//! A session that moves from node to node is on the disk of the node that has it, with all it is owed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ciqadamq_tests::mqtt::{Event, Packet, Publish, kind};
use ciqadamq_tests::{BrokerOptions, Client, Cluster, Outcome, Version, WAIT, eventually};

use crate::crash::Random;

const TOPIC: &str = "chat/ua/x";

/// Publishes until a device that just subscribed gets it: from then on the publisher's node knows the subscription.
fn known(publisher: &mut Client, device: &mut Client) {
    eventually("the subscription on the publisher's node", || {
        publisher.publish_ok(TOPIC, "ready", 1);
        device.message_within(Duration::from_millis(200)).ok()
    });
}

fn is_pubrel(event: &Event, id: u16) -> bool {
    matches!(event, Event::Packet(Packet::Ack { kind: kind::PUBREL, id: of, .. }) if *of == id)
}

#[test]
fn a_session_that_moved_survives_a_crash_of_the_node_it_came_to() {
    let mut cluster = Cluster::start_default();
    let (root, ua) = (cluster[1].superuser("root"), cluster[1].user("ua"));
    for version in Version::COMMON {
        let mut publisher = cluster[3].client(&root, Version::V5, "backend");
        let connect = ua.connect(version, "phone").persistent(600);
        let (mut phone, _) = cluster[1].connect(&connect).accepted();
        assert_eq!(phone.try_subscribe(&[(TOPIC, 2)]), [2]);
        known(&mut publisher, &mut phone);
        assert!(phone.ping());
        // What comes late of the above is acknowledged, too.
        publisher.publish_ok(TOPIC, "begin", 1);
        phone.until(TOPIC, "begin");
        phone.auto_ack = false;
        // One of which only the end is owed, two that were sent, and twenty that wait.
        let mut sent = Vec::new();
        for n in 0..3 {
            publisher.publish_ok(TOPIC, &n.to_string(), if n == 2 { 1 } else { 2 });
            sent.push(phone.expect(TOPIC, &n.to_string()));
        }
        let owed = sent[0].packet_id.unwrap();
        phone.ack(kind::PUBREC, owed);
        let next = phone.next(WAIT);
        assert!(is_pubrel(&next, owed), "{next:?}");
        phone.cut();
        cluster[1].rest.wait_offline("phone");
        for n in 3..23 {
            publisher.publish_ok(TOPIC, &n.to_string(), 1 + (n % 2) as u8);
        }
        // The other node, which is killed as soon as the client is in.
        let (phone, connack) = cluster[2].connect(&connect).accepted();
        assert!(connack.session_present);
        cluster.kill(2);
        drop(phone);
        cluster[2].spawn();
        cluster.wait_ready();
        let (mut phone, connack) = cluster[2].connect(&connect).accepted();
        assert!(connack.session_present, "{version:?}");
        phone.auto_ack = false;
        let mut texts = Vec::new();
        let mut released = false;
        while texts.len() < 22 {
            match phone.next(WAIT) {
                Event::Packet(Packet::Publish(message)) => {
                    let of = &sent[(texts.len() + 1).min(2)];
                    if texts.len() < 2 {
                        assert_eq!((message.packet_id, message.dup), (of.packet_id, true), "{version:?}");
                    }
                    texts.push(message.text());
                    phone.ack(if message.qos == 2 { kind::PUBREC } else { kind::PUBACK }, message.packet_id.unwrap());
                }
                Event::Packet(Packet::Ack { kind: kind::PUBREL, id, .. }) => {
                    released |= id == owed;
                    phone.ack(kind::PUBCOMP, id);
                }
                other => panic!("{version:?}, after {texts:?}: {other:?}"),
            }
        }
        assert!(released, "the exchange that was past its PUBREC is not ended");
        let expected: Vec<String> = (1..23).map(|n| n.to_string()).collect();
        assert_eq!(texts, expected, "{version:?}");
        drop(phone);
        cluster[2].rest.delete("/api/v1/sessions/phone");
        cluster[2].rest.wait_gone("phone");
    }
}

#[test]
fn a_session_stays_where_it_was_if_the_other_node_cannot_keep_it() {
    let mut cluster = Cluster::start(3, |n| match n {
        2 => BrokerOptions::new().env("MSG_MAX_MSGS", "10"),
        _ => BrokerOptions::new(),
    });
    let (root, ua) = (cluster[1].superuser("root"), cluster[1].user("ua"));
    // The store of node 2 is full.
    let other = ua.connect(Version::V5, "other").persistent(600);
    let (mut client, _) = cluster[2].connect(&other).accepted();
    client.subscribe(&["chat/ua/other"]);
    client.disconnect();
    let mut publisher = cluster[2].client(&root, Version::V5, "backend2");
    for n in 0..10 {
        publisher.publish_ok("chat/ua/other", &n.to_string(), 1);
    }
    for version in Version::COMMON {
        let mut publisher = cluster[1].client(&root, Version::V5, "backend1");
        let connect = ua.connect(version, "phone").persistent(600);
        let (mut phone, _) = cluster[1].connect(&connect).accepted();
        assert_eq!(phone.try_subscribe(&[(TOPIC, 2)]), [2]);
        phone.auto_ack = false;
        publisher.publish_ok(TOPIC, "0", 2);
        let sent = phone.expect(TOPIC, "0");
        phone.cut();
        cluster[1].rest.wait_offline("phone");
        for n in 1..6 {
            publisher.publish_ok(TOPIC, &n.to_string(), 1);
        }
        cluster[2].connect(&connect).refused();
        // Node 2 says that it has not taken it. It would be asked after ten seconds.
        let since = Instant::now();
        cluster[1].rest.wait_offline("phone");
        assert!(since.elapsed() < Duration::from_secs(8), "{version:?}");
        publisher.publish_ok(TOPIC, "6", 1);
        cluster[2].connect(&connect).refused();
        // Nothing but its disk knows of it here.
        cluster.kill(1);
        cluster[1].spawn();
        cluster.wait_ready();
        let (mut phone, connack) = cluster[1].connect(&connect).accepted();
        assert!(connack.session_present, "{version:?}");
        for n in 0..7 {
            let message = phone.expect(TOPIC, &n.to_string());
            assert_eq!(message.dup, n == 0, "{version:?}");
            assert!(n > 0 || message.packet_id == sent.packet_id, "{version:?}");
        }
        drop(phone);
        cluster[1].rest.delete("/api/v1/sessions/phone");
        cluster[1].rest.wait_gone("phone");
    }
}

#[test]
fn a_login_that_came_to_nothing_while_a_sessions_node_was_down_does_not_end_it() {
    let mut cluster = Cluster::start(3, |n| match n {
        1 => BrokerOptions::new().set("mqtt.max_connections", 1),
        _ => BrokerOptions::new(),
    });
    let (root, ua) = (cluster[1].superuser("root"), cluster[1].user("ua"));
    let _only = cluster[1].client(&root, Version::V5, "only");
    let connect = ua.connect(Version::V5, "phone").persistent(600);
    let (mut phone, _) = cluster[2].connect(&connect).accepted();
    phone.subscribe(&[TOPIC]);
    phone.disconnect();
    cluster[2].rest.wait_offline("phone");
    cluster[2].client(&root, Version::V5, "backend").publish_ok(TOPIC, "kept", 1);
    cluster.kill(2);
    // It has the client id's place in the cluster, and finds none on its node.
    cluster[1].connect(&connect).refused();
    cluster[2].spawn();
    cluster.wait_ready();
    let (mut phone, connack) = cluster[2].connect(&connect).accepted();
    assert!(connack.session_present);
    phone.expect(TOPIC, "kept");
}

#[test]
fn what_is_published_on_another_node_while_a_sessions_node_restarts_is_there_when_it_is_back() {
    let mut cluster = Cluster::start_default();
    let (root, ua) = (cluster[1].superuser("root"), cluster[1].user("ua"));
    let mut publisher = cluster[3].client(&root, Version::V5, "backend");
    let connect = ua.connect(Version::V5, "phone").persistent(600);
    let (mut phone, _) = cluster[2].connect(&connect).accepted();
    phone.subscribe(&[TOPIC]);
    known(&mut publisher, &mut phone);
    publisher.publish_ok(TOPIC, "begin", 1);
    phone.until(TOPIC, "begin");
    assert!(phone.ping());
    phone.disconnect();
    cluster[2].rest.wait_offline("phone");
    let mut n = 0;
    let mut publish = |count: u32| {
        for _ in 0..count {
            publisher.publish_ok(TOPIC, &n.to_string(), 1);
            n += 1;
        }
    };
    publish(10);
    cluster.kill(2);
    cluster[2].spawn();
    publish(10);
    cluster.wait_ready();
    publish(10);
    let (mut phone, connack) = cluster[2].connect(&connect).accepted();
    assert!(connack.session_present);
    // In order; at QoS 1 what its node had when it was killed, and had not said so, may come again.
    let mut next = 0;
    while next < n {
        let number: u32 = phone.message().text().parse().unwrap();
        assert!(number <= next, "{number} came before {next}");
        next = next.max(number + 1);
    }
}

#[test]
fn what_was_acknowledged_for_a_session_of_another_node_survives_the_publishers_node() {
    let mut cluster = Cluster::start_default();
    let (root, ua) = (cluster[1].superuser("root"), cluster[1].user("ua"));
    let connect = ua.connect(Version::V5, "phone").persistent(600);
    let (mut phone, _) = cluster[2].connect(&connect).accepted();
    phone.subscribe(&[TOPIC]);
    for round in 0..3 {
        let mut publisher = cluster[3].client(&root, Version::V5, "backend");
        known(&mut publisher, &mut phone);
        let text = format!("acknowledged {round}");
        publisher.publish_ok(TOPIC, &text, 1);
        cluster.kill(3);
        phone.until(TOPIC, &text);
        cluster[3].spawn();
        cluster.wait_ready();
    }
}

#[test]
fn a_queue_that_overflowed_on_one_node_has_its_newest_in_order_on_another() {
    let cluster = Cluster::start_default();
    let (root, ua) = (cluster[1].superuser("root"), cluster[1].user("ua"));
    let mut publisher = cluster[3].client(&root, Version::V5, "backend");
    let connect = ua.connect(Version::V311, "phone").persistent(600);
    let (mut phone, _) = cluster[1].connect(&connect).accepted();
    phone.subscribe(&[TOPIC]);
    known(&mut publisher, &mut phone);
    publisher.publish_ok(TOPIC, "begin", 1);
    phone.until(TOPIC, "begin");
    assert!(phone.ping());
    phone.disconnect();
    cluster[1].rest.wait_offline("phone");
    for chunk in (1..=1_500).collect::<Vec<_>>().chunks(100) {
        let ids: Vec<u16> =
            chunk.iter().map(|n| publisher.send_publish(&Publish::new(TOPIC, n.to_string(), 1))).collect();
        for id in ids {
            assert!(matches!(publisher.finish_publish(1, id), Outcome::Acked(0)));
        }
    }
    eventually("500 are counted as dropped", || {
        (cluster[1].rest.metric("ciqadamq_messages_dropped_total", &["queue_full"]) as u32 == 500).then_some(())
    });
    let (mut phone, connack) = cluster[2].connect(&connect).accepted();
    assert!(connack.session_present);
    for n in 501..=1_500 {
        phone.expect(TOPIC, &n.to_string());
    }
    publisher.publish_ok(TOPIC, "end", 1);
    assert_eq!(phone.until(TOPIC, "end"), []);
}

/// Sessions move away from a node under a stream of messages, and the node, which leads the routing cluster, is killed as soon as they
/// have: routes do not change before there is another leader. What was acknowledged to the publisher arrives, in order, and at
/// QoS 2 once.
fn sessions_flee(qos: u8, publisher_is_on_the_heir: bool, comes_back: bool) {
    let mut cluster = Cluster::start_default();
    let (root, ua) = (cluster[1].superuser("root"), cluster[1].user("ua"));
    let left = cluster.routes_leader(1).unwrap();
    let others: Vec<u8> = cluster.ids().filter(|node| *node != left).collect();
    let heir = others[0];
    let publishes_on = if publisher_is_on_the_heir { heir } else { others[1] };
    let mut publisher = cluster[publishes_on].client(&root, Version::V5, "backend");
    let connects: Vec<_> = (0..8).map(|n| ua.connect(Version::V5, &format!("phone{n}")).persistent(600)).collect();
    for (n, connect) in connects.iter().enumerate() {
        let (mut phone, _) = cluster[left].connect(connect).accepted();
        assert_eq!(phone.try_subscribe(&[(TOPIC, qos)]), [qos]);
        known(&mut publisher, &mut phone);
        publisher.publish_ok(TOPIC, "begin", 1);
        phone.until(TOPIC, "begin");
        assert!(phone.ping());
        phone.disconnect();
        cluster[left].rest.wait_offline(&format!("phone{n}"));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let stream = thread::spawn(move || {
        let (mut n, mut after) = (0, 0);
        while after < 30 {
            publisher.publish_ok(TOPIC, &n.to_string(), qos);
            n += 1;
            after += u32::from(stopped.load(Ordering::Relaxed));
        }
        (n, publisher)
    });
    let addr = cluster[heir].tcp;
    let moving =
        connects.clone().into_iter().map(|connect| thread::spawn(move || Client::connect(&connect, addr).accepted()));
    let phones: Vec<_> = moving.collect::<Vec<_>>().into_iter().map(|moving| moving.join().unwrap()).collect();
    cluster.kill(left);
    stop.store(true, Ordering::Relaxed);
    if comes_back {
        cluster[left].spawn();
    }
    let readers: Vec<_> = phones
        .into_iter()
        .map(|(mut phone, connack)| {
            assert!(connack.session_present);
            thread::spawn(move || {
                let mut got = Vec::new();
                loop {
                    match phone.message_within(WAIT) {
                        Ok(message) if message.text() == "end" => return Ok(got),
                        Ok(message) => got.extend(message.text().parse::<u32>()),
                        Err(event) => return Err((event, got)),
                    }
                }
            })
        })
        .collect();
    let (n, mut publisher) = stream.join().unwrap();
    publisher.publish_ok(TOPIC, "end", qos);
    for (phone, reader) in readers.into_iter().enumerate() {
        let got = reader.join().unwrap().unwrap_or_else(|(event, got)| panic!("phone{phone}: {event:?} after {got:?}"));
        let missing: Vec<_> = (0..n).filter(|n| !got.contains(n)).collect();
        assert!(missing.is_empty(), "phone{phone}: acknowledged, and not there: {missing:?} of {n}");
        let mut distinct = got.clone();
        distinct.dedup();
        assert!(qos < 2 || distinct.len() == got.len(), "phone{phone}: more than once: {got:?}");
        assert!(got.iter().collect::<BTreeSet<_>>().len() == n as usize && (qos < 2 || got.is_sorted()), "{got:?}");
    }
    if comes_back {
        cluster.wait_ready();
    }
}

#[test]
fn what_is_published_while_sessions_leave_a_node_that_dies_reaches_them() {
    sessions_flee(2, false, false);
    sessions_flee(1, true, false);
}

#[test]
fn what_is_published_while_sessions_leave_a_node_that_starts_anew_reaches_them() {
    sessions_flee(2, false, true);
}

#[test]
fn a_session_on_its_way_to_a_node_that_dies_is_where_it_was_or_where_it_went() {
    let mut random = Random::new(0);
    let mut cluster = Cluster::start_default();
    let (root, ua, ub) = (cluster[1].superuser("root"), cluster[1].user("ua"), cluster[1].user("ub"));
    for round in 0..4 {
        let (left, heir, third) = [(1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 3, 2)][round];
        let mut publisher = cluster[third].client(&root, Version::V5, "backend");
        let names: Vec<_> = (0..6).map(|n| format!("phone{round}-{n}")).collect();
        let connects: Vec<_> = names.iter().map(|name| ua.connect(Version::V5, name).persistent(600)).collect();
        for connect in &connects {
            let (mut phone, _) = cluster[left].connect(connect).accepted();
            assert_eq!(phone.try_subscribe(&[(TOPIC, 2)]), [2]);
            known(&mut publisher, &mut phone);
            publisher.publish_ok(TOPIC, "begin", 1);
            phone.until(TOPIC, "begin");
            assert!(phone.ping());
            phone.disconnect();
        }
        for name in &names {
            cluster[left].rest.wait_offline(name);
        }
        for n in 0..10 {
            publisher.publish_ok(TOPIC, &n.to_string(), 2);
        }
        let addr = cluster[heir].tcp;
        let moving: Vec<_> = connects
            .clone()
            .into_iter()
            // Whoever gets in acknowledges nothing.
            .map(|connect| thread::spawn(move || drop(Client::connect(&connect, addr))))
            .collect();
        thread::sleep(Duration::from_micros(random.below(32_000)));
        cluster.kill(heir);
        moving.into_iter().for_each(|moving| moving.join().unwrap());
        cluster[heir].spawn();
        cluster.wait_ready();
        let others = cluster[third].connect(&ub.connect(Version::V5, &names[0]));
        assert!(!others.is_accepted(), "the client id is somebody else's meanwhile");
        for (n, (name, connect)) in names.iter().zip(&connects).enumerate() {
            let at = [third, left][n % 2];
            let (mut phone, connack) = cluster[at].connect(connect).accepted();
            assert!(connack.session_present, "{name} at node {at}");
            // What the others were made known with was for all of them.
            phone.until(TOPIC, "0");
            for n in 1..10 {
                phone.expect(TOPIC, &n.to_string());
            }
            phone.disconnect();
            assert_eq!(cluster[third].rest.delete(&format!("/api/v1/sessions/{name}")).status, 204);
        }
    }
}

#[test]
fn after_a_start_of_all_nodes_a_session_is_found_wherever_its_client_comes_first() {
    let mut cluster = Cluster::start_default();
    let (root, ua) = (cluster[1].superuser("root"), cluster[1].user("ua"));
    let names: Vec<_> = (0..90).map(|n| format!("phone{n}")).collect();
    let connects: Vec<_> = names.iter().map(|name| ua.connect(Version::V5, name).persistent(600)).collect();
    for connect in &connects {
        let (mut phone, _) = cluster[2].connect(connect).accepted();
        assert_eq!(phone.try_subscribe(&[(TOPIC, 1)]), [1]);
        phone.disconnect();
    }
    for name in &names {
        cluster[2].rest.wait_offline(name);
    }
    let mut publisher = cluster[2].client(&root, Version::V5, "backend");
    for n in 0..3 {
        publisher.publish_ok(TOPIC, &n.to_string(), 1);
    }
    [1, 2, 3].into_iter().for_each(|node| cluster.kill(node));
    [1, 3, 2].into_iter().for_each(|node| cluster[node].spawn());
    // Nobody waits for the cluster to be ready: in as soon as somebody lets them.
    for (n, (name, connect)) in names.iter().zip(&connects).enumerate() {
        let addr = cluster[[1, 3][n % 2]].tcp;
        let (mut phone, connack) = eventually("the client is in", || {
            let mut client = Client::open(connect, addr).ok()?;
            client.send(&connect.encode());
            let answer = client.connack();
            answer.is_accepted().then(|| answer.accepted())
        });
        assert!(connack.session_present, "{name}");
        for n in 0..3 {
            phone.expect(TOPIC, &n.to_string());
        }
    }
    cluster.wait_ready();
}
