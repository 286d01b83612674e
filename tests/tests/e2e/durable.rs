//! What was acknowledged survives: sessions, queues, exchanges, Wills, retained messages; and what must not survive does not.

use std::time::{Duration, Instant};

use ciqadamq_tests::mqtt::{Event, Outcome, Packet, Properties, Publish, id, kind, publish};
use ciqadamq_tests::{Broker, BrokerOptions, Client, Version, WAIT, eventually};

/// The two ways in which a broker ends.
#[derive(Debug, Clone, Copy)]
enum End {
    InOrder,
    Killed,
}

fn come_back(broker: &mut Broker, end: End) {
    match end {
        End::InOrder => broker.restart(),
        End::Killed => {
            broker.kill9();
            broker.start_again();
        }
    }
}

const ENDS: [End; 2] = [End::InOrder, End::Killed];

#[test]
fn a_client_that_was_away_over_a_restart_gets_everything_in_order_once() {
    for version in Version::COMMON {
        let mut broker = Broker::start_default();
        let (root, ua) = (broker.superuser("root"), broker.user("ua"));
        let connect = ua.connect(version, "phone").persistent(600);
        let (mut phone, _) = broker.connect(&connect).accepted();
        assert_eq!(phone.try_subscribe(&[("chat/ua/x", 2)]), [2]);
        phone.disconnect();
        let mut n = 0;
        for end in ENDS {
            let mut publisher = broker.client(&root, Version::V5, "publisher");
            for _ in 0..10 {
                publisher.publish_ok("chat/ua/x", &n.to_string(), 1 + n % 2);
                n += 1;
            }
            come_back(&mut broker, end);
            assert_eq!(broker.rest.session("phone").unwrap()["queued"], n, "{end:?}");
        }
        let mut publisher = broker.client(&root, Version::V5, "publisher");
        for _ in 0..10 {
            publisher.publish_ok("chat/ua/x", &n.to_string(), 1 + n % 2);
            n += 1;
        }
        // Without subscribing again.
        let (mut phone, connack) = broker.connect(&connect).accepted();
        assert!(connack.session_present);
        for i in 0..n {
            let message = phone.expect("chat/ua/x", &i.to_string());
            assert_eq!((message.qos, message.dup), (1 + i % 2, false));
        }
        publisher.publish_ok("chat/ua/x", "end", 1);
        phone.expect("chat/ua/x", "end");
    }
}

#[test]
fn what_was_sent_and_not_acknowledged_is_sent_again_under_its_identifier() {
    for version in Version::COMMON {
        for end in ENDS {
            let mut broker = Broker::start_default();
            let (root, ua) = (broker.superuser("root"), broker.user("ua"));
            let connect = ua.connect(version, "phone").persistent(600);
            let (mut phone, _) = broker.connect(&connect).accepted();
            phone.subscribe(&["chat/ua/x"]);
            phone.auto_ack = false;
            let mut publisher = broker.client(&root, Version::V5, "publisher");
            for n in 0..20 {
                publisher.publish_ok("chat/ua/x", &n.to_string(), 1);
            }
            let sent: Vec<_> = (0..20).map(|_| phone.message()).collect();
            // The first five, and one out of turn.
            for message in sent[..5].iter().chain(&sent[10..11]) {
                phone.ack(kind::PUBACK, message.packet_id.unwrap());
            }
            assert!(phone.ping());
            eventually("the acknowledgements are on disk", || {
                (broker.rest.metric("ciqadamq_session_store_owed", &[]) < 15.0).then_some(())
            });
            std::thread::sleep(Duration::from_millis(50));
            come_back(&mut broker, end);
            let (mut phone, _) = broker.connect(&connect).accepted();
            for message in sent.iter().enumerate().filter(|(n, _)| *n >= 5 && *n != 10).map(|(_, message)| message) {
                let again = phone.message();
                assert_eq!((again.text(), again.packet_id), (message.text(), message.packet_id), "{end:?}");
                assert!(again.dup, "{end:?}");
            }
        }
    }
}

