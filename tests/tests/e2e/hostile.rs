//! What was found by attacking a broker that passed everything else.

use std::collections::{HashSet, VecDeque};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ciqadamq_tests::mqtt::{Event, Publish, kind, publish, subscribe};
use ciqadamq_tests::{Broker, BrokerOptions, Client, Connect, Link, Version, WAIT};
use serde_json::json;

#[test]
fn a_login_with_fewer_rights_does_not_inherit_what_it_may_not_see() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    for version in Version::COMMON {
        for (superuser, admin, filter, topic) in
            [(true, false, "#", "chat/ub/secret"), (false, true, "adminfanout/#", "adminfanout/x")]
        {
            let strong = broker.create("strong", "ua", superuser, admin);
            let weak = broker.create("weak", "ua", false, false);
            let (mut first, _) = broker.connect(&strong.connect(version, "dev1").persistent(600)).accepted();
            first.subscribe(&[filter]);
            first.disconnect();
            broker.rest.wait_offline("dev1");
            watcher.publish(topic, "queued");

            let (mut second, connack) = broker.connect(&weak.connect(version, "dev1").persistent(600)).accepted();
            assert!(!connack.session_present, "{version:?} {filter}");
            second.subscribe(&["chat/ua/#"]);
            watcher.publish(topic, "live");
            watcher.publish("chat/ua/x", "own");
            // The first it hears is its own.
            second.expect("chat/ua/x", "own");
            for user in ["strong", "weak"] {
                broker.rest.delete_user(user);
            }
            broker.rest.wait_gone("dev1");
        }
    }
}

/// Several publishers, so that there is always a message on its way to the session while it passes on.
#[test]
fn a_client_that_is_taken_over_again_and_again_misses_nothing() {
    const PUBLISHERS: u32 = 4;
    // Who comes back so often reads slowly; this is not about a queue that overflows.
    let broker = Broker::start(BrokerOptions::new().set("mqtt.max_mqueue_len", 32_000));
    let (root, ua) = (broker.superuser("root"), broker.user("ua"));
    for version in Version::COMMON {
        let connect = ua.connect(version, "phone").persistent(600);
        let (mut phone, _) = broker.connect(&connect).accepted();
        phone.subscribe(&["chat/ua/x"]);
        let stop = AtomicBool::new(false);
        let mut got = Vec::new();
        let sent: Vec<String> = thread::scope(|scope| {
            let publishers: Vec<_> = (0..PUBLISHERS)
                .map(|n| {
                    let (broker, root, stop) = (&broker, &root, &stop);
                    scope.spawn(move || {
                        let mut publisher = broker.client(root, Version::V5, &format!("publisher{n}"));
                        let mut sent = Vec::new();
                        while !stop.load(Ordering::Acquire) {
                            let text = format!("{n}/{}", sent.len());
                            publisher.publish_ok("chat/ua/x", &text, 1);
                            sent.push(text);
                        }
                        publisher.disconnect();
                        sent
                    })
                })
                .collect();
            for _ in 0..20 {
                for _ in 0..10 {
                    got.push(phone.message().text());
                }
                let (next, connack) = broker.connect(&connect).accepted();
                assert!(connack.session_present);
                phone = next;
            }
            stop.store(true, Ordering::Release);
            publishers.into_iter().flat_map(|publisher| publisher.join().unwrap()).collect()
        });
        broker.client(&root, Version::V5, "last").publish_ok("chat/ua/x", "end", 1);
        got.extend(phone.until("chat/ua/x", "end").iter().map(|m| m.text()));
        // What was not acknowledged comes again; what matters is that nothing is missing.
        let got: HashSet<String> = got.into_iter().collect();
        let missing: Vec<_> = sent.iter().filter(|text| !got.contains(*text)).collect();
        assert!(missing.is_empty(), "{version:?}: of {} sent are missing: {missing:?}", sent.len());
        assert_eq!(broker.rest.delete("/api/v1/sessions/phone").status, 204);
    }
}

/// More than sockets on both sides take: the session's task waits in the middle of a write.
fn stuck(broker: &Broker, connect: &Connect, messages: usize) -> Client {
    let (mut phone, _) = broker.connect(connect).accepted();
    phone.subscribe(&["chat/ua/x"]);
    let mut backend = broker.client(&broker.superuser("backend"), Version::V5, "backend");
    let filling = "x".repeat(128 * 1024);
    for n in 0..messages {
        backend.publish_ok("chat/ua/x", &format!("{n} {filling}"), 1);
    }
    broker.rest.delete_user("backend");
    println!("{}", broker.rest.session("phone").unwrap());
    phone
}

