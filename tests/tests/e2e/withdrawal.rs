//! Taking a right away ends what was built on it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use ciqadamq_tests::mqtt::{Publish, reason};
use ciqadamq_tests::{Account, Broker, Client, Connect, Link, Outcome, Version, eventually};
use serde_json::{Value, json};

/// One connection of each kind.
fn everywhere(broker: &Broker, account: &Account) -> Vec<Client> {
    let mut clients = Vec::new();
    for version in Version::COMMON {
        for link in Link::both() {
            let id = format!("{version:?}-{link:?}").replace(|c: char| !c.is_ascii_alphanumeric(), "");
            let connect = Connect::new(version, link, &id).login(&account.username, &account.password);
            let connect = connect.persistent(600).will(Publish::new("updates", "never", 1));
            let (mut client, _) = broker.connect(&connect).accepted();
            client.subscribe(&[&format!("+/{}/#", account.userid)]);
            clients.push(client);
        }
    }
    clients
}

#[track_caller]
fn all_closed(clients: Vec<Client>) {
    for mut client in clients {
        let expected = client.version.pick(Some(reason::ADMINISTRATIVE), None);
        assert_eq!(client.expect_closed(), expected, "{:?}", client.version);
    }
}

#[track_caller]
fn no_sessions(broker: &Broker, account: &Account) {
    ciqadamq_tests::eventually("her sessions are gone", || {
        let path = format!("/api/v1/sessions?username={}", account.username);
        let sessions = broker.rest.get(&path).json();
        sessions["sessions"].as_array().unwrap().is_empty().then_some(())
    });
}

#[test]
fn a_deleted_user_is_disconnected_and_stays_out() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let (ua, ub) = (broker.user("ua"), broker.user("ub"));
    let clients = everywhere(&broker, &ua);
    let mut other = broker.client(&ub, Version::V5, "other");
    broker.rest.delete_user(&ua.username);
    all_closed(clients);
    for version in Version::COMMON {
        let code = broker.connect(&ua.connect(version, "again")).refused();
        assert_eq!(code, version.pick(reason::BAD_CREDENTIALS, reason::V3_BAD_CREDENTIALS));
    }
    no_sessions(&broker, &ua);
    assert_eq!(watcher.seen(), [], "no Will is sent");
    assert!(other.ping(), "nobody else is touched");
    assert_eq!(broker.rest.get("/api/v1/users/ua-token").status, 404);
}

#[test]
fn an_offline_session_goes_with_its_queue_and_a_new_user_inherits_nothing() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    for version in Version::COMMON {
        let ua = broker.user("ua");
        let connect = ua.connect(version, "phone").persistent(600);
        let (mut phone, _) = broker.connect(&connect).accepted();
        phone.subscribe(&["+/ua/#"]);
        phone.disconnect();
        broker.rest.wait_offline("phone");
        watcher.publish("chat/ua/x", "for the old one");
        broker.rest.delete_user(&ua.username);

        // At once, with the same names and the same password.
        let body = json!({"username": ua.username, "userid": "ua", "password": ua.password});
        assert_eq!(broker.rest.post("/api/v1/users", &body).status, 201);
        let (mut phone, connack) = broker.connect(&connect).accepted();
        assert!(!connack.session_present, "{version:?}");
        phone.subscribe(&["end/ua"]);
        watcher.publish("chat/ua/x", "for whoever subscribed it");
        watcher.publish("end/ua", "end");
        assert_eq!(phone.until("end/ua", "end"), [], "{version:?}");
        broker.rest.delete_user(&ua.username);
    }
}

#[test]
fn a_new_password_another_userid_a_lost_flag_and_a_lock_end_all_sessions() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let changes: [(Value, bool); 5] = [
        (json!({"password": "another password"}), false),
        (json!({"userid": "somebody-else"}), true),
        (json!({"superuser": false}), true),
        (json!({"admin": false}), true),
        (json!({"disabled": true}), false),
    ];
    for (i, (change, may_return)) in changes.into_iter().enumerate() {
        let account = broker.create(&format!("name{i}"), &format!("id{i}"), true, true);
        let clients = everywhere(&broker, &account);
        broker.rest.change_user(&account.username, &change);
        all_closed(clients);
        no_sessions(&broker, &account);
        let answer = broker.connect(&account.connect(Version::V5, "again"));
        assert_eq!(answer.is_accepted(), may_return, "{change}: {answer:?}");
    }
    assert_eq!(watcher.seen(), [], "no Will is sent");
}

