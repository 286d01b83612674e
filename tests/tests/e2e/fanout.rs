//! The server subscribes for the client, if it is told to.

use ciqadamq_tests::{Broker, BrokerOptions, Link, Version, eventually};

/// The subscriptions are made one after the other, behind CONNACK.
fn subscribed(broker: &Broker, client_id: &str, count: usize) {
    eventually(&format!("{client_id} has {count} subscriptions"), || {
        broker.rest.session(client_id).filter(|session| session["subscriptions"] == count)
    });
}

#[test]
fn with_auto_subscription_a_client_gets_its_topics_without_asking() {
    let broker = Broker::start(BrokerOptions::new().set("fanout.auto_subscribe", true));
    let mut watcher = broker.watch();
    let (ua, admin) = (broker.user("ua"), broker.admin("ad"));
    for version in Version::COMMON {
        for link in Link::both() {
            let as_user = ciqadamq_tests::Connect::new(version, link.clone(), "u").login(&ua.username, &ua.password);
            let as_admin = ciqadamq_tests::Connect::new(version, link, "a").login(&admin.username, &admin.password);
            let (mut user, _) = broker.connect(&as_user).accepted();
            let (mut admin, _) = broker.connect(&as_admin).accepted();
            subscribed(&broker, "u", 2);
            subscribed(&broker, "a", 3);
            for (topic, text) in [
                ("chat/ub/x", "for somebody else"),
                ("adminfanout/x", "for admins"),
                ("chat/ua/x", "for her"),
                ("chat/ad/x", "for the admin"),
                ("fanout/x", "for all"),
            ] {
                watcher.publish(topic, text);
            }
            let message = user.expect("chat/ua/x", "for her");
            assert_eq!(message.qos, 1);
            user.expect("fanout/x", "for all");
            admin.expect("adminfanout/x", "for admins");
            admin.expect("chat/ad/x", "for the admin");
            admin.expect("fanout/x", "for all");
        }
    }
}

#[test]
fn auto_subscription_survives_in_a_persistent_session_and_is_not_doubled() {
    let broker = Broker::start(BrokerOptions::new().set("fanout.auto_subscribe", true).set("fanout.qos", 2));
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    let connect = ua.connect(Version::V5, "phone").persistent(600);
    let (phone, _) = broker.connect(&connect).accepted();
    subscribed(&broker, "phone", 2);
    phone.disconnect();
    broker.rest.wait_offline("phone");
    watcher.publish("chat/ua/x", "while away");
    let (mut phone, connack) = broker.connect(&connect).accepted();
    assert!(connack.session_present);
    phone.expect("chat/ua/x", "while away");
    assert!(phone.ping());
    watcher.publish("chat/ua/x", "once");
    watcher.publish("chat/ua/x", "end");
    phone.expect("chat/ua/x", "once");
    assert_eq!(phone.until("chat/ua/x", "end"), []);
}

#[test]
fn without_it_a_client_gets_nothing_it_did_not_ask_for() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    let mut phone = broker.client(&ua, Version::V5, "phone");
    assert!(phone.ping());
    watcher.publish("chat/ua/x", "not asked for");
    phone.subscribe(&["end/ua"]);
    watcher.publish("end/ua", "end");
    assert_eq!(phone.until("end/ua", "end"), []);
    assert_eq!(broker.rest.session("phone").unwrap()["subscriptions"], 1);
}
