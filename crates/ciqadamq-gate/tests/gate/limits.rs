//! What is not let through: the slow, the many, the wrong and the too large.

use std::time::Duration;

use ciqadamq_gate::{GateConfig, Transport};
use tokio::io::AsyncWriteExt;

use super::support::{CONNECT, Site, frame, listener, read_close, read_to_end, site, site_with, soon, upgrade_request};

async fn limited(transport: Transport, proxy: bool, limit: impl FnOnce(&mut GateConfig)) -> Site {
    let mut config = GateConfig::new(vec![listener("door", transport, proxy)]);
    limit(&mut config);
    site_with(config).await
}

async fn wait_for_refused(site: &Site, reason: &str, count: f64) {
    site.wait_for_metric("ciqadamq_gate_refused_total", &[("listener", "door"), ("reason", reason)], count).await;
}

#[tokio::test]
async fn peers_silent_at_any_point_are_closed_after_the_timeout() {
    let site = limited(Transport::WebSocket, false, |c| c.connect_timeout = Duration::from_millis(300)).await;
    let mut before_request = site.connect().await;
    let mut in_request = site.connect().await;
    in_request.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    let mut before_connect = site.websocket().await;
    let mut in_connect = site.websocket().await;
    in_connect.write_all(&frame(0x82, &CONNECT[..CONNECT.len() - 1])).await.unwrap();
    assert_eq!(read_to_end(&mut before_request).await, b"");
    assert_eq!(read_to_end(&mut in_request).await, b"");
    assert_eq!(read_close(&mut before_connect).await, 1008);
    assert_eq!(read_close(&mut in_connect).await, 1008);
    drop((before_request, in_request, before_connect, in_connect));
    site.wait_for_failures("timeout", 4.0).await;
    site.wait_for_open(0.0).await;
    assert!(site.engine.is_unbothered().await);
}

