//! The gate's own end.

use std::time::{Duration, Instant};

use ciqadamq_gate::Transport;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::support::{CONNACK, CONNECT, frame, read, read_close, read_frame, read_to_end, site, soon};

async fn wait_until_refused(addr: std::net::SocketAddr) {
    let refused = async {
        while TcpStream::connect(addr).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    soon(refused).await;
}

#[tokio::test]
async fn closed_listeners_leave_connections_alone() {
    let site = site(Transport::WebSocket, false).await;
    let mut client = site.websocket().await;
    client.write_all(&frame(0x82, CONNECT)).await.unwrap();
    let mut engine = site.engine.accept_client().await;
    site.gate.stop_accepting();
    wait_until_refused(site.addr("door")).await;
    engine.stream.write_all(CONNACK).await.unwrap();
    assert_eq!(read_frame(&mut client).await, (0x82, CONNACK.to_vec()));
    client.write_all(&frame(0x82, b"\xc0\0")).await.unwrap();
    assert_eq!(read(&mut engine.stream, 2).await, b"\xc0\0");
}

#[tokio::test]
async fn shutdown_delivers_what_the_engine_said_and_closes_with_1001() {
    let site = site(Transport::WebSocket, false).await;
    let mut client = site.websocket().await;
    client.write_all(&frame(0x82, CONNECT)).await.unwrap();
    let mut engine = site.engine.accept_client().await;
    let mut pending = site.websocket().await;

    engine.stream.write_all(b"\xe0\x01\x8b").await.unwrap();
    let gate = site.gate.clone();
    let (_, (), ()) = tokio::join!(
        soon(gate.shutdown(Duration::from_secs(10))),
        async {
            assert_eq!(read_frame(&mut client).await, (0x82, b"\xe0\x01\x8b".to_vec()));
            assert_eq!(read_close(&mut client).await, 1001);
            drop(client);
            assert_eq!(read_close(&mut pending).await, 1001);
            drop(pending);
        },
        async {
            assert_eq!(read_to_end(&mut engine.stream).await, b"");
            drop(engine);
        }
    );
    assert_eq!(site.metric("ciqadamq_gate_connections", &[]), 0.0);
    wait_until_refused(site.addr("door")).await;
}

#[tokio::test]
async fn deadline_cuts_those_who_do_not_leave() {
    let site = site(Transport::Tcp, false).await;
    let mut client = site.connect().await;
    client.write_all(CONNECT).await.unwrap();
    let _engine = site.engine.accept_client().await;
    let begin = Instant::now();
    soon(site.gate.shutdown(Duration::from_millis(200))).await;
    assert!(begin.elapsed() < Duration::from_secs(2), "took {:?}", begin.elapsed());
    assert_eq!(site.metric("ciqadamq_gate_connections", &[]), 0.0);
    assert_eq!(read_to_end(&mut client).await, b"");
}

#[tokio::test]
async fn engine_that_does_not_end_holds_up_no_close_frame() {
    let site = site(Transport::WebSocket, false).await;
    let mut client = site.websocket().await;
    client.write_all(&frame(0x82, CONNECT)).await.unwrap();
    let _engine = site.engine.accept_client().await;
    let gate = site.gate.clone();
    let ((), code) = tokio::join!(soon(gate.shutdown(Duration::from_millis(500))), read_close(&mut client));
    assert_eq!(code, 1001);
}

#[tokio::test]
async fn last_handle_takes_the_gate_with_it() {
    let site = site(Transport::Tcp, false).await;
    let addr = site.addr("door");
    let mut client = site.connect().await;
    client.write_all(CONNECT).await.unwrap();
    let _engine = site.engine.accept_client().await;
    drop(site);
    assert_eq!(read_to_end(&mut client).await, b"");
    wait_until_refused(addr).await;
}
