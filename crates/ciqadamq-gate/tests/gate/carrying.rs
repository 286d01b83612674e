//! Bytes both ways: whole, in order, with back-pressure, and to the last before an end.

use std::time::Duration;

use ciqadamq_gate::{GateConfig, Transport};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::{Bytes, Message};
use tokio_tungstenite::{WebSocketStream, connect_async};

use super::support::{
    CONNECT, EngineSide, Site, frame, listener, read, read_close, read_frame, read_to_end, site, site_with, soon,
};

/// Bytes without a pattern that could hide a mix-up.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| byte()).collect()
}

async fn established(site: &Site) -> (TcpStream, EngineSide) {
    let mut client = site.websocket().await;
    client.write_all(&frame(0x82, CONNECT)).await.unwrap();
    let engine = site.engine.accept_client().await;
    (client, engine)
}

async fn established_tcp(site: &Site) -> (TcpStream, EngineSide) {
    let mut client = site.connect().await;
    client.write_all(CONNECT).await.unwrap();
    let engine = site.engine.accept_client().await;
    (client, engine)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_payloads_both_ways_at_once_arrive_intact_over_websocket() {
    use futures::{SinkExt, StreamExt};
    let site = site(Transport::WebSocket, false).await;
    let url = format!("ws://{}/", site.addr("door"));
    let (mut client, _): (WebSocketStream<_>, _) = soon(connect_async(url)).await.unwrap();
    client.send(Message::binary(CONNECT)).await.unwrap();
    let engine = site.engine.accept_client().await;
    let (mut from_gate, mut to_gate) = engine.stream.into_split();
    let (up, down) = (noise(20_000_000, 1), noise(20_000_000, 2));
    let (up_hash, down_hash) = (Sha256::digest(&up), Sha256::digest(&down));

    let (mut sink, mut stream) = client.split();
    let client_sends = async move {
        let mut rest = Bytes::from(up);
        let mut len = 1;
        while !rest.is_empty() {
            let piece = rest.split_to(rest.len().min(len));
            len = len * 3 % 999_983;
            sink.send(Message::Binary(piece)).await.unwrap();
        }
        sink
    };
    let engine_receives = async move { Sha256::digest(read(&mut from_gate, 20_000_000).await) };
    let engine_sends = async move {
        for piece in down.chunks(77_777) {
            to_gate.write_all(piece).await.unwrap();
        }
        to_gate
    };
    let client_receives = async move {
        let (mut hash, mut len) = (Sha256::new(), 0);
        while len < 20_000_000 {
            let message = stream.next().await.unwrap().unwrap().into_data();
            len += message.len();
            hash.update(&message);
        }
        hash.finalize()
    };
    let all = futures::future::join4(
        tokio::spawn(client_sends),
        tokio::spawn(engine_receives),
        tokio::spawn(engine_sends),
        tokio::spawn(client_receives),
    );
    let (_sink, received_up, _writer, received_down) =
        tokio::time::timeout(Duration::from_secs(60), all).await.unwrap();
    assert_eq!(received_up.unwrap(), up_hash);
    assert_eq!(received_down.unwrap(), down_hash);
}

#[tokio::test]
async fn message_right_before_the_engines_end_is_delivered() {
    let last = noise(300_000, 3);
    let site_tcp = site(Transport::Tcp, false).await;
    let (mut client, mut engine) = established_tcp(&site_tcp).await;
    engine.stream.write_all(&last).await.unwrap();
    drop(engine);
    assert_eq!(read_to_end(&mut client).await, last);

    let site_ws = site(Transport::WebSocket, false).await;
    let (mut client, mut engine) = established(&site_ws).await;
    engine.stream.write_all(&last).await.unwrap();
    drop(engine);
    let mut received = Vec::new();
    while received.len() < last.len() {
        received.extend(read_frame(&mut client).await.1);
    }
    assert_eq!(received, last);
    // Input that nobody wants any more must not turn the end into a reset.
    client.write_all(&frame(0x82, &[0xc0; 100_000])).await.unwrap();
    assert_eq!(read_close(&mut client).await, 1000);
    drop(client);
    site_ws.wait_for_open(0.0).await;
}

#[tokio::test]
async fn message_right_before_the_clients_end_is_delivered_and_so_is_the_answer() {
    let site = site(Transport::Tcp, false).await;
    let (mut client, mut engine) = established_tcp(&site).await;
    let last = noise(300_000, 4);
    let (received, ()) = tokio::join!(read_to_end(&mut engine.stream), async {
        client.write_all(&last).await.unwrap();
        client.shutdown().await.unwrap();
    });
    assert_eq!(received, last);
    // The client has only closed its half.
    engine.stream.write_all(b"\xe0\0").await.unwrap();
    drop(engine);
    assert_eq!(read_to_end(&mut client).await, b"\xe0\0");
    site.wait_for_open(0.0).await;
}

#[tokio::test]
async fn reset_by_the_client_ends_the_engines_connection_without_a_disconnect() {
    let site = site(Transport::WebSocket, false).await;
    let (mut client, mut engine) = established(&site).await;
    client.write_all(&frame(0x82, b"\xc0\0")).await.unwrap();
    assert_eq!(read(&mut engine.stream, 2).await, b"\xc0\0");
    client.set_zero_linger().unwrap();
    drop(client);
    assert_eq!(read_to_end(&mut engine.stream).await, b"");
    drop(engine);
    site.wait_for_open(0.0).await;
}

/// Writes until nothing has been taken for a while, and says how much was.
async fn fill(stream: &mut TcpStream, chunk: &[u8]) -> usize {
    let mut taken = 0;
    while let Ok(n) = tokio::time::timeout(Duration::from_millis(300), stream.write(chunk)).await {
        taken += n.unwrap();
        assert!(taken < 200_000_000, "no back-pressure");
    }
    taken
}

#[tokio::test]
async fn client_that_takes_nothing_stops_the_engine_and_loses_nothing() {
    let site = site(Transport::WebSocket, false).await;
    let (mut client, mut engine) = established(&site).await;
    let taken = fill(&mut engine.stream, &[0xab; 64 * 1024]).await;
    // The other direction is not stopped by it.
    client.write_all(&frame(0x82, b"\xc0\0")).await.unwrap();
    assert_eq!(read(&mut engine.stream, 2).await, b"\xc0\0");
    client.write_all(&frame(0x89, b"?")).await.unwrap();
    let (mut received, mut pong) = (0, false);
    while received < taken || !pong {
        match read_frame(&mut client).await {
            (0x82, payload) => received += payload.len(),
            (0x8a, payload) => pong = payload == b"?",
            (first, _) => panic!("unexpected frame {first:#x}"),
        }
    }
    assert_eq!(received, taken);
}

#[tokio::test]
async fn engine_that_takes_nothing_stops_the_client_and_loses_nothing() {
    let site = site(Transport::Tcp, false).await;
    let (mut client, mut engine) = established_tcp(&site).await;
    let taken = fill(&mut client, &[0xcd; 64 * 1024]).await;
    engine.stream.write_all(b"\xd0\0").await.unwrap();
    assert_eq!(read(&mut client, 2).await, b"\xd0\0");
    assert_eq!(read(&mut engine.stream, taken).await, vec![0xcd; taken]);
}

#[tokio::test]
async fn client_that_takes_nothing_for_too_long_is_cut() {
    let mut config = GateConfig::new(vec![listener("door", Transport::WebSocket, false)]);
    config.stall_timeout = Duration::from_millis(500);
    let site = site_with(config).await;
    let (client, mut engine) = established(&site).await;
    let sender = tokio::spawn(async move { while engine.stream.write_all(&[0xab; 64 * 1024]).await.is_ok() {} });
    site.wait_for_open(0.0).await;
    soon(sender).await.unwrap();
    drop(client);
}

#[tokio::test]
async fn client_that_takes_little_is_not_cut() {
    let mut config = GateConfig::new(vec![listener("door", Transport::Tcp, false)]);
    config.stall_timeout = Duration::from_millis(200);
    let site = site_with(config).await;
    let (mut client, mut engine) = established_tcp(&site).await;
    let sender = tokio::spawn(async move { while engine.stream.write_all(&[0xab; 64 * 1024]).await.is_ok() {} });
    // Enough at a time for the kernel to announce room; it does not for every byte.
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        read(&mut client, 3_000_000).await;
    }
    assert_eq!(site.metric("ciqadamq_gate_connections", &[]), 1.0);
    sender.abort();
}