#[tokio::test]
async fn trickling_does_not_extend_the_time() {
    let site = limited(Transport::WebSocket, false, |c| c.connect_timeout = Duration::from_millis(300)).await;
    let mut client = site.websocket().await;
    let (mut from_gate, mut to_gate) = client.split();
    let trickle = async {
        // Ends with an error when the gate has closed.
        while to_gate.write_all(&frame(0x89, b"")).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let mut received = Vec::new();
    tokio::select! {
        () = soon(trickle) => {}
        bytes = read_to_end(&mut from_gate) => received = bytes,
    }
    assert!(received.starts_with(b"\x8a\0"), "the pings were answered");
    site.wait_for_failures("timeout", 1.0).await;
}

#[tokio::test]
async fn pending_connections_are_bounded_in_total() {
    let site = limited(Transport::Tcp, false, |c| c.max_pending = 2).await;
    let mut first = site.connect().await;
    let _second = site.connect().await;
    site.wait_for_open(2.0).await;
    let mut third = site.connect().await;
    assert_eq!(read_to_end(&mut third).await, b"", "one too many is closed at once");
    wait_for_refused(&site, "max_pending", 1.0).await;

    // One that has sent its CONNECT is not pending any more.
    first.write_all(CONNECT).await.unwrap();
    let _engine = site.engine.accept_client().await;
    let mut fourth = site.connect().await;
    fourth.write_all(CONNECT).await.unwrap();
    let _engine = site.engine.accept_client().await;
    assert_eq!(site.metric("ciqadamq_gate_accepted_total", &[("listener", "door")]), 4.0);
}

#[tokio::test]
async fn pending_connections_are_bounded_for_an_address() {
    let site = limited(Transport::Tcp, false, |c| c.max_pending_per_ip = 1).await;
    let first = site.connect().await;
    site.wait_for_open(1.0).await;
    let mut second = site.connect().await;
    assert_eq!(read_to_end(&mut second).await, b"");
    wait_for_refused(&site, "max_pending_per_ip", 1.0).await;
    drop(first);
    site.wait_for_open(0.0).await;
    let mut third = site.connect().await;
    third.write_all(CONNECT).await.unwrap();
    site.engine.accept_client().await;
}

#[tokio::test]
async fn behind_a_load_balancer_the_announced_address_counts() {
    let site = limited(Transport::Tcp, true, |c| c.max_pending_per_ip = 1).await;
    let mut clients = Vec::new();
    for last in 1..=3 {
        let mut client = site.connect().await;
        client.write_all(format!("PROXY TCP4 203.0.113.{last} 10.0.0.1 1 2\r\n").as_bytes()).await.unwrap();
        clients.push(client);
    }
    site.wait_for_open(3.0).await;
    let mut again = site.connect().await;
    again.write_all(b"PROXY TCP4 203.0.113.2 10.0.0.1 1 2\r\n").await.unwrap();
    assert_eq!(read_to_end(&mut again).await, b"");
    wait_for_refused(&site, "max_pending_per_ip", 1.0).await;
    site.wait_for_open(3.0).await;
}

#[tokio::test]
async fn first_packet_that_is_no_connect_never_reaches_the_engine() {
    let site = site(Transport::Tcp, false).await;
    for bytes in [&b"\x30\x03\0\x01a"[..], b"\xc0\0", b"\x11\x0c", b"GET / HTTP/1.1\r\n\r\n", b"\x10\xff\xff\xff\xff"] {
        let mut client = site.connect().await;
        client.write_all(bytes).await.unwrap();
        assert_eq!(read_to_end(&mut client).await, b"", "{}", bytes.escape_ascii());
    }
    site.wait_for_failures("not_connect", 5.0).await;
    assert!(site.engine.is_unbothered().await);
}

#[tokio::test]
async fn connect_that_claims_more_than_a_packet_may_have_is_closed_at_its_header() {
    let site = limited(Transport::WebSocket, false, |c| c.max_packet_size = 1000).await;
    let mut client = site.websocket().await;
    client.write_all(&frame(0x82, b"\x10\xff\xff\xff\x7f")).await.unwrap();
    assert_eq!(read_close(&mut client).await, 1009);
    let mut client = site.websocket().await;
    client.write_all(&frame(0x82, b"\x10\xe9\x07")).await.unwrap();
    assert_eq!(read_close(&mut client).await, 1009);
    site.wait_for_failures("too_large", 2.0).await;

    // A thousand is allowed.
    let mut connect = vec![0x10, 0xe8, 0x07];
    connect.resize(1003, b'x');
    let mut client = site.websocket().await;
    client.write_all(&frame(0x82, &connect)).await.unwrap();
    let mut engine = site.engine.accept().await;
    assert_eq!(super::support::read(&mut engine.stream, 1003).await, connect);
}

#[tokio::test]
async fn unfinished_connects_are_bounded_in_memory() {
    let site = limited(Transport::Tcp, false, |c| {
        c.max_packet_size = 40_000_000;
        c.max_pending_per_ip = 0;
    })
    .await;
    // Each needs more than 16 MiB, for which the buffer grows to about 32: one too many for the 64 MiB of all.
    let clients = (0..3).map(|_| async {
        let mut client = site.connect().await;
        // Fails for the one that is refused.
        let _ = client.write_all(&[&b"\x10\x80\xda\xc4\x09"[..], &vec![0; 19_000_000]].concat()).await;
        client
    });
    let _clients = soon(futures::future::join_all(clients)).await;
    let refused = async {
        while site.metric("ciqadamq_gate_refused_total", &[("reason", "max_pending_bytes")]) == 0.0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    soon(refused).await;
}

#[tokio::test]
async fn unreachable_engine_is_told_to_the_client() {
    let registry = prometheus::Registry::new();
    let gate =
        ciqadamq_gate::Gate::bind(GateConfig::new(vec![listener("door", Transport::WebSocket, false)]), &registry);
    let gate = gate.unwrap();
    let addr = gate.local_addrs()[0].1;
    // A port that was free a moment ago, with nobody on it.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let _gate = gate.serve(nobody);
    let mut client = tokio::net::TcpStream::connect(addr).await.unwrap();
    client.write_all(upgrade_request("").as_bytes()).await.unwrap();
    client.write_all(&frame(0x82, CONNECT)).await.unwrap();
    let bytes = read_to_end(&mut client).await;
    assert!(bytes.ends_with(&[0x88, 2, 0x03, 0xf3]), "close frame 1011: {}", bytes.escape_ascii());
}
