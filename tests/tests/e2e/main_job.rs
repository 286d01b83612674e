//! What the broker is for: the backend talks to every device of every user, and the devices answer.

use ciqadamq_tests::mqtt::Publish;
use ciqadamq_tests::{Broker, Client, Connect, Link, Outcome, Version};
use serde_json::json;

#[test]
fn one_publish_of_the_backend_reaches_every_device_and_a_device_reaches_the_backend() {
    let broker = Broker::start_default();
    let (backend, user) = (broker.superuser("backend"), broker.user("u1"));
    let mut backend = broker.client(&backend, Version::V5, "backend-1");
    backend.subscribe(&["chatsync"]);

    let mut devices: Vec<(String, Client)> = Vec::new();
    for version in [Version::V31, Version::V311, Version::V5] {
        for link in Link::both() {
            let id = format!("{version:?}-{}", if link == Link::Tcp { "tcp" } else { "ws" });
            let connect = Connect::new(version, link, &id).login(&user.username, &user.password);
            let (mut device, connack) = broker.connect(&connect).accepted();
            assert!(!connack.session_present);
            device.subscribe(&["chat/u1/m/all"]);
            devices.push((id, device));
        }
    }
    backend.publish_ok("chat/u1/m/all", "hello", 1);
    for (_, device) in &mut devices {
        device.expect("chat/u1/m/all", "hello");
    }
    for (id, device) in &mut devices {
        device.publish_ok("chatsync", id, 1);
        backend.expect("chatsync", id);
    }
}

#[test]
fn anything_else_a_device_tries_is_refused() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let user = broker.user("u1");
    for version in Version::COMMON {
        for link in Link::both() {
            let connect = Connect::new(version, link, "phone").login(&user.username, &user.password);
            let (mut device, _) = broker.connect(&connect).accepted();
            for filter in ["#", "chat/u2/m/all", "chatsync", "+/+/#", "chat/+/m/all"] {
                assert!(!device.may_subscribe(filter), "{filter}");
            }
            device.subscribe(&["chat/u1/m/all"]);
            // Nothing of what was refused arrives: the allowed message is the first one.
            watcher.publish("chat/u2/m/all", "for somebody else");
            watcher.publish("chatsync", "for the backend");
            watcher.publish("chat/u1/m/all", "for u1");
            device.expect("chat/u1/m/all", "for u1");
            watcher.seen();

            let outcome = device.publish(&Publish::new("chat/u2/m/all", "forged", 1));
            assert!(matches!(outcome, Outcome::Closed(_)), "{outcome:?}");
            assert_eq!(watcher.seen(), []);
        }
    }
}

#[test]
fn a_stranger_is_refused() {
    let broker = Broker::start_default();
    let user = broker.user("u1");
    for version in Version::COMMON {
        for link in Link::both() {
            let connect = Connect::new(version, link, "phone");
            let wrong = version.pick(0x86, 4);
            assert_eq!(broker.connect(&connect.clone().login(&user.username, "guess")).refused(), wrong);
            assert_eq!(broker.connect(&connect.clone().login("nobody", "guess")).refused(), wrong);
            assert!(!broker.connect(&connect).is_accepted());
        }
    }
}

#[test]
fn several_tokens_of_one_person_read_the_same_topics() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let old = broker.create("old-token", "u1", false, false);
    let new = broker.create("new-token", "u1", false, false);
    let mut phone = broker.client(&old, Version::V311, "phone");
    let mut laptop = broker.client(&new, Version::V5, "laptop");
    phone.subscribe(&["chat/u1/#"]);
    laptop.subscribe(&["+/u1/#"]);
    watcher.publish("chat/u1/m/all", "both");
    phone.expect("chat/u1/m/all", "both");
    laptop.expect("chat/u1/m/all", "both");

    broker.rest.delete_user("old-token");
    phone.expect_closed();
    watcher.publish("chat/u1/m/all", "one");
    laptop.expect("chat/u1/m/all", "one");
    let users = broker.rest.get("/api/v1/users?userid=u1").json();
    let names: Vec<_> = users["users"].as_array().unwrap().iter().map(|user| user["username"].clone()).collect();
    assert_eq!(names, [json!("new-token")]);
}
