//! Bytes that the standard forbids, over every transport: refused before anybody else sees them.

use ciqadamq_tests::mqtt::{Answer, Outcome, Properties, Publish, Value, id, packet, publish};
use ciqadamq_tests::{Broker, BrokerOptions, Client, Connect, Link, Version};

/// A property that a test gives a text.
const RESPONSE_TOPIC: u8 = 0x08;

fn open(broker: &Broker, account: &ciqadamq_tests::Account, version: Version, link: &Link) -> Client {
    let connect = Connect::new(version, link.clone(), "sender").login(&account.username, &account.password);
    broker.connect(&connect).accepted().0
}

#[test]
fn u0000_is_refused_wherever_a_string_may_stand() {
    let broker = Broker::start(BrokerOptions::new().set("acl.on_deny", "drop"));
    let mut watcher = broker.watch();
    let (ua, root) = (broker.user("ua"), broker.superuser("root"));
    for version in Version::COMMON {
        for link in Link::both() {
            // Topic Name: malformed, so the connection ends whatever `on_deny` says.
            for account in [&ua, &root] {
                let mut client = open(&broker, account, version, &link);
                client.send_publish(&Publish::new("chatsync\0", "nul", 1));
                assert_eq!(client.expect_closed(), version.pick(Some(0x81), None), "{link:?}");
            }
            // Topic Filter: that one alone.
            let mut client = open(&broker, &ua, version, &link);
            let codes = client.try_subscribe(&[("chat/ua/\0", 1), ("chat/ua/x", 1)]);
            assert_eq!(codes, [version.pick(0x8F, 0x80), 1], "{link:?}");
            client.disconnect();
            // Client Identifier, also the one that the broker uses itself; User Name; Will Topic.
            for client_id in ["dev\0ice", "\0", "\0guard"] {
                let connect = Connect::new(version, link.clone(), client_id).login(&ua.username, &ua.password);
                match broker.connect(&connect) {
                    Answer::Refused(code) => assert_eq!(code, version.pick(0x85, 2), "{link:?} {client_id:?}"),
                    other => panic!("{link:?} {client_id:?}: {other:?}"),
                }
            }
            let connect = Connect::new(version, link.clone(), "odd").login("ua-token\0", &ua.password);
            assert!(!broker.connect(&connect).is_accepted());
            let will = Publish::new("updates\0", "nul", 1);
            let connect = Connect::new(version, link.clone(), "odd").login(&ua.username, &ua.password).will(will);
            assert_eq!(broker.connect(&connect).refused(), version.pick(0x87, 5));
        }
    }
    assert_eq!(watcher.seen(), []);
}

#[test]
fn properties_that_would_cost_a_strict_subscriber_its_connection_are_not_passed_on() {
    let broker = Broker::start(BrokerOptions::new().set("acl.on_deny", "drop"));
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    let text = |text: &str| Value::Bytes(text.into());
    let pair = |name: &str, value: &str| Value::Pair(name.into(), value.into());
    for (property, value) in [
        (id::USER_PROPERTY, pair("na\0me", "value")),
        (id::USER_PROPERTY, pair("name", "\0")),
        (id::CONTENT_TYPE, text("text\0")),
        (RESPONSE_TOPIC, text("reply/\0")),
        (RESPONSE_TOPIC, text("reply/+")),
        (RESPONSE_TOPIC, text("#")),
        (RESPONSE_TOPIC, text("")),
    ] {
        let properties = Properties::new().with(property, value.clone());
        let bad = Publish { properties, ..Publish::new("chatsync", "bad", 1) };
        for link in Link::both() {
            let mut client = open(&broker, &ua, Version::V5, &link);
            client.send_publish(&bad);
            assert_eq!(client.expect_closed(), Some(0x81), "{value:?} {link:?}");
            let will = Publish { topic: b"updates".to_vec(), ..bad.clone() };
            let connect = Connect::new(Version::V5, link, "odd").login(&ua.username, &ua.password).will(will);
            assert!(!broker.connect(&connect).is_accepted(), "{value:?}");
        }
    }
    // Said to be UTF-8, and is not.
    let properties = Properties::new().with(id::PAYLOAD_FORMAT, Value::Byte(1));
    let bad = Publish { properties, ..Publish::new("chatsync", b"\xff\xfe", 1) };
    let mut client = open(&broker, &ua, Version::V5, &Link::Tcp);
    assert_eq!(client.publish(&bad), Outcome::Acked(0x99));
    assert_eq!(watcher.seen(), []);
    // Good ones arrive.
    let properties = Properties::new()
        .with(id::USER_PROPERTY, pair("name", "välue"))
        .with(RESPONSE_TOPIC, text("reply/here"))
        .with(id::PAYLOAD_FORMAT, Value::Byte(1));
    client.publish(&Publish { properties, ..Publish::new("chatsync", "gööd", 1) });
    watcher.expect("chatsync", "gööd");
}

