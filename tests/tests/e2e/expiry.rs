//! Messages and sessions grow old. The only tests that wait for the clock.

use std::thread::sleep;
use std::time::{Duration, Instant};

use ciqadamq_tests::mqtt::{Connect, Properties, Publish, id};
use ciqadamq_tests::{Broker, BrokerOptions, Cluster, Version, eventually};

const LIMIT: u32 = 4;

fn broker() -> Broker {
    Broker::start(BrokerOptions::new().set("mqtt.message_expiry_secs", i64::from(LIMIT)))
}

fn sleep_until(start: Instant, secs: f32) {
    sleep((start + Duration::from_secs_f32(secs)).saturating_duration_since(Instant::now()));
}

#[test]
fn a_queued_message_expires_and_a_younger_one_does_not() {
    let broker = broker();
    let mut watcher = broker.watch();
    let (ua, ub) = (broker.user("ua"), broker.user("ub"));
    let connects = [ua.connect(Version::V311, "old").persistent(600), ub.connect(Version::V5, "new").persistent(600)];
    for (connect, userid) in connects.iter().zip(["ua", "ub"]) {
        let (mut client, _) = broker.connect(connect).accepted();
        client.subscribe(&[&format!("chat/{userid}/#")]);
        client.disconnect();
    }
    for client_id in ["old", "new"] {
        broker.rest.wait_offline(client_id);
    }
    let start = Instant::now();
    for userid in ["ua", "ub"] {
        watcher.publish(&format!("chat/{userid}/x"), "m1");
    }
    sleep_until(start, 2.5);
    for userid in ["ua", "ub"] {
        watcher.publish(&format!("chat/{userid}/x"), "m2");
    }
    sleep_until(start, 5.2);
    for (connect, userid) in connects.iter().zip(["ua", "ub"]) {
        let (mut client, _) = broker.connect(connect).accepted();
        let message = client.message();
        assert_eq!(message.text(), "m2", "{userid}");
        if let Some(left) = message.properties.number(id::MESSAGE_EXPIRY) {
            assert!(left <= 2, "{left} s left of {LIMIT}");
        } else {
            assert!(!client.version.is_v5(), "no Message Expiry Interval");
        }
        watcher.publish(&format!("chat/{userid}/x"), "end");
        assert_eq!(client.until(&format!("chat/{userid}/x"), "end"), []);
    }
}

#[test]
fn the_age_of_a_message_goes_with_its_session_over_a_restart_and_to_another_node() {
    const LIMIT: u32 = 20;
    let mut cluster = Cluster::start(3, |_| BrokerOptions::new().set("mqtt.message_expiry_secs", i64::from(LIMIT)));
    let (root, ua) = (cluster[1].superuser("root"), cluster[1].user("ua"));
    let mut publisher = cluster[3].client(&root, Version::V5, "backend");
    let connects = [ua.connect(Version::V311, "old").persistent(600), ua.connect(Version::V5, "new").persistent(600)];
    for connect in &connects {
        let (mut client, _) = cluster[1].connect(connect).accepted();
        client.subscribe(&["chat/ua/x"]);
        eventually("the subscription on the publisher's node", || {
            publisher.publish_ok("chat/ua/x", "known", 0);
            client.message_within(Duration::from_millis(200)).ok()
        });
        client.disconnect();
    }
    for client_id in ["old", "new"] {
        cluster[1].rest.wait_offline(client_id);
    }
    let start = Instant::now();
    publisher.publish_ok("chat/ua/x", "m1", 1);
    sleep_until(start, 10.0);
    publisher.publish_ok("chat/ua/x", "m2", 1);
    cluster.kill(1);
    cluster[1].spawn();
    cluster.wait_ready();
    sleep_until(start, LIMIT as f32 + 1.0);
    for connect in &connects {
        let (mut client, connack) = cluster[2].connect(connect).accepted();
        assert!(connack.session_present);
        let message = client.message();
        assert_eq!(message.text(), "m2");
        match message.properties.number(id::MESSAGE_EXPIRY) {
            Some(left) => assert!(left <= 10, "{left} s left of {LIMIT}"),
            None => assert!(!client.version.is_v5(), "no Message Expiry Interval"),
        }
    }
}

