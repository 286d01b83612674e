//! Calls to nodes that answer, refuse, hang, or are not there.
#![allow(clippy::unwrap_used, missing_docs)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ciqadamq_core::{Lane, PeerError, Peers, Reachability, Secret};
use ciqadamq_peers::{HttpPeers, PeersConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const PATIENCE: Duration = Duration::from_secs(10);

/// A node that answers each connection's first request with these bytes, after it got it; none: it hangs.
async fn node(answer: Option<&'static str>) -> (SocketAddr, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (got, requests) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (mut tcp, _) = listener.accept().await.unwrap();
            let got = got.clone();
            tokio::spawn(async move {
                let mut request = Vec::new();
                let mut chunk = [0; 1024];
                while !String::from_utf8_lossy(&request).ends_with("body!") {
                    let n = tcp.read(&mut chunk).await.unwrap();
                    request.extend_from_slice(&chunk[..n]);
                }
                got.send(String::from_utf8(request).unwrap()).unwrap();
                match answer {
                    Some(answer) => tcp.write_all(answer.as_bytes()).await.unwrap(),
                    None => std::future::pending().await,
                }
            });
        }
    });
    (addr, requests)
}

fn peers(addr: SocketAddr) -> HttpPeers {
    let credential = Arc::new(|| Some(Secret::new("the-token")));
    let addresses = vec![(1, "http://me:1".to_owned()), (2, format!("http://{addr}/"))];
    HttpPeers::new(PeersConfig { this: 1, addresses, credential, authorities: None }).unwrap()
}

async fn call(peers: &HttpPeers) -> Result<Vec<u8>, PeerError> {
    peers.call(2, "echo", Lane::Common, b"body!".to_vec(), PATIENCE).await
}

#[tokio::test]
async fn a_call_carries_the_credential_and_brings_the_answer() {
    let (addr, mut requests) = node(Some("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nyes")).await;
    let peers = peers(addr);
    assert_eq!(peers.others(), [2]);
    assert_eq!(call(&peers).await.unwrap(), b"yes");
    assert_eq!(peers.reachability(2), Reachability::Reachable);
    let request = requests.recv().await.unwrap().to_ascii_lowercase();
    assert!(request.starts_with("post /internal/v1/echo http/1.1\r\n"), "{request}");
    assert!(request.contains("authorization: bearer the-token\r\n"), "{request}");
    assert!(!format!("{peers:?}").contains("the-token"));
}

#[tokio::test]
async fn a_refusal_says_that_nothing_was_done_and_that_the_node_is_there() {
    let (addr, _requests) =
        node(Some("HTTP/1.1 503 X\r\ncontent-length: 20\r\n\r\n{\"error\":\"not today\"}".trim_end())).await;
    let peers = peers(addr);
    // One byte short of its length: the text is lost, the status counts.
    assert!(call(&peers).await.unwrap_err().nothing_was_done());
    assert_eq!(peers.reachability(2), Reachability::Reachable);

    let (addr, _requests) = node(Some("HTTP/1.1 401 X\r\ncontent-length: 0\r\n\r\n")).await;
    let error = call(&self::peers(addr)).await.unwrap_err();
    assert!(matches!(&error, PeerError::Refused(text) if text.contains("api.repl_token")), "{error}");
}

#[tokio::test]
async fn a_node_that_is_not_there_is_told_from_one_that_does_not_answer() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let gone = peers(free);
    assert!(matches!(call(&gone).await.unwrap_err(), PeerError::Unreachable(_)));
    assert!(matches!(gone.reachability(2), Reachability::Unreachable { .. }));

    let (addr, mut requests) = node(None).await;
    let hangs = peers(addr);
    let error = hangs.call(2, "echo", Lane::Common, b"body!".to_vec(), Duration::from_millis(300)).await.unwrap_err();
    assert!(matches!(error, PeerError::NoAnswer(_)) && requests.recv().await.is_some());
    assert!(matches!(hangs.reachability(2), Reachability::Unreachable { .. }));
    assert!(matches!(hangs.call(9, "echo", Lane::Common, vec![], PATIENCE).await, Err(PeerError::NoAddress(9))));
}

#[tokio::test]
async fn a_node_that_does_not_know_what_to_show_calls_nobody() {
    let (addr, mut requests) = node(Some("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")).await;
    let addresses = vec![(2, format!("http://{addr}"))];
    let peers =
        HttpPeers::new(PeersConfig { this: 1, addresses, credential: Arc::new(|| None), authorities: None }).unwrap();
    assert!(matches!(call(&peers).await, Err(PeerError::Unavailable(_))));
    let at = peers.call_at(&format!("http://{addr}"), "echo", b"body!".to_vec(), PATIENCE).await;
    assert!(matches!(at, Err(PeerError::Unavailable(_))));
    assert_eq!(peers.reachability(2), Reachability::Unknown);
    assert!(requests.try_recv().is_err());
}

#[tokio::test]
async fn what_is_vital_does_not_wait_for_calls_that_hang() {
    let (addr, mut requests) = node(None).await;
    let peers = Arc::new(peers(addr));
    let calls: Vec<_> = (0..200)
        .map(|_| {
            let peers = peers.clone();
            tokio::spawn(async move { call(&peers).await })
        })
        .collect();
    for _ in 0..64 {
        requests.recv().await.unwrap();
    }
    let vital = tokio::spawn(async move { peers.call(2, "vital", Lane::Vital, b"body!".to_vec(), PATIENCE).await });
    let request = tokio::time::timeout(PATIENCE, requests.recv()).await.unwrap().unwrap();
    assert!(request.starts_with("POST /internal/v1/vital "), "{request}");
    calls.iter().chain([&vital]).for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn a_node_learned_at_run_time_can_be_called() {
    let (addr, _requests) = node(Some("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")).await;
    let peers = peers("127.0.0.1:1".parse().unwrap());
    peers.learn(3, &format!("http://{addr}"));
    peers.learn(1, "http://myself");
    assert_eq!(peers.others(), [2, 3]);
    assert_eq!(peers.call(3, "echo", Lane::Common, b"body!".to_vec(), PATIENCE).await.unwrap(), b"");
}

#[tokio::test]
async fn rubbish_for_authorities_is_refused() {
    let credential = Arc::new(|| Some(Secret::new("t")));
    for pem in ["", "rubbish", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        let config =
            PeersConfig { this: 1, addresses: vec![], credential: credential.clone(), authorities: Some(pem.into()) };
        assert!(HttpPeers::new(config).is_err(), "{pem:?}");
    }
}
