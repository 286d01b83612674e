//! A change of a user's rights reaches what is open, at once, and outlives a crash.

use std::time::{Duration, Instant};

use ciqadamq_tests::mqtt::{Publish, reason};
use ciqadamq_tests::{Account, Broker, BrokerOptions, Outcome, Version};
use serde_json::json;

const AT_ONCE: Duration = Duration::from_secs(1);

#[test]
fn a_granted_flag_reaches_the_open_connection() {
    let broker = Broker::start(BrokerOptions::new().set("acl.on_deny", "drop"));
    let mut watcher = broker.watch();
    for version in Version::COMMON {
        let ua = broker.user("ua");
        let mut client = broker.client(&ua, version, "phone");
        let forged = Publish::new("chat/ub/x", "m", 1);
        for _ in 0..3 {
            client.publish(&forged);
        }
        assert!(!client.may_subscribe("adminfanout/#") && !client.may_subscribe("#"));
        assert_eq!(watcher.seen(), []);

        broker.rest.change_user(&ua.username, &json!({"admin": true}));
        let changed = Instant::now();
        while !client.may_subscribe("adminfanout/#") {
            assert!(changed.elapsed() < AT_ONCE, "still no admin");
        }
        client.publish(&forged);
        assert_eq!(watcher.seen(), [], "an admin publishes no more than others");

        broker.rest.change_user(&ua.username, &json!({"superuser": true}));
        let changed = Instant::now();
        while client.publish(&forged) != Outcome::Acked(0) || watcher.seen().is_empty() {
            assert!(changed.elapsed() < AT_ONCE, "still no superuser");
        }
        assert!(client.may_subscribe("#"));

        broker.rest.change_user(&ua.username, &json!({"superuser": false}));
        assert_eq!(client.expect_closed(), version.pick(Some(reason::ADMINISTRATIVE), None));
        let mut client = broker.client(&ua, version, "phone");
        watcher.seen();
        client.publish(&forged);
        assert_eq!(watcher.seen(), []);
        assert!(!client.may_subscribe("chat/ub/x") && client.may_subscribe("adminfanout/#"));
        broker.rest.delete_user(&ua.username);
    }
}

#[test]
fn what_was_acknowledged_stands_after_kill_9() {
    let mut broker = Broker::start_default();
    let stays = broker.user("stays");
    broker.kill9();
    broker.start_again();
    broker.client(&stays, Version::V5, "c").disconnect();

    broker.rest.change_user(&stays.username, &json!({"password": "new", "admin": true}));
    broker.kill9();
    broker.start_again();
    assert_eq!(broker.connect(&stays.connect(Version::V5, "c")).refused(), reason::BAD_CREDENTIALS);
    let stays = Account { password: "new".into(), ..stays };
    let mut client = broker.client(&stays, Version::V5, "c");
    assert!(client.may_subscribe("adminfanout/#"));

    broker.rest.change_user(&stays.username, &json!({"disabled": true}));
    broker.kill9();
    broker.start_again();
    assert_eq!(broker.connect(&stays.connect(Version::V5, "c")).refused(), reason::NOT_AUTHORIZED);

    broker.rest.delete_user(&stays.username);
    broker.kill9();
    broker.start_again();
    assert_eq!(broker.rest.get("/api/v1/users/stays-token").status, 404);
    assert!(!broker.connect(&stays.connect(Version::V5, "c")).is_accepted());
}

#[test]
fn a_crash_in_the_middle_of_many_creations_loses_none_that_was_acknowledged() {
    let mut broker = Broker::start_default();
    let (addr, token) = (broker.rest.addr, broker.rest.token.clone());
    let created = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for n in 0..8 {
            let (created, token) = (&created, &token);
            scope.spawn(move || {
                for i in 0.. {
                    let name = format!("user-{n}-{i}");
                    let body = json!({"username": name, "userid": name, "password": "p"}).to_string();
                    let bearer = format!("Bearer {token}");
                    let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
                    let path = "/api/v1/users";
                    match ciqadamq_tests::request(addr, "POST", path, &headers, Some(body.as_bytes())) {
                        Ok(response) if response.status == 201 => created.lock().unwrap().push(name),
                        Ok(response) => panic!("{} {}", response.status, response.text()),
                        // The crash.
                        Err(_) => return,
                    }
                }
            });
        }
        ciqadamq_tests::eventually("many are created", || (created.lock().unwrap().len() > 100).then_some(()));
        broker.kill9();
    });
    broker.start_again();
    let users = broker.rest.get("/api/v1/users").json();
    let names: Vec<&str> = users["users"].as_array().unwrap().iter().map(|u| u["username"].as_str().unwrap()).collect();
    assert!(names.is_sorted());
    for name in created.into_inner().unwrap() {
        assert!(names.contains(&name.as_str()), "{name} is lost");
    }
}
