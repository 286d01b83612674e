//! Starting, draining, crashing.

use std::time::Duration;

use ciqadamq_tests::mqtt::{Publish, reason};
use ciqadamq_tests::{Broker, Link, Signal, Version, request};

#[test]
fn a_drain_tells_clients_closes_and_ends_in_order() {
    let mut broker = Broker::start_default();
    let ua = broker.user("ua");
    let mut clients = Vec::new();
    for version in Version::COMMON {
        for link in Link::both() {
            let id = format!("c{}", clients.len());
            let connect = ciqadamq_tests::Connect::new(version, link, id).login(&ua.username, &ua.password);
            clients.push(broker.connect(&connect).accepted().0);
        }
    }
    broker.signal(Signal::Term);
    // While it drains it says so; it may be gone before it is asked.
    for _ in 0..100 {
        match request(broker.rest.addr, "GET", "/ready", &[], None) {
            Ok(response) if response.status == 503 => break,
            Ok(_) => std::thread::sleep(Duration::from_millis(2)),
            Err(_) => break,
        }
    }
    for mut client in clients {
        let expected = client.version.pick(Some(reason::SHUTTING_DOWN), None);
        assert_eq!(client.expect_closed(), expected, "{:?}", client.version);
    }
    let exit = broker.wait();
    assert_eq!(exit.code, Some(0), "{exit:?}");
    assert!(exit.took < Duration::from_secs(35), "{exit:?}");
    assert!(std::net::TcpStream::connect(broker.tcp).is_err());
}

#[test]
fn sigint_drains_as_well() {
    let mut broker = Broker::start_default();
    broker.signal(Signal::Int);
    assert_eq!(broker.wait().code, Some(0));
}

#[test]
fn a_drain_does_not_wait_for_clients_that_do_not_listen() {
    let mut broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    let mut deaf = broker.client(&ua, Version::V5, "deaf");
    deaf.subscribe(&["chat/ua/#"]);
    let large = "x".repeat(100_000);
    for _ in 0..50 {
        watcher.client().publish(&Publish::new("chat/ua/x", &large, 0));
    }
    // It reads nothing, and another connection never says anything at all.
    let silent = std::net::TcpStream::connect(broker.tcp).unwrap();
    let exit = broker.sigterm();
    assert_eq!(exit.code, Some(0), "{exit:?}");
    drop(silent);
}

#[test]
fn users_survive_a_restart() {
    let mut broker = Broker::start_default();
    let accounts = [broker.user("ua"), broker.admin("ad"), broker.superuser("root")];
    let before = broker.rest.get("/api/v1/users").json();
    broker.restart();
    assert_eq!(broker.rest.get("/api/v1/users").json(), before);
    for account in &accounts {
        broker.client(account, Version::V5, &account.username).disconnect();
    }
}

#[test]
fn a_killed_broker_starts_again_on_the_same_ports_while_old_connections_linger() {
    let mut broker = Broker::start_default();
    let ua = broker.user("ua");
    let mut clients: Vec<_> = (0..20).map(|i| broker.client(&ua, Version::V5, &format!("c{i}"))).collect();
    broker.kill9();
    broker.start_again();
    for client in &mut clients {
        client.expect_closed();
    }
    broker.client(&ua, Version::V5, "back").disconnect();
}

#[test]
fn garbage_on_the_ports_bothers_nobody() {
    use std::io::Write as _;
    let broker = Broker::start_default();
    let ua = broker.user("ua");
    let mut client = broker.client(&ua, Version::V5, "calm");
    for bytes in
        [&b""[..], b"\0", b"\xff\xff\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", b"\x10\xff\xff\xff\x7f", b"\x30\x00"]
    {
        for addr in [broker.tcp, broker.ws, broker.rest.addr] {
            let mut socket = std::net::TcpStream::connect(addr).unwrap();
            socket.write_all(bytes).unwrap();
        }
    }
    assert!(client.ping());
    broker.client(&ua, Version::V311, "next").disconnect();
}