#[test]
fn after_pubrec_only_the_end_of_the_exchange_is_owed() {
    for version in Version::COMMON {
        for end in ENDS {
            let mut broker = Broker::start_default();
            let (root, ua) = (broker.superuser("root"), broker.user("ua"));
            let connect = ua.connect(version, "phone").persistent(600);
            let (mut phone, _) = broker.connect(&connect).accepted();
            assert_eq!(phone.try_subscribe(&[("chat/ua/x", 2)]), [2]);
            phone.auto_ack = false;
            let mut publisher = broker.client(&root, Version::V5, "publisher");
            publisher.publish_ok("chat/ua/x", "once", 2);
            let message = phone.expect("chat/ua/x", "once");
            let id = message.packet_id.unwrap();
            phone.ack(kind::PUBREC, id);
            assert!(
                matches!(phone.next(WAIT), Event::Packet(Packet::Ack { kind: kind::PUBREL, id: of, .. }) if of == id)
            );
            // With the PUBREL it is on disk.
            come_back(&mut broker, end);
            let (mut phone, _) = broker.connect(&connect).accepted();
            let next = phone.next(WAIT);
            assert!(
                matches!(next, Event::Packet(Packet::Ack { kind: kind::PUBREL, id: of, .. }) if of == id),
                "{next:?}"
            );
            phone.ack(kind::PUBCOMP, id);
            let mut publisher = broker.client(&root, Version::V5, "publisher");
            publisher.publish_ok("chat/ua/x", "next", 2);
            phone.expect("chat/ua/x", "next");
        }
    }
}

/// Sends a QoS 2 message, up to its PUBREC.
fn publish_and_hold(client: &mut Client, version: Version, message: &Publish, id: u16) {
    client.send(&publish(version, message, id));
    answered(client, kind::PUBREC, id);
}

/// Ends the exchange.
fn release(client: &mut Client, id: u16) {
    client.ack(kind::PUBREL, id);
    answered(client, kind::PUBCOMP, id);
}

#[track_caller]
fn answered(client: &mut Client, expected: u8, of: u16) {
    let answer = client.next(WAIT);
    assert!(
        matches!(answer, Event::Packet(Packet::Ack { kind, id, .. }) if (kind, id) == (expected, of)),
        "{answer:?}"
    );
}

/// A QoS 2 message whose sender is cut between PUBREC and PUBREL, sent again.
fn sent_again(broker: &mut Broker, version: Version, between: impl FnOnce(&mut Broker)) {
    let (root, ua) = (broker.superuser("root"), broker.user("ua"));
    let reader = root.connect(Version::V5, "reader").persistent(600);
    let (mut client, _) = broker.connect(&reader).accepted();
    assert_eq!(client.try_subscribe(&[("chatsync", 2)]), [2]);
    client.disconnect();
    let connect = ua.connect(version, "phone").persistent(600);
    let (mut phone, _) = broker.connect(&connect).accepted();
    let message = Publish::new("chatsync", "once", 2);
    publish_and_hold(&mut phone, version, &message, 9);
    phone.cut();
    between(broker);
    let (mut phone, connack) = broker.connect(&connect).accepted();
    assert!(connack.session_present);
    let again = Publish { dup: true, ..message };
    publish_and_hold(&mut phone, version, &again, 9);
    release(&mut phone, 9);
    assert!(phone.ping());
    phone.cut();
    broker.rest.wait_offline("phone");
    // Under the same identifier another message, of the same content, that the broker has not seen: it was lost on the way.
    let (mut phone, _) = broker.connect(&connect).accepted();
    publish_and_hold(&mut phone, version, &again, 9);
    release(&mut phone, 9);
    phone.publish_ok("chatsync", "end", 2);
    let (mut client, _) = broker.connect(&reader).accepted();
    let seen: Vec<String> = client.until("chatsync", "end").iter().map(|message| message.text()).collect();
    assert_eq!(seen, ["once", "once"], "{version:?}");
}

#[test]
fn a_pubrel_that_is_sent_again_releases_no_other_message() {
    let send = |phone: &mut Client, version, id: u16, dup| {
        let message = Publish { dup, ..Publish::new("chatsync", id.to_string(), 2) };
        publish_and_hold(phone, version, &message, id);
    };
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    for version in Version::COMMON {
        let connect = ua.connect(version, "phone").persistent(600);
        let (mut phone, _) = broker.connect(&connect).accepted();
        (1..=4).for_each(|id| send(&mut phone, version, id, false));
        release(&mut phone, 1);
        // Its PUBCOMP, and the last two PUBRECs, are lost on the way, twice.
        for _ in 0..2 {
            phone.cut();
            broker.rest.wait_offline("phone");
            (phone, _) = broker.connect(&connect).accepted();
            release(&mut phone, 1);
            release(&mut phone, 2);
            send(&mut phone, version, 3, true);
            send(&mut phone, version, 4, true);
        }
        release(&mut phone, 3);
        release(&mut phone, 4);
        // A new one under an identifier of before.
        send(&mut phone, version, 2, false);
        release(&mut phone, 2);
        phone.publish_ok("chatsync", "end", 2);
        let seen: Vec<String> = watcher.seen().into_iter().map(|(_, text)| text).collect();
        assert_eq!(seen, ["1", "2", "3", "4", "2", "end"], "{version:?}");
        phone.disconnect();
        broker.rest.delete("/api/v1/sessions/phone");
        broker.rest.wait_gone("phone");
    }
}

