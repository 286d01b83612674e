//! HAProxy in front, with the configuration of `deploy/`.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use ciqadamq_tests::mqtt::Event;
use ciqadamq_tests::{
    Account, Broker, BrokerOptions, Client, Cluster, Connect, Front, HAPROXY_SOURCE, Haproxy, Link, Version,
    eventually, free_addresses,
};
use tempfile::TempDir;

/// What `deploy/cluster.toml` has, with the address that a test's HAProxy connects from.
fn behind_haproxy() -> BrokerOptions {
    BrokerOptions::new().set("mqtt.proxy_protocol", true).set("mqtt.proxy_protocol_from", [HAPROXY_SOURCE])
}

/// Three nodes, on which every client is subscribed from the beginning.
fn cluster() -> Cluster {
    Cluster::start(3, |_| behind_haproxy().set("fanout.auto_subscribe", true))
}

fn front(cluster: &Cluster) -> Option<Front> {
    let front = Front::start(cluster.ids().map(|n| &cluster[n]), None)?;
    for n in cluster.ids() {
        wait_state(&front, n, "UP");
    }
    Some(front)
}

/// Waits until HAProxy sees a node so, for both backends.
fn wait_state(front: &Front, node: u8, state: &str) {
    eventually(&format!("node {node} is {state}"), || {
        let stat = front.admin("show stat");
        let lines: Vec<&str> = stat.lines().filter(|line| line.contains(&format!(",node{node},"))).collect();
        (lines.len() == 2 && lines.iter().all(|line| line.split(',').nth(17) == Some(state))).then_some(())
    });
}

/// The address that the broker knows a client by.
fn known_address(broker: &Broker, client_id: &str) -> String {
    broker.rest.session(client_id).unwrap()["address"].as_str().unwrap().to_owned()
}

#[test]
fn clients_behind_haproxy_are_known_by_their_own_addresses_and_so_are_those_that_come_directly() {
    let broker = Broker::start(behind_haproxy());
    let Some(front) = Front::start([&broker], None) else { return };
    let ua = broker.user("ua");
    for (name, link) in [("tcp", Link::Tcp), ("ws", Link::ws())] {
        for (way, addr) in [("front", front.addr(&link)), ("direct", broker.addr(&link))] {
            let client_id = format!("{name}-{way}");
            let connect = Connect::new(Version::V5, link.clone(), &client_id).login(&ua.username, &ua.password);
            let (client, _) = Client::connect(&connect, addr).accepted();
            let own = client.stream.socket().unwrap().local_addr().unwrap();
            assert_eq!(known_address(&broker, &client_id), own.to_string(), "{client_id}");
        }
    }
    // Who is not HAProxy cannot claim an address.
    let connect = ua.connect(Version::V5, "forger");
    let mut forger = Client::open(&connect, broker.tcp).unwrap();
    forger.send(b"PROXY TCP4 203.0.113.9 127.0.0.1 1 1883\r\n");
    forger.send(&connect.encode());
    assert_eq!(forger.expect_closed(), None);
}

/// A certificate for `localhost` that vouches for itself: as HAProxy wants it, and for who verifies it.
fn certificate(dir: &TempDir) -> (PathBuf, PathBuf) {
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (pem, ca) = (dir.path().join("server.pem"), dir.path().join("ca.pem"));
    fs::write(&ca, issued.cert.pem()).unwrap();
    fs::write(&pem, issued.cert.pem() + &issued.signing_key.serialize_pem()).unwrap();
    (pem, ca)
}

