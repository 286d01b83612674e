//! A client id belongs to a person as long as a session with it exists.

use ciqadamq_tests::mqtt::{Answer, reason};
use ciqadamq_tests::{Account, Broker, BrokerOptions, Client, Connect, Link, Version, eventually};

#[test]
fn an_offline_session_is_nobody_elses_and_keeps_its_messages() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let (ua, ub) = (broker.user("ua"), broker.user("ub"));
    for version in Version::COMMON {
        let own = ua.connect(version, "dev1").persistent(600);
        let (mut phone, _) = broker.connect(&own).accepted();
        phone.subscribe(&["chat/ua/#"]);
        phone.disconnect();
        broker.rest.wait_offline("dev1");
        for i in 0..3 {
            watcher.publish("chat/ua/x", &i.to_string());
        }
        for other in Version::COMMON {
            for link in Link::both() {
                for clean in [true, false] {
                    let mut connect = Connect::new(other, link.clone(), "dev1").login(&ub.username, &ub.password);
                    connect.clean = clean;
                    let code = broker.connect(&connect).refused();
                    assert_eq!(code, other.pick(reason::NOT_AUTHORIZED, reason::V3_NOT_AUTHORIZED));
                }
            }
        }
        let wrong = Connect::new(version, Link::Tcp, "dev1").login(&ua.username, "guess");
        assert!(!broker.connect(&wrong).is_accepted());

        let (mut phone, connack) = broker.connect(&own).accepted();
        assert!(connack.session_present, "{version:?}");
        for i in 0..3 {
            phone.expect("chat/ua/x", &i.to_string());
        }
        watcher.publish("chat/ua/x", "still subscribed");
        phone.expect("chat/ua/x", "still subscribed");
        assert_eq!(broker.rest.delete("/api/v1/sessions/dev1").status, 204);
        broker.rest.wait_gone("dev1");
    }
}

#[test]
fn an_online_session_is_not_disturbed() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let (ua, ub) = (broker.user("ua"), broker.user("ub"));
    for version in Version::COMMON {
        let mut phone = broker.client(&ua, version, "dev1");
        phone.subscribe(&["chat/ua/#"]);
        for other in Version::COMMON {
            let code = broker.connect(&ub.connect(other, "dev1")).refused();
            assert_eq!(code, other.pick(reason::NOT_AUTHORIZED, reason::V3_NOT_AUTHORIZED));
            let wrong = Connect::new(other, Link::Tcp, "dev1").login(&ua.username, "guess");
            assert_eq!(broker.connect(&wrong).refused(), other.pick(0x86, 4));
            let nobody = Connect::new(other, Link::Tcp, "dev1").login("nobody", "guess");
            assert_eq!(broker.connect(&nobody).refused(), other.pick(0x86, 4));
        }
        assert!(phone.ping());
        watcher.publish("chat/ua/x", "here");
        phone.expect("chat/ua/x", "here");
        phone.disconnect();
    }
}

#[test]
fn the_same_person_may_take_over_with_another_token() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let old = broker.create("old-token", "ua", false, false);
    let new = broker.create("new-token", "ua", false, false);
    let (mut first, _) = broker.connect(&old.connect(Version::V5, "dev1").persistent(600)).accepted();
    first.subscribe(&["chat/ua/#"]);
    first.disconnect();
    broker.rest.wait_offline("dev1");
    watcher.publish("chat/ua/x", "waiting");
    let (mut second, connack) = broker.connect(&new.connect(Version::V5, "dev1").persistent(600)).accepted();
    assert!(connack.session_present);
    second.expect("chat/ua/x", "waiting");
    // The session is the new token's now: deleting the old one does not end it.
    broker.rest.delete_user("old-token");
    assert!(second.ping());
    broker.rest.delete_user("new-token");
    assert_eq!(second.expect_closed(), Some(reason::ADMINISTRATIVE));
}

/// In a storm of logins a client gives up and comes again; its first CONNECT may be done with last.
#[test]
fn of_two_connections_of_a_client_the_later_one_stays_whichever_is_let_in_last() {
    let options = BrokerOptions::new().set("auth.argon2.m_cost", 131_072).set("auth.argon2.t_cost", 4);
    let broker = Broker::start(options);
    let quick = broker.create("quick", "ua", false, false);
    // It was here before, and its password need not be hashed.
    broker.client(&quick, Version::V5, "before").disconnect();
    for version in Version::COMMON {
        for persistent in [false, true] {
            let slow = broker.create("slow", "ua", false, false);
            let connect = |account: &Account| {
                let connect = account.connect(version, "phone");
                if persistent { connect.persistent(600) } else { connect }
            };
            let mut earlier = Client::open(&connect(&slow), broker.tcp).unwrap();
            earlier.send(&connect(&slow).encode());
            eventually("its password is being hashed", || {
                (broker.rest.metric("ciqadamq_auth_hashing", &[]) >= 1.0).then_some(())
            });
            let before = broker.rest.metric("ciqadamq_auth_logins_total", &["ok"]);
            let (mut later, _) = broker.connect(&connect(&quick)).accepted();
            assert_eq!(
                broker.rest.metric("ciqadamq_auth_logins_total", &["ok"]),
                before + 1.0,
                "the slow one was quicker"
            );
            let answer = earlier.connack();
            assert!(
                matches!(answer, Answer::Refused(code) if code == version.pick(0x88, 3)),
                "{version:?}: {answer:?}"
            );
            assert!(later.ping(), "{version:?}: kicked by an earlier connection");
            later.disconnect();
            broker.rest.delete_user("slow");
            // As long as there is a session, it can be taken over as ever.
            broker.connect(&connect(&quick)).accepted().0.disconnect();
            if persistent {
                assert_eq!(broker.rest.delete("/api/v1/sessions/phone").status, 204);
            }
            broker.rest.wait_gone("phone");
        }
    }
}

#[test]
fn a_client_id_is_free_again_when_its_session_has_ended() {
    let broker = Broker::start_default();
    let (ua, ub) = (broker.user("ua"), broker.user("ub"));
    for version in Version::COMMON {
        broker.client(&ua, version, "dev1").disconnect();
        broker.rest.wait_gone("dev1");
        broker.client(&ub, version, "dev1").disconnect();
        broker.rest.wait_gone("dev1");
    }
}

#[test]
fn connections_are_bounded() {
    let broker = Broker::start(BrokerOptions::new().set("mqtt.max_connections", 3));
    let ua = broker.user("ua");
    for version in Version::COMMON {
        let mut clients: Vec<_> = (0..3).map(|n| broker.client(&ua, version, &format!("client{n}"))).collect();
        for link in Link::both() {
            let more = Connect::new(version, link, "more").login(&ua.username, &ua.password);
            // The engine counts a connection a moment after its CONNACK.
            ciqadamq_tests::eventually("one more is refused", || match broker.connect(&more) {
                Answer::Refused(code) => (code == version.pick(0x88, 3)).then_some(()),
                _ => None,
            });
        }
        // Who takes an own session over is no further connection.
        let mut again = broker.client(&ua, version, "client0");
        assert!(again.ping() && clients[1..].iter_mut().all(Client::ping));
        drop((again, clients));
        for n in 0..3 {
            broker.rest.wait_gone(&format!("client{n}"));
        }
    }
}