#[test]
fn a_qos_2_message_sent_again_after_a_reconnect_is_delivered_once() {
    for version in Version::COMMON {
        sent_again(&mut Broker::start_default(), version, |broker| {
            broker.rest.wait_offline("phone");
        });
    }
}

#[test]
fn a_qos_2_message_sent_again_after_a_crash_is_delivered_once() {
    for version in Version::COMMON {
        sent_again(&mut Broker::start_default(), version, |broker| come_back(broker, End::Killed));
    }
}

#[test]
fn a_session_inherits_nothing_after_a_restart_that_it_had_lost_before() {
    let mut broker = Broker::start_default();
    let (root, ua) = (broker.superuser("root"), broker.user("ua"));
    let connect = ua.connect(Version::V5, "phone").persistent(600);
    let (mut phone, _) = broker.connect(&connect).accepted();
    phone.subscribe(&["chat/ua/x", "chat/ua/y"]);
    phone.unsubscribe(&["chat/ua/y"]);
    phone.disconnect();
    broker.client(&root, Version::V5, "publisher").publish_ok("chat/ua/x", "for the first ua", 1);
    // Deleted, and killed before the session's end can be tidied up: a new user of that name is somebody else.
    broker.rest.delete_user(&ua.username);
    broker.kill9();
    broker.start_again();
    assert!(broker.rest.session("phone").is_none());
    let ua = broker.user("ua");
    let connect = ua.connect(Version::V5, "phone").persistent(600);
    let (mut phone, connack) = broker.connect(&connect).accepted();
    assert!(!connack.session_present);
    phone.subscribe(&["chat/ua/x"]);
    broker.client(&root, Version::V5, "publisher").publish_ok("chat/ua/x", "for the second", 1);
    phone.expect("chat/ua/x", "for the second");
    // A clean start ends it for good, and so does the end of its time.
    broker.connect(&ua.connect(Version::V5, "phone").session_expiry(600)).accepted().0.disconnect();
    let (mut short, _) = broker.connect(&ua.connect(Version::V5, "short").persistent(1)).accepted();
    short.subscribe(&["chat/ua/y"]);
    short.disconnect();
    broker.kill9();
    std::thread::sleep(Duration::from_millis(1_200));
    broker.start_again();
    assert!(broker.rest.session("short").is_none());
    let (mut phone, connack) = broker.connect(&connect).accepted();
    assert!(connack.session_present, "a clean start with an expiry is a persistent session too");
    let mut publisher = broker.client(&root, Version::V5, "publisher");
    publisher.publish_ok("chat/ua/x", "nobody subscribed this", 1);
    phone.subscribe(&["chat/ua/z"]);
    publisher.publish_ok("chat/ua/z", "end", 1);
    assert_eq!(phone.until("chat/ua/z", "end"), []);
}

#[test]
fn a_changed_user_loses_its_restored_session_at_once() {
    let mut broker = Broker::start_default();
    let ua = broker.user("ua");
    let connect = ua.connect(Version::V5, "phone").persistent(600);
    let (mut phone, _) = broker.connect(&connect).accepted();
    phone.subscribe(&["chat/ua/x"]);
    phone.disconnect();
    come_back(&mut broker, End::Killed);
    let session = broker.rest.session("phone").unwrap();
    assert_eq!((&session["userid"], &session["subscriptions"]), (&"ua".into(), &1.into()));
    // Somebody else does not get it.
    let ub = broker.user("ub");
    broker.connect(&ub.connect(Version::V5, "phone").persistent(600)).refused();
    broker.rest.change_user(&ua.username, &serde_json::json!({"password": "another one"}));
    broker.rest.wait_gone("phone");
    come_back(&mut broker, End::Killed);
    assert!(broker.rest.session("phone").is_none());
}