#[test]
fn a_disabled_user_is_told_so_and_comes_back_when_enabled() {
    let broker = Broker::start_default();
    let ua = broker.user("ua");
    broker.rest.change_user(&ua.username, &json!({"disabled": true}));
    assert_eq!(broker.rest.get("/api/v1/users/ua-token").json()["disabled"], true);
    for version in Version::COMMON {
        let code = broker.connect(&ua.connect(version, "phone")).refused();
        assert_eq!(code, version.pick(reason::NOT_AUTHORIZED, reason::V3_NOT_AUTHORIZED));
        // Whoever does not know the password learns nothing about the account.
        let guess = Connect::new(version, Link::Tcp, "phone").login(&ua.username, "guess");
        assert_eq!(broker.connect(&guess).refused(), version.pick(reason::BAD_CREDENTIALS, reason::V3_BAD_CREDENTIALS));
    }
    broker.rest.change_user(&ua.username, &json!({"disabled": false}));
    broker.client(&ua, Version::V5, "phone").disconnect();
}

#[test]
fn a_changed_password_works_at_once_and_the_old_one_does_not() {
    let broker = Broker::start_default();
    let old = broker.user("ua");
    broker.client(&old, Version::V5, "phone").disconnect();
    broker.rest.change_user(&old.username, &json!({"password": "the new one"}));
    assert_eq!(broker.connect(&old.connect(Version::V5, "phone")).refused(), reason::BAD_CREDENTIALS);
    let new = Account { password: "the new one".into(), ..old };
    broker.client(&new, Version::V5, "phone").disconnect();
}

#[test]
fn a_user_deleted_while_she_publishes_is_stopped() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    for version in Version::COMMON {
        let ua = broker.user("ua");
        let mut client = broker.client(&ua, version, "chatty");
        let (published, deleted) = (AtomicU32::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let publisher = scope.spawn(|| {
                let mut after = 0;
                loop {
                    let late = deleted.load(Ordering::SeqCst);
                    match client.publish(&Publish::new("chatsync", if late { "late" } else { "x" }, 1)) {
                        Outcome::Closed(_) => return after,
                        Outcome::Acked(0 | 0x10) if late => after += 1,
                        _ => drop(published.fetch_add(1, Ordering::SeqCst)),
                    }
                }
            });
            eventually("she publishes", || (published.load(Ordering::SeqCst) > 20).then_some(()));
            broker.rest.delete_user(&ua.username);
            deleted.store(true, Ordering::SeqCst);
            assert_eq!(publisher.join().unwrap(), 0, "published after the deletion was acknowledged");
        });
        assert!(!watcher.seen().iter().any(|(_, text)| text == "late"));
    }
}

#[test]
fn a_user_deleted_while_she_reconnects_gets_in_no_more() {
    let broker = Broker::start_default();
    let ua = broker.user("ua");
    let stop = AtomicBool::new(false);
    let (ins, outs) = ([AtomicU32::new(0), AtomicU32::new(0)], [AtomicU32::new(0), AtomicU32::new(0)]);
    let all = |counts: &[AtomicU32; 2]| counts.iter().all(|count| count.load(Ordering::SeqCst) > 5).then_some(());
    thread::scope(|scope| {
        let loops: Vec<_> = (0..2)
            .map(|n| {
                let (broker, ua, stop) = (&broker, &ua, &stop);
                let (got_in, stayed_out) = (&ins[n], &outs[n]);
                scope.spawn(move || {
                    let mut last_success = None;
                    let mut open = Vec::new();
                    while !stop.load(Ordering::SeqCst) {
                        let begun = Instant::now();
                        let answer = broker.connect(&ua.connect(Version::V5, &format!("restless{n}")));
                        if let ciqadamq_tests::mqtt::Answer::Accepted(client, _) = answer {
                            last_success = Some(begun);
                            open = vec![client];
                            got_in.fetch_add(1, Ordering::SeqCst);
                        } else {
                            stayed_out.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                    for mut client in open {
                        client.expect_closed();
                    }
                    last_success.unwrap()
                })
            })
            .collect();
        eventually("both get in", || all(&ins));
        broker.rest.delete_user(&ua.username);
        let deleted = Instant::now();
        outs.iter().for_each(|count| count.store(0, Ordering::SeqCst));
        eventually("both try in vain", || all(&outs));
        stop.store(true, Ordering::SeqCst);
        for handle in loops {
            assert!(handle.join().unwrap() < deleted, "she got in after the deletion was acknowledged");
        }
    });
    no_sessions(&broker, &ua);
}

#[test]
fn a_session_ended_over_rest_leaves_no_will_and_may_come_back() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    for version in Version::COMMON {
        let connect = ua.connect(version, "phone/1").persistent(600).will(Publish::new("updates", "never", 1));
        let (mut phone, _) = broker.connect(&connect).accepted();
        phone.subscribe(&["+/ua/#"]);
        assert_eq!(broker.rest.delete("/api/v1/sessions/phone%2F1").status, 204);
        assert_eq!(phone.expect_closed(), version.pick(Some(reason::ADMINISTRATIVE), None));
        broker.rest.wait_gone("phone/1");
        assert_eq!(broker.rest.delete("/api/v1/sessions/phone%2F1").status, 404);
        let (phone, connack) = broker.connect(&ua.connect(version, "phone/1")).accepted();
        assert!(!connack.session_present);
        phone.disconnect();
    }
    assert_eq!(watcher.seen(), []);
}