/// A phone that lost its network says nothing, and its connection stands in the middle of a message.
#[test]
fn a_client_that_does_not_read_finds_everything_when_it_comes_back() {
    const MESSAGES: usize = 400;
    for version in Version::COMMON {
        let broker = Broker::start_default();
        let ua = broker.user("ua");
        let connect = ua.connect(version, "phone").persistent(600);
        let gone = stuck(&broker, &connect, MESSAGES);
        let begun = Instant::now();
        let (mut phone, connack) = broker.connect(&connect).accepted();
        println!("{version:?}: back after {:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(4), "{version:?}: {:?}", begun.elapsed());
        assert!(connack.session_present);
        let mut got = HashSet::new();
        while got.len() < MESSAGES {
            let text = phone.message().text();
            got.insert(text.split(' ').next().map(str::to_owned).unwrap());
        }
        drop(gone);
    }
}

#[test]
fn a_client_that_does_not_read_is_ended_as_soon_as_any() {
    for version in Version::COMMON {
        let broker = Broker::start_default();
        let ua = broker.user("ua");
        let _gone = stuck(&broker, &ua.connect(version, "phone").persistent(600), 400);
        let begun = Instant::now();
        broker.rest.delete_user(&ua.username);
        broker.rest.wait_gone("phone");
        println!("{version:?}: ended after {:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(4), "{version:?}: {:?}", begun.elapsed());
    }
}

#[test]
fn connections_that_do_not_finish_their_connect_are_closed() {
    let broker = Broker::start(BrokerOptions::new().set("mqtt.connect_timeout_secs", 1));
    let ua = broker.user("ua");
    let mut phone = broker.client(&ua, Version::V5, "phone");
    for link in Link::both() {
        let begun = [&b""[..], b"\x10", b"\x10\x20\x00\x04MQTT"];
        let mut sockets: Vec<_> = begun
            .iter()
            .map(|bytes| {
                let mut socket = TcpStream::connect(broker.addr(&link)).unwrap();
                socket.write_all(bytes).unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
                socket
            })
            .collect();
        for socket in &mut sockets {
            let mut answer = Vec::new();
            // The end of the stream or a reset: both are an end.
            if let Err(error) = socket.read_to_end(&mut answer) {
                assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "still open after 30 s");
            }
        }
    }
    assert!(phone.ping(), "a client with a session was closed");
}

#[test]
fn a_client_id_cannot_write_lines_of_its_own_into_the_log() {
    let broker = Broker::start_default();
    let ua = broker.user("ua");
    let forged = "x\n2026-01-01T00:00:00Z ERROR forged \u{1b}[2J";
    let mut phone = broker.client(&ua, Version::V5, forged);
    assert!(!phone.may_subscribe("#"));
    let log = broker.log();
    assert!(log.contains("subscribe_refused"), "{log}");
    assert!(
        !log.contains('\u{1b}')
            && !log.lines().any(|line| line.contains("Z ERROR forged") && line.starts_with("2026-01-01")),
        "{log}"
    );
}

#[test]
fn a_new_password_works_at_once_whatever_failed_before() {
    let broker =
        Broker::start(BrokerOptions::new().set("auth.brake_failures_per_user", 3).set("auth.brake_window_secs", 3600));
    let ua = broker.user("ua");
    let guess = || Connect::new(Version::V5, Link::Tcp, "guess").login(&ua.username, "guess");
    let begun = Instant::now();
    for _ in 0..5 {
        broker.connect(&guess()).refused();
    }
    let right = ua.connect(Version::V5, "phone");
    broker.connect(&right).refused();
    broker.rest.change_user(&ua.username, &json!({"password": "a new one"}));
    let renewed = Connect::new(Version::V5, Link::Tcp, "phone").login(&ua.username, "a new one");
    broker.connect(&renewed).accepted();
    assert!(begun.elapsed() < Duration::from_secs(3600));
}

#[test]
fn a_connection_that_stays_open_behind_its_disconnect_is_closed() {
    let broker = Broker::start(BrokerOptions::new().set("mqtt.connect_timeout_secs", 1));
    let ua = broker.user("ua");
    for version in Version::COMMON {
        let mut phone = broker.client(&ua, version, "phone");
        // DISCONNECT, and the socket stays open on this side.
        phone.send(&[0xE0, 0]);
        let since = std::time::Instant::now();
        phone.expect_closed();
        // That it was let in a moment ago saves it no more.
        assert!(since.elapsed() < Duration::from_secs(8), "{version:?}: {:?}", since.elapsed());
    }
}

/// The engine reads on behind a DISCONNECT until the client closes.
#[test]
fn what_a_client_sends_behind_its_disconnect_has_no_effect() {
    let broker = Broker::start(BrokerOptions::new().set("acl.on_deny", "drop"));
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    for version in Version::COMMON {
        let mut phone = broker.client(&ua, version, "phone");
        let mut bytes = vec![0xE0, 0];
        bytes.extend(subscribe(version, 7, &[("chat/ua/#", 1)]));
        bytes.extend(publish(version, &Publish::new("chatsync", "too late", 1), 8));
        phone.send(&bytes);
        // Whatever it is told, the connection is closed.
        while phone.next(WAIT) != Event::Closed {}
        let seen = watcher.seen();
        assert!(!seen.iter().any(|(_, text)| text == "too late"), "{version:?}: {seen:?}");
        broker.rest.wait_gone("phone");
        // The next connection is not held responsible.
        broker.client(&ua, version, "phone").publish_ok("chatsync", "in time", 1);
        broker.rest.wait_gone("phone");
    }
    assert!(broker.rest.metric("ciqadamq_acl_publish_refused_total", &["after_disconnect"]) == 2.0);
}

/// The engine counts what is left of the window below zero.
#[test]
fn a_client_that_comes_back_with_a_smaller_window_gets_no_more_at_a_time() {
    let broker = Broker::start_default();
    let (root, ua) = (broker.superuser("root"), broker.user("ua"));
    let mut backend = broker.client(&root, Version::V5, "backend");
    let connect = ua.connect(Version::V5, "phone").persistent(600);
    let (mut phone, _) = broker.connect(&connect.clone().receive_maximum(20)).accepted();
    phone.subscribe(&["chat/ua/x"]);
    phone.auto_ack = false;
    for n in 0..20 {
        backend.publish_ok("chat/ua/x", &n.to_string(), 1);
    }
    for n in 0..20 {
        phone.expect("chat/ua/x", &n.to_string());
    }
    let (mut phone, _) = broker.connect(&connect.receive_maximum(3)).accepted();
    phone.auto_ack = false;
    let mut unacknowledged: VecDeque<u16> = VecDeque::new();
    for n in 0..20 {
        if unacknowledged.len() == 3 {
            // It would come before the answer.
            assert!(phone.ping());
            assert_eq!(phone.message_within(Duration::from_millis(1)), Err(Event::Timeout));
            phone.ack(kind::PUBACK, unacknowledged.pop_front().unwrap());
        }
        let message = phone.expect("chat/ua/x", &n.to_string());
        unacknowledged.extend(message.packet_id);
    }
}

/// The engine's own questions about a session await under a lock of its table; asked from a loop over many sessions they
/// stopped the only thread for good.
#[test]
fn one_thread_is_enough_for_many_sessions_that_come_and_go() {
    let options = BrokerOptions::new().set("mqtt.connect_timeout_secs", 1).env("TOKIO_WORKER_THREADS", "1");
    let broker = Broker::start(options);
    let ua = broker.user("ua");
    let mut kept: Vec<_> = (0..200).map(|i| broker.client(&ua, Version::V5, &format!("kept{i}"))).collect();
    let begun = Instant::now();
    // Several looks at silent connections fall into this time.
    while begun.elapsed() < Duration::from_secs(3) {
        let come: Vec<_> = (0..50).map(|i| broker.client(&ua, Version::V311, &format!("come{i}"))).collect();
        come.into_iter().for_each(Client::cut);
    }
    assert!(kept.iter_mut().all(|client| client.ping()));
}

/// The engine puts a session into its table before it writes CONNACK; where that write failed, the session stayed there for
/// ever, deaf, and its routes were inherited by whoever had the client id next.
#[test]
fn a_session_whose_connack_could_not_be_written_goes_offline() {
    let options = BrokerOptions::new().set("auth.cache_ttl_secs", 0).set("auth.argon2.m_cost", 8192);
    let broker = Broker::start(options);
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    let own = ua.connect(Version::V5, "dev1").persistent(600);
    let (mut phone, _) = broker.connect(&own).accepted();
    phone.subscribe(&["chat/ua/#"]);
    phone.disconnect();
    broker.rest.wait_offline("dev1");
    let begun = Instant::now();
    while broker.rest.metric("ciqadamq_auth_sessions_revived_total", &[]) < 2.0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "no session lost its connection before CONNACK");
        for connect in [&own, &ua.connect(Version::V311, "clean")] {
            let mut client = Client::open(connect, broker.tcp).unwrap();
            client.send(&connect.encode());
            // Closed with a reset, while the password is being hashed.
            client.stream.reset();
        }
        // Two looks find those that are there; whoever comes meanwhile would take them over.
        let looked = Instant::now() + Duration::from_millis(11_000);
        while Instant::now() < looked && broker.rest.metric("ciqadamq_auth_sessions_revived_total", &[]) < 2.0 {
            thread::sleep(Duration::from_millis(50));
        }
    }
    broker.rest.wait_gone("clean");
    broker.rest.wait_offline("dev1");
    watcher.publish("chat/ua/x", "while it is away");
    let (mut phone, connack) = broker.connect(&own).accepted();
    assert!(connack.session_present);
    phone.expect("chat/ua/x", "while it is away");
    phone.disconnect();
    // Nobody inherits anything.
    broker.rest.delete_user(&ua.username);
    broker.rest.wait_gone("dev1");
    let ub = broker.user("ub");
    let mut other = broker.client(&ub, Version::V5, "dev1");
    other.subscribe(&["chat/ub/#"]);
    watcher.publish("chat/ua/x", "nobody's");
    watcher.publish("chat/ub/x", "end");
    assert_eq!(other.until("chat/ub/x", "end"), []);
}
