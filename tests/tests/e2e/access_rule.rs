//! Every row of the access rule, allowed and refused. A superuser sends and watches; return codes are not enough.

use ciqadamq_tests::mqtt::Publish;
use ciqadamq_tests::{Account, Broker, BrokerOptions, Outcome, Version, Watcher};

/// A filter, a topic it matches, and whether a plain user and an admin may subscribe it.
const FILTERS: &[(&str, &str, bool, bool)] = &[
    ("chat/ua/m/all", "chat/ua/m/all", true, true),
    ("+/ua/#", "presence/ua/x", true, true),
    ("chat/ua/+/all", "chat/ua/m/all", true, true),
    ("chat/ua/#", "chat/ua", true, true),
    ("chat/ua", "chat/ua", true, true),
    ("/ua/#", "/ua/x", true, true),
    ("fanout/#", "fanout/news", true, true),
    ("fanout/+/x", "fanout/a/x", true, true),
    ("fanout", "fanout", true, true),
    ("adminfanout/#", "adminfanout/alarm", false, true),
    ("adminfanout/alarm", "adminfanout/alarm", false, true),
    ("#", "chat/ub/m", false, false),
    ("+", "chatsync", false, false),
    ("+/#", "chat/ub/m", false, false),
    ("+/+/#", "chat/ua/m", false, false),
    ("chat/+/m", "chat/ua/m", false, false),
    ("chat/#", "chat/ua/m", false, false),
    ("chat/ub/m/all", "chat/ub/m/all", false, false),
    ("chat/uaa/m", "chat/uaa/m", false, false),
    ("chat/UA/m", "chat/UA/m", false, false),
    ("ua/#", "ua/x", false, false),
    ("chatsync", "chatsync", false, false),
    ("updates/#", "updates", false, false),
    ("fanouts/#", "fanouts/x", false, false),
    ("+/news", "fanout/news", false, false),
];

fn check_filters(broker: &Broker, watcher: &mut Watcher, account: &Account, version: Version, admin: bool) {
    for (i, (filter, topic, user, of_admin)) in FILTERS.iter().enumerate() {
        let expected = if admin { *of_admin } else { *user };
        let mut client = broker.client(account, version, "prober");
        assert_eq!(client.may_subscribe(filter), expected, "{filter} {version:?} admin {admin}");
        client.subscribe(&["barrier/ua"]);
        watcher.publish(topic, &format!("probe {i}"));
        watcher.publish("barrier/ua", &i.to_string());
        let got = client.until("barrier/ua", &i.to_string());
        let got: Vec<_> =
            got.iter().map(|m| (m.topic.as_str(), m.text())).filter(|(t, _)| *t != "barrier/ua").collect();
        let wanted = if expected { vec![(*topic, format!("probe {i}"))] } else { vec![] };
        assert_eq!(got, wanted, "{filter} {version:?} admin {admin}");
        client.disconnect();
    }
}

#[test]
fn a_user_reads_own_topics_and_fanout_and_nothing_else() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let user = broker.user("ua");
    for version in Version::COMMON {
        check_filters(&broker, &mut watcher, &user, version, false);
    }
}

#[test]
fn an_admin_reads_the_admin_prefixes_too() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let admin = broker.admin("ua");
    for version in Version::COMMON {
        check_filters(&broker, &mut watcher, &admin, version, true);
    }
}

#[test]
fn a_refused_subscription_gets_no_retained_message() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let user = broker.user("ua");
    for (topic, text) in [("chat/ub/m", "secret"), ("chat/ua/m", "own")] {
        watcher.client().publish(&Publish::new(topic, text, 1).retained());
    }
    // A retained message is stored after its acknowledgement: wait until somebody gets both.
    ciqadamq_tests::eventually("both are retained", || {
        let root = broker.client(&broker_root(&broker), Version::V5, "look");
        retained(root, &["chat/#"]).filter(|topics| topics.len() == 2)
    });
    for version in Version::COMMON {
        let mut client = broker.client(&user, version, "reader");
        let codes = client.try_subscribe(&[("chat/ub/m", 1), ("#", 1), ("chat/+/m", 1), ("+/ua/#", 1)]);
        assert_eq!(codes, vec![version.pick(0x87, 0x80); 3].into_iter().chain([1]).collect::<Vec<_>>());
        client.expect("chat/ua/m", "own");
        watcher.publish("end/ua", "end");
        let rest = client.until("end/ua", "end");
        assert_eq!(rest, []);
    }
}