#[test]
fn a_will_is_published_once_or_not_at_all() {
    let mut broker = Broker::start_default();
    let (root, ua) = (broker.superuser("root"), broker.user("ua"));
    let backend = root.connect(Version::V5, "backend").persistent(600);
    let (mut reader, _) = broker.connect(&backend).accepted();
    reader.subscribe(&["updates"]);
    reader.disconnect();
    let will = |text: &str, delay: Option<u32>| {
        let will = Publish::new("updates", text, 1);
        match delay {
            Some(secs) => Publish { properties: Properties::new().int(id::WILL_DELAY, secs), ..will },
            None => will,
        }
    };
    let connect = |version, client: &str, will| ua.connect(version, client).persistent(600).will(will);
    let goodbye = connect(Version::V5, "goodbye", will("never: it said goodbye", None));
    broker.connect(&goodbye).accepted().0.disconnect();
    let lost = connect(Version::V311, "lost", will("at once", None));
    broker.connect(&lost).accepted().0.cut();
    broker.rest.wait_offline("lost");
    let back = connect(Version::V5, "back", will("never: it came back", Some(600)));
    broker.connect(&back).accepted().0.cut();
    broker.rest.wait_offline("back");
    let late = connect(Version::V5, "late", will("after the crash", Some(2)));
    broker.connect(&late).accepted().0.cut();
    broker.rest.wait_offline("late");
    // Cut by the crash.
    let _online = broker.connect(&connect(Version::V311, "online", will("because of the crash", None))).accepted();
    come_back(&mut broker, End::Killed);
    broker.connect(&back).accepted().0.disconnect();
    let wills = |broker: &Broker| {
        let (mut reader, _) = broker.connect(&backend).accepted();
        let mut texts: Vec<String> = (0..3).map(|_| reader.message().text()).collect();
        texts.sort();
        assert_eq!(texts, ["after the crash", "at once", "because of the crash"]);
        reader.disconnect();
    };
    wills(&broker);
    eventually("the acknowledgements are noted", || {
        (broker.rest.metric("ciqadamq_session_store_owed", &[]) < 1.0).then_some(())
    });
    std::thread::sleep(Duration::from_millis(100));
    come_back(&mut broker, End::Killed);
    let (mut reader, _) = broker.connect(&backend).accepted();
    broker.client(&root, Version::V5, "publisher").publish_ok("updates", "end", 1);
    let again: Vec<String> = reader.until("updates", "end").iter().map(|message| message.text()).collect();
    assert_eq!(again, [""; 0]);
}

#[test]
fn time_goes_on_while_the_broker_is_down() {
    let mut broker = Broker::start_default();
    let (root, ua) = (broker.superuser("root"), broker.user("ua"));
    let connect = ua.connect(Version::V5, "phone").persistent(600);
    let (mut phone, _) = broker.connect(&connect).accepted();
    phone.subscribe(&["chat/ua/x"]);
    phone.disconnect();
    let mut publisher = broker.client(&root, Version::V5, "publisher");
    for (text, secs) in [("short", 2), ("long", 1_000)] {
        let properties = Properties::new().int(id::MESSAGE_EXPIRY, secs);
        publisher.publish(&Publish { properties, ..Publish::new("chat/ua/x", text, 1) });
    }
    broker.kill9();
    std::thread::sleep(Duration::from_millis(2_200));
    broker.start_again();
    let (mut phone, _) = broker.connect(&connect).accepted();
    let message = phone.expect("chat/ua/x", "long");
    let left = message.properties.number(id::MESSAGE_EXPIRY).unwrap();
    assert!((900..=998).contains(&left), "{left} s are left");
}