#[tokio::test]
async fn client_that_ignores_the_engines_end_is_given_up() {
    let site = site(Transport::Tcp, false).await;
    let (mut client, engine) = established_tcp(&site).await;
    drop(engine);
    let mut byte = [0];
    assert_eq!(soon(client.read(&mut byte)).await.unwrap(), 0, "the client is told at once");
    // It keeps its side open all the same.
    site.wait_for_open(0.0).await;
}

/// The gate's end of a connection, found among this process's sockets by the client's address.
#[cfg(target_os = "linux")]
fn other_end(client: &TcpStream) -> std::net::TcpStream {
    use std::os::fd::BorrowedFd;

    let wanted = client.local_addr().unwrap();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = descriptors.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut sockets = numbers.filter_map(|fd| {
        // SAFETY: borrowed for one duplication, which fails if the descriptor was closed meanwhile.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        Some(std::net::TcpStream::from(borrowed.try_clone_to_owned().ok()?))
    });
    sockets.find(|socket| socket.peer_addr().is_ok_and(|peer| peer == wanted)).expect("nobody has the other end")
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn packets_wait_for_nothing_unless_they_are_allowed_to() {
    for nodelay in [true, false] {
        let mut config = GateConfig::new(vec![listener("door", Transport::WebSocket, false)]);
        config.nodelay = nodelay;
        let site = site_with(config).await;
        let (client, _engine) = established(&site).await;
        assert_eq!(other_end(&client).nodelay().unwrap(), nodelay);
    }
}