#[test]
fn the_publishers_shorter_interval_wins_and_its_longer_one_is_capped() {
    let broker = broker();
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    let connect = ua.connect(Version::V5, "phone").persistent(600);
    let (mut phone, _) = broker.connect(&connect).accepted();
    phone.subscribe(&["chat/ua/#"]);
    for (interval, most) in [(None, LIMIT), (Some(86_400), LIMIT), (Some(u32::MAX), LIMIT), (Some(2), 2)] {
        let message = Publish::new("chat/ua/x", "now", 1);
        watcher.client().publish(&match interval {
            Some(secs) => message.expiring(secs),
            None => message,
        });
        let left = phone.message().properties.number(id::MESSAGE_EXPIRY).expect("a Message Expiry Interval");
        assert!(left <= most && left + 1 >= most, "{interval:?}: {left} s");
    }
    phone.disconnect();
    broker.rest.wait_offline("phone");
    watcher.client().publish(&Publish::new("chat/ua/x", "short", 1).expiring(1));
    watcher.publish("chat/ua/x", "default");
    sleep(Duration::from_millis(2_100));
    let (mut phone, _) = broker.connect(&connect).accepted();
    phone.expect("chat/ua/x", "default");
}

#[test]
fn a_session_expires_when_it_said_so() {
    let broker = Broker::start(BrokerOptions::new().set("mqtt.session_expiry_secs", 1));
    let mut watcher = broker.watch();
    let (ua, ub) = (broker.user("ua"), broker.user("ub"));
    for connect in [ua.connect(Version::V5, "short").persistent(1), ub.connect(Version::V311, "default").persistent(0)]
    {
        let (mut client, _) = broker.connect(&connect).accepted();
        client.subscribe(&["fanout/#"]);
        client.disconnect();
    }
    watcher.publish("fanout/x", "too old");
    for client_id in ["short", "default"] {
        broker.rest.wait_gone(client_id);
    }
    for (account, version, client_id) in [(ua, Version::V5, "short"), (ub, Version::V311, "default")] {
        let (_, connack) = broker.connect(&account.connect(version, client_id).persistent(60)).accepted();
        assert!(!connack.session_present, "{client_id}");
    }
}

#[test]
fn a_session_that_ends_with_its_connection_does_so_whatever_its_disconnect_says() {
    let broker = Broker::start_default();
    let ua = broker.user("ua");
    let goodbye = |connect: &Connect, secs: u32| {
        let (mut client, _) = broker.connect(connect).accepted();
        client.subscribe(&["chat/ua/#"]);
        client.disconnect_with(0, &Properties::new().int(id::SESSION_EXPIRY, secs));
    };
    let (ending, staying) = (ua.connect(Version::V5, "ending"), ua.connect(Version::V5, "staying").persistent(1));
    for secs in [600, u32::MAX] {
        goodbye(&ending, secs);
        broker.rest.wait_gone("ending");
    }
    let (_, connack) = broker.connect(&ua.connect(Version::V5, "ending").persistent(60)).accepted();
    assert!(!connack.session_present);
    // One that was to stay may be told to stay for longer.
    goodbye(&staying, 600);
    broker.rest.wait_offline("staying");
    sleep(Duration::from_millis(2_100));
    let (_, connack) = broker.connect(&staying).accepted();
    assert!(connack.session_present);
}

#[test]
fn a_session_expiry_beyond_the_limit_is_capped_and_the_client_is_told() {
    let options = BrokerOptions::new().set("mqtt.session_expiry_secs", 30).set("mqtt.max_session_expiry_secs", 40);
    let broker = Broker::start(options);
    let ua = broker.user("ua");
    for (asked, granted) in [(u32::MAX, Some(40)), (86_400, Some(40)), (10, None)] {
        let (client, connack) = broker.connect(&ua.connect(Version::V5, "phone").persistent(asked)).accepted();
        let told = connack.properties.number(id::SESSION_EXPIRY);
        assert!(told == granted || (granted.is_none() && told == Some(asked)), "{asked}: {told:?}");
        client.disconnect();
    }
}