#[test]
fn the_age_of_what_a_crash_cut_off_goes_on_over_further_starts() {
    const SECS: u32 = 12;
    let mut broker = Broker::start_default();
    let (root, ua) = (broker.superuser("root"), broker.user("ua"));
    let backend = root.connect(Version::V5, "backend").persistent(600);
    let (mut reader, _) = broker.connect(&backend).accepted();
    reader.subscribe(&["updates"]);
    reader.disconnect();
    let _short = broker.connect(&ua.connect(Version::V5, "short").persistent(SECS)).accepted();
    let will =
        Publish { properties: Properties::new().int(id::WILL_DELAY, SECS), ..Publish::new("updates", "late", 1) };
    let _late = broker.connect(&ua.connect(Version::V5, "late").persistent(600).will(will)).accepted();
    let cut_off = Instant::now();
    broker.kill9();
    broker.start_again();
    // What is written now is a sign of life, and not theirs.
    while cut_off.elapsed() < Duration::from_secs(u64::from(SECS) * 3 / 4) {
        std::thread::sleep(Duration::from_millis(50));
    }
    broker.client(&root, Version::V5, "publisher").publish_ok("updates", "now", 1);
    broker.kill9();
    broker.start_again();
    let over = cut_off + Duration::from_secs(u64::from(SECS) + 3);
    let (mut reader, _) = broker.connect(&backend).accepted();
    let left = || over.saturating_duration_since(Instant::now()).max(Duration::from_secs(1));
    let mut texts: Vec<_> = (0..2).map(|_| reader.message_within(left()).map(|message| message.text())).collect();
    texts.sort_by_key(|text| text.clone().ok());
    assert_eq!(texts, [Ok("late".into()), Ok("now".into())]);
    while Instant::now() < over && broker.rest.session("short").is_some() {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(broker.rest.session("short").is_none());
}

#[test]
fn retained_messages_are_what_was_acknowledged_last() {
    let mut broker = Broker::start_default();
    let root = broker.superuser("root");
    let mut publisher = broker.client(&root, Version::V5, "publisher");
    let set = |publisher: &mut Client, topic: &str, payload: &str| {
        let message = Publish { retain: true, ..Publish::new(topic, payload, 1) };
        assert!(matches!(publisher.publish(&message), Outcome::Acked(0 | 0x10)));
    };
    // Bursts of set and clear, many on their way at once.
    let mut ids = Vec::new();
    for round in 0..3 {
        for n in 0..100 {
            let payload = if (n + round) % 2 == 0 { String::new() } else { format!("{n} {round}") };
            let message = Publish { retain: true, ..Publish::new(format!("r/{n}"), payload, 1) };
            ids.push(publisher.send_publish(&message));
        }
    }
    for _ in &ids {
        assert!(matches!(publisher.next(WAIT), Event::Packet(Packet::Ack { kind: kind::PUBACK, .. })));
    }
    let expected: Vec<String> = (0..100).filter(|n| n % 2 == 1).map(|n| format!("{n} 2")).collect();
    for end in [None, Some(End::Killed), Some(End::InOrder)] {
        if let Some(end) = end {
            come_back(&mut broker, end);
        }
        let mut reader = broker.client(&root, Version::V5, "reader");
        reader.subscribe(&["r/+"]);
        let mut found: Vec<String> = expected.iter().map(|_| reader.message().text()).collect();
        found.sort_by_key(|text| text.split(' ').next().unwrap().parse::<u32>().unwrap());
        assert_eq!(found, expected, "{end:?}");
        let mut publisher = broker.client(&root, Version::V5, "publisher");
        publisher.publish_ok("r/end", "end", 1);
        assert_eq!(reader.until("r/end", "end"), []);
    }
    // Readable right after its acknowledgement, every time.
    let mut publisher = broker.client(&root, Version::V5, "publisher");
    for n in 0..30 {
        set(&mut publisher, "now", &n.to_string());
        let mut reader = broker.client(&root, Version::V5, "reader");
        reader.subscribe(&["now"]);
        assert!(reader.expect("now", &n.to_string()).retain);
    }
    let properties = Properties::new().int(id::MESSAGE_EXPIRY, 100);
    let message = Publish { retain: true, properties, ..Publish::new("ends", "x", 1) };
    publisher.publish(&message);
    std::thread::sleep(Duration::from_millis(1_100));
    let mut reader = broker.client(&root, Version::V5, "reader");
    reader.subscribe(&["ends"]);
    let left = reader.expect("ends", "x").properties.number(id::MESSAGE_EXPIRY).unwrap();
    assert!((90..=99).contains(&left), "{left}");
}

#[test]
fn no_password_is_on_the_disk() {
    let mut broker = Broker::start_default();
    let ua = broker.user("ua");
    for version in Version::COMMON {
        let connect = ua.connect(version, &format!("phone{version:?}")).persistent(600);
        broker.connect(&connect).accepted().0.disconnect();
    }
    broker.sigterm();
    let mut dirs = vec![broker.dir().join("data")];
    let mut files = 0;
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                files += 1;
                let bytes = std::fs::read(&path).unwrap();
                let password = ua.password.as_bytes();
                assert!(!bytes.windows(password.len()).any(|w| w == password), "{}", path.display());
            }
        }
    }
    assert!(files > 3);
}

