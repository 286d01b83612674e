//! Shared and otherwise prefixed filters are judged by the filter inside.

use ciqadamq_tests::mqtt::{Event, Packet, subscribe};
use ciqadamq_tests::{Broker, Client, Version, WAIT};

const FOREIGN: &[&str] = &[
    "$share/g/chat/ua/#",
    "$share/g/#",
    "$share/g/+/ua/x",
    "$share/g/chat/+/x",
    "$share//chat/ua/x",
    "$share/g+/x",
    "$share/g+/chat/ua/x",
    "$share/#/chat/ua/x",
    "$share/g",
    "$share/g/",
    "$share",
    "$share/",
    "$share/g/$share/h/chat/ua/#",
    "$share/g/$exclusive/chat/ua/x",
    "$SHARE/g/chat/ua/x",
    "$queue/chat/ua/x",
    "$exclusive/chat/ua/x",
    "$exclusive/$exclusive/chat/ua/x",
    "$limit/1/chat/ua/x",
    "$limit/x/chat/ua/x",
    "$share/g/$SYS/#",
    "$SYS/#",
    "$delayed/1/chat/ua/x",
    "$p2p/ua/x",
];

/// Refused in a SUBACK, or as a malformed packet.
fn is_refused(client: &mut Client, filter: &str) -> bool {
    client.send(&subscribe(client.version, 1, &[(filter, 1)]));
    match client.next(WAIT) {
        Event::Packet(Packet::Suback { codes, .. }) => codes.iter().all(|code| *code >= 0x80),
        Event::Packet(Packet::Disconnect { .. }) | Event::Closed => true,
        other => panic!("{filter}: {other:?}"),
    }
}

#[test]
fn no_prefix_opens_somebody_elses_topics() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ub = broker.user("ub");
    for version in Version::COMMON {
        for filter in FOREIGN {
            let mut client = broker.client(&ub, version, "b1");
            assert!(is_refused(&mut client, filter), "{filter} {version:?}");
            if !client.ping() {
                continue;
            }
            let session = broker.rest.session("b1").unwrap();
            assert_eq!(session["subscriptions"], 0, "{filter} {version:?}");
            client.subscribe(&["chat/ub/end"]);
            for i in 0..20 {
                watcher.publish("chat/ua/x", &i.to_string());
            }
            watcher.publish("chat/ub/end", "end");
            assert_eq!(client.until("chat/ub/end", "end"), [], "{filter} {version:?}");
        }
    }
}

#[test]
fn a_group_on_own_topics_shares_every_message() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ub = broker.user("ub");
    let mut members = [
        broker.client(&ub, Version::V5, "b1"),
        broker.client(&ub, Version::V311, "b2"),
        broker.client(&ub, Version::V5, "b3"),
    ];
    for member in &mut members {
        member.subscribe(&["$share/g/chat/ub/#", "end/ub"]);
    }
    for i in 0..60 {
        watcher.publish("chat/ub/x", &i.to_string());
    }
    watcher.publish("end/ub", "end");
    let mut got: Vec<u32> = Vec::new();
    for member in &mut members {
        let own = member.until("end/ub", "end");
        got.extend(own.iter().map(|message| message.text().parse::<u32>().unwrap()));
    }
    got.sort_unstable();
    assert_eq!(got, (0..60).collect::<Vec<_>>());
}

#[test]
fn an_unsubscribed_filter_gives_nothing_more() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ub = broker.user("ub");
    for version in Version::COMMON {
        let mut client = broker.client(&ub, version, "b1");
        client.subscribe(&["chat/ub/#", "$share/g/news/ub/#", "end/ub"]);
        client.unsubscribe(&["chat/ub/#", "$share/g/news/ub/#"]);
        watcher.publish("chat/ub/x", "late");
        watcher.publish("news/ub/x", "late");
        watcher.publish("end/ub", "end");
        assert_eq!(client.until("end/ub", "end"), []);
    }
}

#[test]
fn exclusive_and_limited_filters_are_for_whom_the_filter_is() {
    let broker = Broker::start(ciqadamq_tests::BrokerOptions::new().set("acl.limit_prefixes", true));
    let mut watcher = broker.watch();
    let (ua, ub) = (broker.user("ua"), broker.user("ub"));
    for version in Version::COMMON {
        let mut own = broker.client(&ub, version, "own");
        for filter in ["$exclusive/chat/ub/x", "$limit/1/chat/ub/y"] {
            own.subscribe(&[filter]);
        }
        for filter in ["$exclusive/chat/ua/x", "$limit/5/chat/ua/x", "$exclusive/chat/#", "$limit/5/+/+/x"] {
            assert!(!own.may_subscribe(filter), "{filter}");
        }
        for topic in ["chat/ua/x", "chat/ub/x", "chat/ub/y"] {
            watcher.publish(topic, "m");
        }
        own.expect("chat/ub/x", "m");
        own.expect("chat/ub/y", "m");
        broker.client(&ua, version, "other").subscribe(&["$exclusive/chat/ua/x"]);
        own.disconnect();
        for id in ["own", "other"] {
            broker.rest.wait_gone(id);
        }
    }
}