#[test]
fn ill_formed_utf8_ends_the_connection() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    // A lone continuation byte, an overlong form, a surrogate, beyond the last character.
    for bad in [&b"chatsync\x80"[..], b"\xc0\xafchatsync", b"chatsync\xed\xa0\x80", b"chatsync\xf4\x90\x80\x80"] {
        for version in Version::COMMON {
            for link in Link::both() {
                let mut client = open(&broker, &ua, version, &link);
                client.send(&publish(version, &Publish::new(bad, "bad", 1), 1));
                assert_eq!(client.expect_closed(), version.pick(Some(0x81), None), "{bad:?} {link:?}");
                let connect = Connect::new(version, link.clone(), bad).login(&ua.username, &ua.password);
                assert!(!broker.connect(&connect).is_accepted());
                let connect = Connect::new(version, link, "odd").login(bad, &ua.password);
                assert!(!broker.connect(&connect).is_accepted());
            }
        }
    }
    assert_eq!(watcher.seen(), []);
    assert!(broker.rest.session("odd").is_none());
}

#[test]
fn names_of_65535_bytes_are_handled() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let (ua, root) = (broker.user("ua"), broker.superuser("root"));
    let long = |prefix: &str| format!("{prefix}{}", "x".repeat(65_535 - prefix.len()));
    for version in Version::COMMON {
        for link in Link::both() {
            let mut client = open(&broker, &ua, version, &link);
            let filter = long("chat/ua/");
            assert_eq!(client.try_subscribe(&[(&filter, 1), (&long("chat/ub/"), 1)])[0], 1);
            watcher.publish(&filter, "long");
            client.expect(&filter, "long");
            client.send_publish(&Publish::new(long("chatsync"), "refused", 1));
            client.expect_closed();
            // A Client Identifier has its own bound.
            let connect = Connect::new(version, link.clone(), long("c")).login(&ua.username, &ua.password);
            assert!(!broker.connect(&connect).is_accepted());
            let connect = Connect::new(version, link.clone(), "odd").login(long("u"), &ua.password);
            assert!(!broker.connect(&connect).is_accepted());
        }
    }
    let mut backend = broker.client(&root, Version::V5, "root");
    let topic = long("any/");
    backend.publish_ok(&topic, "long", 1);
    assert!(watcher.seen().contains(&(topic, "long".into())));
}

#[test]
fn a_packet_length_is_checked_before_memory_is_taken() {
    let broker = Broker::start(BrokerOptions::new().set("mqtt.connect_timeout_secs", 2));
    let before = broker.resident_kb();
    for link in Link::both() {
        // CONNECTs that claim to be a little under 256 MB, and some that claim what is allowed, none of which come.
        let claims =
            [&[0x10, 0xff, 0xff, 0xff, 0x7f][..], &[0x10, 0xff, 0xff, 0x3f], &[0x10, 0xff, 0xff, 0xff, 0xff, 0x7f]];
        let mut clients: Vec<Client> = (0..60)
            .map(|n| {
                let mut client =
                    Client::open(&Connect::new(Version::V5, link.clone(), "x"), broker.addr(&link)).unwrap();
                client.send(claims[n % claims.len()]);
                client.send(b"\x00\x04MQTT\x05");
                client
            })
            .collect();
        for client in &mut clients {
            client.expect_closed();
        }
    }
    if let (Some(before), Some(after)) = (before, broker.resident_kb()) {
        assert!(after < before + 32 * 1024, "{before} KB grew to {after} KB");
    }
}

#[test]
fn packets_out_of_place_end_only_their_own_connection() {
    let broker = Broker::start_default();
    let (ua, ub) = (broker.user("ua"), broker.user("ub"));
    let mut other = broker.client(&ub, Version::V5, "other");
    for version in Version::COMMON {
        for bytes in [
            // A second CONNECT, packets that only a server sends, a reserved type, an acknowledgement cut short, packet
            // identifier 0, a SUBSCRIBE without a filter.
            ua.connect(version, "again").encode(),
            packet(2, 0, &[0, 0]),
            packet(9, 0, &[0, 1, 0]),
            packet(13, 0, &[]),
            packet(0, 0, &[]),
            packet(4, 0, &[0]),
            packet(4, 0, &[0, 0]),
            packet(8, 2, &[0, 1]),
            packet(3, 6, &[0, 8, b'c', b'h', b'a', b't', b's', b'y', b'n', b'c', 0, 1, 0]),
        ] {
            let mut client = broker.client(&ua, version, "sender");
            client.send(&bytes);
            client.expect_closed();
            assert!(other.ping(), "{bytes:02x?}");
        }
    }
}

/// Servers alone send them: subscribers dispatch by theirs.
#[test]
fn a_publisher_cannot_choose_the_subscription_identifiers_of_others() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let (ua, root) = (broker.user("ua"), broker.superuser("root"));
    for account in [&ua, &root] {
        for retain in [false, true] {
            let properties = Properties::new().with(id::SUBSCRIPTION_IDENTIFIER, Value::Varint(1));
            let forged = Publish { properties, retain, ..Publish::new("chatsync", "forged", 1) };
            let mut client = open(&broker, account, Version::V5, &Link::Tcp);
            client.send_publish(&forged);
            assert_eq!(client.expect_closed(), Some(0x81));
        }
    }
    assert_eq!(watcher.seen(), []);
}

#[test]
fn long_names_of_refused_clients_do_not_fill_the_log() {
    let broker = Broker::start_default();
    let before = broker.log().len();
    for n in 0..5 {
        let name = "\u{1}".repeat(60_000);
        let connect = Connect::new(Version::V5, Link::Tcp, format!("c{n}")).login(name, "wrong");
        assert!(!broker.connect(&connect).is_accepted());
    }
    let written = broker.log().len() - before;
    assert!(written < 20_000, "{written} bytes");
}