#[test]
fn a_full_store_refuses_what_it_would_have_to_keep_and_nothing_else() {
    let broker = Broker::start(BrokerOptions::new().env("MSG_MAX_MSGS", "10"));
    let (root, ua) = (broker.superuser("root"), broker.user("ua"));
    let connect = ua.connect(Version::V5, "phone").persistent(600);
    let (mut phone, _) = broker.connect(&connect).accepted();
    phone.subscribe(&["chat/ua/x"]);
    phone.disconnect();
    let mut publisher = broker.client(&root, Version::V5, "publisher");
    for n in 0..10 {
        publisher.publish_ok("chat/ua/x", &n.to_string(), 1);
    }
    for qos in 1..=2 {
        assert_eq!(publisher.publish(&Publish::new("chat/ua/x", "too many", qos)), Outcome::Acked(0x97));
    }
    let mut old = broker.client(&root, Version::V311, "old");
    assert!(matches!(old.publish(&Publish::new("chat/ua/x", "too many", 1)), Outcome::Closed(_)));
    // Whoever is there gets what is for him, at any QoS, and QoS 0 promises nothing.
    let mut reader = broker.client(&root, Version::V5, "reader");
    reader.subscribe(&["other"]);
    publisher.publish_ok("other", "goes on", 1);
    reader.expect("other", "goes on");
    publisher.publish_ok("chat/ua/x", "not kept", 0);
    let ready = broker.rest.get("/ready");
    assert_eq!(ready.status, 200, "{}", ready.text());
    eventually("the state is visible", || {
        broker.rest.get("/ready").text().contains("session store is full").then_some(())
    });
    assert!(broker.rest.metric("ciqadamq_session_store_refused_total", &[]) >= 3.0);
    let (mut phone, _) = broker.connect(&connect).accepted();
    for n in 0..10 {
        phone.expect("chat/ua/x", &n.to_string());
    }
    assert!(phone.ping());
    eventually("there is room again", || {
        matches!(publisher.publish(&Publish::new("chat/ua/x", "again", 1)), Outcome::Acked(0)).then_some(())
    });
    assert!(phone.until("chat/ua/x", "again").iter().all(|message| message.text() == "not kept"));
}

#[test]
fn a_damaged_store_is_set_aside_and_reported() {
    let mut broker = Broker::start_default();
    let (root, ua) = (broker.superuser("root"), broker.user("ua"));
    let connect = ua.connect(Version::V5, "phone").persistent(600);
    let (mut phone, _) = broker.connect(&connect).accepted();
    phone.subscribe(&["chat/ua/x"]);
    phone.disconnect();
    let mut publisher = broker.client(&root, Version::V5, "publisher");
    for n in 0..10 {
        publisher.publish_ok("chat/ua/x", &n.to_string(), 1);
    }
    broker.kill9();
    let log = broker.dir().join("data/sessions/log");
    let is_log = |path: &std::path::PathBuf| path.extension().is_some_and(|e| e == "log");
    let segment = std::fs::read_dir(log).unwrap().map(|e| e.unwrap().path()).find(is_log).unwrap();
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    broker.start_again();
    let ready = broker.rest.get("/ready").text();
    assert!(ready.contains("session-store-damage") && ready.contains("sessions.corrupt-"), "{ready}");
    let aside = std::fs::read_dir(broker.dir().join("data")).unwrap().map(|e| e.unwrap().file_name());
    assert!(aside.into_iter().any(|name| name.to_string_lossy().starts_with("sessions.corrupt-")));
    let (mut phone, connack) = broker.connect(&connect).accepted();
    assert!(!connack.session_present);
    phone.subscribe(&["chat/ua/x"]);
    broker.client(&root, Version::V5, "publisher").publish_ok("chat/ua/x", "new", 1);
    phone.expect("chat/ua/x", "new");
}

#[test]
fn without_persistence_nothing_is_written_and_a_restart_begins_anew() {
    for (key, value) in [("mqtt.persist_messages", "false"), ("mqtt.durability", "memory")] {
        let options = match value {
            "false" => BrokerOptions::new().set(key, false),
            other => BrokerOptions::new().set(key, other),
        };
        let mut broker = Broker::start(options);
        let ua = broker.user("ua");
        let connect = ua.connect(Version::V5, "phone").persistent(600);
        broker.connect(&connect).accepted().0.disconnect();
        assert!(broker.rest.session("phone").is_some());
        broker.restart();
        assert!(broker.rest.session("phone").is_none(), "{key}");
        assert!(!broker.dir().join("data/sessions").exists(), "{key}");
    }
}