#[test]
fn haproxy_ends_tls_for_mqtt_and_for_websocket() {
    let dir = TempDir::new().unwrap();
    let (pem, ca) = certificate(&dir);
    let broker = Broker::start(behind_haproxy());
    let Some(front) = Front::start([&broker], Some(&pem)) else { return };
    // Clients with TLS: another HAProxy makes them of ours.
    let [tcp, ws] = free_addresses();
    let verify = format!("ssl verify required verifyhost localhost sni str(localhost) ca-file {}", ca.display());
    let client_side = format!(
        "global\n stats socket /run/haproxy/admin.sock level admin\n\
         defaults\n mode tcp\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n\
         listen tcp\n bind {tcp}\n server s {} {verify}\n\
         listen ws\n bind {ws}\n server s {} {verify}\n",
        front.tls, front.wss
    );
    let _client_side = Haproxy::start(&client_side, &[]).unwrap();
    let (ua, root) = (broker.user("ua"), broker.superuser("root"));
    let mut publisher = broker.client(&root, Version::V5, "backend");
    for (link, addr) in [(Link::Tcp, tcp), (Link::ws(), ws)] {
        let connect = Connect::new(Version::V311, link, "phone").login(&ua.username, &ua.password);
        let (mut phone, _) = Client::connect(&connect, addr).accepted();
        phone.subscribe(&["chat/ua/#"]);
        publisher.publish_ok("chat/ua/m/all", "hello", 1);
        phone.expect("chat/ua/m/all", "hello");
        phone.disconnect();
    }
}

/// A device that is always there: who is cut off comes back at once.
struct Device {
    connects: AtomicU32,
    /// messages that came
    got: AtomicU32,
}

impl Device {
    /// Stays until `stop`. From the first message of a connection to its last none may be missing.
    fn run(&self, account: &Account, client_id: &str, front: SocketAddr, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let answer = Client::connect(&account.connect(Version::V5, client_id), front);
            // A node may end between HAProxy's choice and the CONNACK.
            if !answer.is_accepted() {
                continue;
            }
            let (mut client, _) = answer.accepted();
            self.connects.fetch_add(1, Ordering::Relaxed);
            let mut last: Option<u32> = None;
            while !stop.load(Ordering::Relaxed) {
                match client.message_within(Duration::from_millis(100)) {
                    Ok(message) => {
                        let n = message.text().parse().unwrap();
                        assert!(last.is_none_or(|last| n == last + 1), "{client_id}: {n} after {last:?}");
                        last = Some(n);
                        self.got.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(Event::Timeout) => {}
                    Err(_) => break,
                }
            }
        }
    }
}

