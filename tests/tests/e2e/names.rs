//! Names that look like patterns stay names.

use ciqadamq_tests::mqtt::{Event, Packet, Publish, subscribe};
use ciqadamq_tests::{Account, Broker, BrokerOptions, Client, Outcome, Version, WAIT};
use serde_json::json;

#[test]
fn a_name_that_could_be_a_pattern_is_refused_or_stays_one_level() {
    let topics = ["by/{username}", "in/{userid}"];
    let broker = Broker::start(BrokerOptions::new().set("acl.publish_topics", topics).set("acl.on_deny", "drop"));
    let mut watcher = broker.watch();
    for name in ["#", "%u", "a/b", "", " ", "a b", "ü", ".", "..", "a\\b", "a?b"] {
        let body = json!({"username": name, "userid": "u", "password": "p"});
        assert_eq!(broker.rest.post("/api/v1/users", &body).status, 400, "{name:?}");
    }
    for userid in ["+", "#", "a+b", ".*", "al.ce", "%u", "{userid}", "a/b", "", "$x", "$SYS", "ü"] {
        let body = json!({"username": "x", "userid": userid, "password": "p"});
        assert_eq!(broker.rest.post("/api/v1/users", &body).status, 400, "{userid:?}");
    }
    for (i, name) in ["+", "a+b", ".*", "al.ce", "{userid}", "Alice", "$SYS"].into_iter().enumerate() {
        let account = broker.create(name, &format!("u{i}"), false, false);
        let mut client = broker.client(&account, Version::V5, "prober");
        for filter in ["+/+/#", "chat/+/x", "#", "chat/other/x", "+/#"] {
            assert!(!client.may_subscribe(filter), "{name} {filter}");
        }
        for topic in ["by/x", "by/other", "by/a", "in/other", "by/alice", "in/+"] {
            let outcome = client.publish(&Publish::new(topic, "forged", 1));
            // A wildcard in a topic name may end the connection, whoever sends it.
            assert!(!matches!(outcome, Outcome::Acked(0..0x80)), "{name} {topic}: {outcome:?}");
            if matches!(outcome, Outcome::Closed(_)) {
                client = broker.client(&account, Version::V5, "prober");
            }
        }
        assert_eq!(watcher.seen(), [], "{name}");
    }
}

#[test]
fn userids_that_differ_in_case_are_different_people() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let upper = broker.user("Alice");
    broker.user("alice");
    let mut client = broker.client(&upper, Version::V5, "c1");
    assert!(client.may_subscribe("chat/Alice/#") && !client.may_subscribe("chat/alice/#"));
    watcher.publish("chat/alice/x", "for the other");
    watcher.publish("chat/Alice/x", "for her");
    client.expect("chat/Alice/x", "for her");
}

#[test]
fn no_client_id_gives_a_wider_right() {
    let topics = ["dev/{clientid}", "chatsync"];
    let broker = Broker::start(BrokerOptions::new().set("acl.publish_topics", topics).set("acl.on_deny", "drop"));
    let mut watcher = broker.watch();
    let ub = broker.user("ub");
    for client_id in ["#", "+", "chat/ua", "%c", "{userid}", "{clientid}", "../x", "a\u{7f}b"] {
        for version in Version::COMMON {
            // Refusing such an id altogether would do as well.
            let ciqadamq_tests::mqtt::Answer::Accepted(mut client, _) = broker.connect(&ub.connect(version, client_id))
            else {
                continue;
            };
            for filter in ["#", "+/ua/#", "chat/ua/x", "dev/#", "dev/+"] {
                assert!(!client.may_subscribe(filter), "{client_id} {filter}");
            }
            for topic in ["dev/x", "dev/chat/ua", "dev/ub", "chat/ua", "dev/dev1"] {
                client.publish(&Publish::new(topic, "forged", 1));
            }
            client.publish_ok("chatsync", client_id, 1);
            assert_eq!(watcher.seen(), [("chatsync".to_owned(), client_id.to_owned())]);
        }
    }
}

#[test]
fn connect_and_subscribe_in_one_segment_get_the_same_verdict_every_time() {
    let broker = Broker::start_default();
    let ub = broker.user("ub");
    for round in 0..200 {
        let version = Version::COMMON[round % 2];
        let connect = ub.connect(version, &format!("hasty{}", round % 3));
        let mut client = Client::open(&connect, broker.tcp).unwrap();
        let wanted = [("+/ub/#", 1), ("chat/ua/x", 1), ("fanout/#", 0)];
        client.send(&[connect.encode(), subscribe(version, 7, &wanted)].concat());
        let (mut client, _) = client.connack().accepted();
        match client.next(WAIT) {
            Event::Packet(Packet::Suback { id: 7, codes }) => {
                assert_eq!(codes, [1, version.pick(0x87, 0x80), 0], "round {round}");
            }
            other => panic!("round {round}: {other:?}"),
        }
    }
}

#[test]
fn quick_reconnects_of_one_client_id_never_lose_a_right() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ub: Account = broker.user("ub");
    for round in 0..200 {
        let mut client = broker.client(&ub, Version::COMMON[round % 2], "restless");
        client.subscribe(&["chat/ub/#"]);
        client.publish_ok("chatsync", &round.to_string(), 1);
        watcher.expect("chatsync", &round.to_string());
    }
}