/// The superuser `root`, made at the first call.
fn broker_root(broker: &Broker) -> Account {
    let account = Account { username: "root".into(), userid: "root".into(), password: "root-password".into() };
    let body =
        serde_json::json!({"username": "root", "userid": "root", "password": "root-password", "superuser": true});
    let status = broker.rest.post("/api/v1/users", &body).status;
    assert!(matches!(status, 201 | 409), "{status}");
    account
}

/// The topics of retained messages that a subscription gives at once.
fn retained(mut client: ciqadamq_tests::Client, filters: &[&str]) -> Option<Vec<String>> {
    client.subscribe(filters);
    client.subscribe(&["end"]);
    client.publish_ok("end", "end", 1);
    Some(client.until("end", "end").into_iter().map(|message| message.topic).collect())
}

#[test]
fn a_user_publishes_to_the_configured_topics_and_nowhere_else() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let (user, admin) = (broker.user("ua"), broker.admin("ad"));
    for version in Version::COMMON {
        for account in [&user, &admin] {
            let id = |role: &str| format!("{role}-{}", account.userid);
            let mut client = broker.client(account, version, &id("sender"));
            for topic in ["chatsync", "updates"] {
                for qos in 0..=2 {
                    client.publish_ok(topic, &format!("{version:?} {qos}"), qos);
                    watcher.expect(topic, &format!("{version:?} {qos}"));
                }
            }
            for topic in [
                "chatsync/x",
                "chatsync/",
                "/chatsync",
                "Chatsync",
                "updates/x",
                "chat/ua/m/all",
                "chat/ub/m/all",
                "fanout/news",
                "adminfanout/alarm",
                "watcher/marker/x",
                "$SYS/x",
                "$delayed/1/chat/ub/m",
                "$share/g/chatsync",
                "chat/+/m",
                "#",
                "+",
                "chatsync/#",
            ] {
                let mut client = broker.client(account, version, &id("forger"));
                let outcome = client.publish(&Publish::new(topic, "forged", 1));
                assert!(matches!(outcome, Outcome::Closed(_)), "{topic}: {outcome:?}");
                assert_eq!(watcher.seen(), [], "{topic}");
            }
        }
    }
}

#[test]
fn a_superuser_may_do_what_the_protocol_allows() {
    let broker = Broker::start_default();
    let root = broker.superuser("root");
    for version in Version::COMMON {
        let mut client = broker.client(&root, version, "root-1");
        client.subscribe(&["#", "chat/+/m", "$share/g/chat/#"]);
        client.publish_ok("chat/anybody/m", "x", 1);
        let outcome = client.publish(&Publish::new("chat/+/m", "x", 1));
        assert!(!matches!(outcome, Outcome::Acked(0)), "a topic name with a wildcard: {outcome:?}");
    }
}

#[test]
fn placeholders_in_publish_topics_stand_for_one_level() {
    let topics = ["in/{userid}/x", "dev/{clientid}", "by/{username}"];
    let broker = Broker::start(BrokerOptions::new().set("acl.publish_topics", topics).set("acl.on_deny", "drop"));
    let mut watcher = broker.watch();
    let user = broker.user("ua");
    let mut client = broker.client(&user, Version::V5, "dev1");
    for (topic, allowed) in [
        ("in/ua/x", true),
        ("dev/dev1", true),
        ("by/ua-token", true),
        ("in/ub/x", false),
        ("in/ua", false),
        ("in/ua/x/y", false),
        ("dev/dev2", false),
        ("by/ub-token", false),
        ("in/{userid}/x", false),
        ("chatsync", false),
    ] {
        let outcome = client.publish(&Publish::new(topic, "x", 1));
        assert_eq!(outcome, Outcome::Acked(if allowed { 0 } else { 0x87 }), "{topic}");
        let wanted = if allowed { vec![(topic.to_owned(), "x".to_owned())] } else { vec![] };
        assert_eq!(watcher.seen(), wanted, "{topic}");
    }
}

#[test]
fn configured_prefixes_replace_the_default_ones() {
    let options =
        BrokerOptions::new().set("acl.fanout_prefixes", ["news", "weather/all"]).set("acl.admin_prefixes", ["ops"]);
    let broker = Broker::start(options);
    let (user, admin) = (broker.user("ua"), broker.admin("ad"));
    let mut client = broker.client(&user, Version::V5, "c1");
    for (filter, allowed) in
        [("news/#", true), ("weather/all/+", true), ("weather/#", false), ("fanout/#", false), ("ops/#", false)]
    {
        assert_eq!(client.may_subscribe(filter), allowed, "{filter}");
    }
    let mut client = broker.client(&admin, Version::V311, "c2");
    assert!(client.may_subscribe("ops/#") && !client.may_subscribe("adminfanout/#"));
}