/// Client ids with an open connection on a node.
fn online_on(cluster: &Cluster, node: u8) -> Vec<String> {
    let sessions = cluster[1].rest.get("/api/v1/sessions?userid=ua&limit=1000").json();
    let here = sessions["sessions"].as_array().unwrap().iter();
    let here = here.filter(|s| s["node"] == node && s["online"] == true);
    here.map(|s| s["clientid"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_node_is_taken_out_and_put_back_under_load() {
    let mut cluster = cluster();
    let Some(front) = front(&cluster) else { return };
    let (ua, root) = (cluster[1].user("ua"), cluster[1].superuser("root"));
    // Its leader may be away for a moment, which is another story.
    let out = cluster.ids().find(|n| *n != 1 && Some(*n) != cluster.routes_leader(1)).unwrap();
    let devices: Vec<Device> = (0..6).map(|_| Device { connects: 0.into(), got: 0.into() }).collect();
    let (stop, refused, came_in) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
    let mut publisher = cluster[1].client(&root, Version::V5, "backend");
    thread::scope(|scope| {
        let stop_at_end = StopAtEnd(&stop);
        for (i, device) in devices.iter().enumerate() {
            let (ua, stop, tcp) = (&ua, &stop, front.tcp);
            scope.spawn(move || device.run(ua, &format!("device{i}"), tcp, stop));
        }
        scope.spawn(|| {
            for n in 0_u32.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                publisher.publish_ok("chat/ua/m/all", &n.to_string(), 1);
                thread::sleep(Duration::from_millis(10));
            }
        });
        // Somebody comes and goes all the time, by TCP and WebSocket.
        scope.spawn(|| {
            for i in 0_u32.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let link = if i % 2 == 0 { Link::Tcp } else { Link::ws() };
                let addr = front.addr(&link);
                let connect = Connect::new(Version::V5, link, format!("guest{i}")).login(&ua.username, &ua.password);
                match Client::connect(&connect, addr) {
                    answer if answer.is_accepted() => {
                        came_in.fetch_add(1, Ordering::Relaxed);
                        answer.accepted().0.disconnect();
                    }
                    _ => drop(refused.fetch_add(1, Ordering::Relaxed)),
                }
            }
        });
        let devices_on = |cluster: &Cluster, node: u8| {
            online_on(cluster, node).into_iter().filter(|id| id.starts_with("device")).collect::<Vec<_>>()
        };
        let guests = |more: u32| {
            let wanted = came_in.load(Ordering::Relaxed) + more;
            eventually("guests", || (came_in.load(Ordering::Relaxed) >= wanted).then_some(()));
        };
        let all_get = || {
            let before: Vec<u32> = devices.iter().map(|d| d.got.load(Ordering::Relaxed)).collect();
            eventually("every device gets messages", || {
                let more = devices.iter().zip(&before).all(|(d, before)| d.got.load(Ordering::Relaxed) > before + 10);
                more.then_some(())
            });
        };
        for n in cluster.ids() {
            eventually("devices everywhere", || (!devices_on(&cluster, n).is_empty()).then_some(()));
        }
        all_get();

        // Drain: who is there stays, nobody comes.
        let connects = |cluster: &Cluster| cluster[out].rest.metric("ciqadamq_auth_logins_total", &["result=\"ok\""]);
        assert_eq!(front.admin(&format!("set server mqtt/node{out} state drain")), "");
        wait_state(&front, out, "DRAIN");
        let stayed = devices_on(&cluster, out);
        assert!(!stayed.is_empty());
        // What HAProxy had chosen before is through.
        guests(2);
        let before = connects(&cluster);
        guests(20);
        assert_eq!(connects(&cluster), before, "somebody came to a node that is drained");
        assert_eq!(devices_on(&cluster, out), stayed, "somebody left");
        all_get();

        // Maintenance: the rest is sent away and finds another node.
        assert_eq!(front.admin(&format!("set server mqtt/node{out} state maint")), "");
        assert_eq!(front.admin(&format!("shutdown sessions server mqtt/node{out}")), "");
        eventually("nobody is left", || devices_on(&cluster, out).is_empty().then_some(()));
        eventually("all are elsewhere", || {
            let elsewhere: usize = cluster.ids().map(|n| devices_on(&cluster, n).len()).sum();
            (elsewhere == devices.len()).then_some(())
        });
        cluster[out].sigterm();
        all_get();
        guests(20);
        cluster[out].start_again();
        guests(20);
        assert_eq!(connects(&cluster), 0.0, "it is out until it is put back");

        assert_eq!(front.admin(&format!("set server mqtt/node{out} state ready")), "");
        wait_state(&front, out, "UP");
        eventually("clients come to it again", || (connects(&cluster) > 0.0).then_some(()));
        all_get();
        drop(stop_at_end);
    });
    assert_eq!(refused.into_inner(), 0, "somebody was not let in");
    let connects: Vec<u32> = devices.iter().map(|d| d.connects.load(Ordering::Relaxed)).collect();
    assert!(connects.iter().all(|n| *n <= 2), "a device had to come back more than once: {connects:?}");
}

#[test]
fn a_node_that_is_killed_costs_its_clients_a_reconnect_and_nobody_is_refused() {
    let mut cluster = cluster();
    let Some(front) = front(&cluster) else { return };
    let ua = cluster[1].user("ua");
    let out = cluster.ids().find(|n| *n != 1 && Some(*n) != cluster.routes_leader(1)).unwrap();
    let mut clients: Vec<Client> =
        (0..6).map(|i| Client::connect(&ua.connect(Version::V5, &format!("c{i}")), front.tcp).accepted().0).collect();
    let there = online_on(&cluster, out);
    assert!(!there.is_empty());
    cluster.kill(out);
    // HAProxy has not noticed yet: the connection is refused, and another node takes it.
    for (i, client) in clients.iter_mut().enumerate() {
        if there.contains(&format!("c{i}")) {
            assert_eq!(client.expect_closed(), None);
            *client = Client::connect(&ua.connect(Version::V5, &format!("c{i}")), front.tcp).accepted().0;
        }
        assert!(client.ping());
    }
    wait_state(&front, out, "DOWN");
    cluster[out].start_again();
    wait_state(&front, out, "UP");
    eventually("it has clients again", || {
        let _client = Client::connect(&ua.connect(Version::V5, "late"), front.tcp).accepted();
        (online_on(&cluster, out) == ["late"]).then_some(())
    });
}

/// Ends the other threads of a test, whatever becomes of this one.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
