//! Empty, missing and wrong credentials; the brake.

use ciqadamq_tests::mqtt::reason;
use ciqadamq_tests::{Broker, BrokerOptions, Connect, Link, Version};
use serde_json::json;

fn field(text: Option<&str>) -> Option<Vec<u8>> {
    text.map(|text| text.as_bytes().to_vec())
}

/// Every way to leave something out; none of them gets in.
#[track_caller]
fn nobody_gets_in(broker: &Broker, user: &str) {
    for version in [Version::V31, Version::V311, Version::V5] {
        for link in Link::both() {
            for (username, password) in [
                (Some(user), Some("")),
                (Some(user), None),
                (None, Some("secret")),
                (None, Some("")),
                (Some(""), Some("")),
                (Some(""), Some("secret")),
                (Some(""), None),
                (None, None),
                (Some("+"), Some("secret")),
                (Some("#"), Some("secret")),
                (Some("../x"), Some("secret")),
            ] {
                let mut connect = Connect::new(version, link.clone(), "odd");
                (connect.username, connect.password) = (field(username), field(password));
                let answer = broker.connect(&connect);
                assert!(!answer.is_accepted(), "{version:?} {link:?} {username:?} {password:?}: {answer:?}");
            }
            // Flags that do not fit the fields: the password alone, reserved bit set, fields missing.
            for flags in [0x42, 0x03, 0xc2, 0x82] {
                let mut connect = Connect::new(version, link.clone(), "odd");
                connect.password = field(Some("secret"));
                connect.flags = Some(flags);
                let answer = broker.connect(&connect);
                assert!(!answer.is_accepted(), "{version:?} {link:?} flags {flags:#04x}: {answer:?}");
            }
        }
    }
}

#[test]
fn a_store_without_users_lets_nobody_in() {
    let broker = Broker::start_default();
    nobody_gets_in(&broker, "nobody");
    assert_eq!(broker.rest.get("/ready").status, 200);
}

#[test]
fn empty_and_missing_credentials_are_refused() {
    let broker = Broker::start_default();
    let ua = broker.user("ua");
    nobody_gets_in(&broker, &ua.username);
    broker.client(&ua, Version::V311, "good").disconnect();
}

#[test]
fn a_password_is_compared_whole() {
    let broker = Broker::start_default();
    let long = "x".repeat(511);
    for (name, password) in [("a", "päss wörd\u{1F511}"), ("b", &format!("{long}y")), ("c", "zero\u{0}byte")] {
        let body = json!({"username": name, "userid": name, "password": password});
        assert_eq!(broker.rest.post("/api/v1/users", &body).status, 201, "{name}");
        let connect = Connect::new(Version::V5, Link::Tcp, name);
        assert!(broker.connect(&connect.clone().login(name, password)).is_accepted(), "{name}");
        let shorter = &password[..password.char_indices().last().unwrap().0];
        for wrong in [shorter, &format!("{shorter}z"), &format!("{password} "), &format!("{password}\0")] {
            assert_eq!(broker.connect(&connect.clone().login(name, wrong)).refused(), reason::BAD_CREDENTIALS);
        }
    }
    let body = json!({"username": "d", "userid": "d", "password": "x".repeat(513)});
    assert_eq!(broker.rest.post("/api/v1/users", &body).status, 400);
}

#[test]
fn rest_takes_no_empty_password() {
    let broker = Broker::start_default();
    for body in [
        json!({"username": "a", "userid": "a", "password": ""}),
        json!({"username": "a", "userid": "a", "password": null}),
        json!({"username": "a", "userid": "a"}),
        json!({"username": "a", "userid": "a", "password": 1}),
        json!({"username": "a", "userid": "a", "password": ["p"]}),
    ] {
        let response = broker.rest.post("/api/v1/users", &body);
        assert_eq!((response.status, response.json()["field"].as_str()), (400, Some("password")), "{body}");
    }
    let ua = broker.user("ua");
    for body in [json!({"password": ""}), json!({"password": 1})] {
        assert_eq!(broker.rest.patch("/api/v1/users/ua-token", &body).status, 400, "{body}");
    }
    broker.client(&ua, Version::V5, "still").disconnect();
}

#[test]
fn guessing_is_braked_and_locks_out_nobody_who_was_in_lately() {
    let options = BrokerOptions::new().set("auth.brake_failures_per_user", 5).set("auth.brake_window_secs", 3);
    let broker = Broker::start(options);
    let (ua, ub) = (broker.user("ua"), broker.user("ub"));
    let mut phone = broker.client(&ua, Version::V5, "phone");
    for guess in 0..30 {
        let connect = Connect::new(Version::V5, Link::Tcp, format!("guesser{guess}"));
        assert!(!broker.connect(&connect.login(&ua.username, format!("guess{guess}"))).is_accepted());
        let connect = Connect::new(Version::V5, Link::Tcp, format!("guesser{guess}"));
        assert!(!broker.connect(&connect.login(&ub.username, format!("guess{guess}"))).is_accepted());
    }
    assert!(phone.ping(), "a brake touches no session");
    // The password of `ua` was verified lately: it is known without hashing.
    broker.client(&ua, Version::V311, "tablet").disconnect();
    // That of `ub` never was: he has to wait, but not long.
    ciqadamq_tests::eventually("the brake lets go", || {
        broker.connect(&ub.connect(Version::V5, "phone-b")).is_accepted().then_some(())
    });
}
