//! Connections: how many, how slow, how they end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ciqadamq_core::UserDirectory;
use ciqadamq_rest::{RestConfig, RestError, Server};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::fakes::{FakeNode, Writes};
use crate::support::{Parts, TOKEN, config, connect, eventually, exchange, read_one, read_to_close, start, start_with};

const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_over_the_limit_waits_for_its_turn() {
    let api = start_with(RestConfig { max_connections: 1, ..config() }, None).await;
    let mut first = connect(api.addr).await;
    first.write_all(HEALTH).await.unwrap();
    assert_eq!(read_one(&mut first).await.status, 200);
    let mut second = connect(api.addr).await;
    second.write_all(HEALTH).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(200), second.readable()).await;
    assert!(early.is_err(), "the place is taken");
    drop(first);
    assert_eq!(read_one(&mut second).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_and_dawdling_connections_are_closed() {
    let api = start_with(RestConfig { header_timeout: Duration::from_millis(300), ..config() }, None).await;
    for start in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n\r\n", b"GET /health HTTP/1.1\r\nhost: x\r\n"] {
        let mut stream = connect(api.addr).await;
        stream.write_all(start).await.unwrap();
        let begun = Instant::now();
        read_to_close(&mut stream).await;
        assert!(begun.elapsed() < Duration::from_secs(5), "{start:?}");
    }
    let mut idle = connect(api.addr).await;
    idle.write_all(HEALTH).await.unwrap();
    read_one(&mut idle).await;
    assert!(read_to_close(&mut idle).await.is_empty(), "an idle connection is closed, too");
    eventually("all places are free again", || async { api.metric("ciqadamq_rest_connections").await == Some(1.0) })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_is_bounded_to_the_byte_and_in_the_number_of_its_headers() {
    let api = start().await;
    let head = |headers: &str| format!("GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
    let long = |bytes: usize| head(&format!("fill: {}\r\n", "y".repeat(bytes - head("fill: \r\n").len())));
    for (bytes, status) in [(1_000, 200), (65_536, 200), (65_537, 431), (100_000, 431), (1 << 20, 431)] {
        let request = long(bytes);
        assert_eq!(request.len(), bytes);
        assert_eq!(exchange(api.addr, request.as_bytes()).await.status, status, "{bytes} bytes");
    }
    for (headers, status) in [(98, 200), (99, 431)] {
        assert_eq!(
            exchange(api.addr, head(&"fill: y\r\n".repeat(headers)).as_bytes()).await.status,
            status,
            "{headers} more"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_drips_is_cut_without_an_answer() {
    let api = start_with(RestConfig { header_timeout: Duration::from_millis(300), ..config() }, None).await;
    let (mut reader, mut writer) = connect(api.addr).await.into_split();
    let begun = Instant::now();
    let dripping = tokio::spawn(async move {
        while writer.write_all(b"y").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert_eq!(read_to_close(&mut reader).await, b"");
    assert!(begun.elapsed() < Duration::from_secs(5), "each byte gave it more time");
    dripping.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_loses_its_connection() {
    let api = start_with(RestConfig { write_timeout: Duration::from_millis(300), ..config() }, None).await;
    api.directory.fill(200_000);
    let mut greedy = connect(api.addr).await;
    greedy
        .write_all(format!("GET /api/v1/users HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n\r\n").as_bytes())
        .await
        .unwrap();
    greedy.readable().await.unwrap();
    eventually("its place is free again", || async { api.metric("ciqadamq_rest_connections").await == Some(1.0) })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_does_not_come_is_a_503() {
    let api = start_with(
        RestConfig {
            request_timeout: Duration::from_millis(150),
            shutdown_grace: Duration::from_millis(100),
            ..config()
        },
        None,
    )
    .await;
    *api.directory.writes.lock().unwrap() = Writes::Stuck;
    let (status, said) = api.post("/api/v1/users", &json!({"username": "t", "userid": "u", "password": "p"})).await;
    assert!(status == 503 && said["error"].is_string());
    let begun = Instant::now();
    api.server.shutdown().await;
    assert!(begun.elapsed() < Duration::from_secs(5), "a stuck change does not hold the shutdown for ever");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_ends_idle_connections_at_once_and_frees_the_address() {
    let api = start().await;
    let mut idle = connect(api.addr).await;
    idle.write_all(HEALTH).await.unwrap();
    read_one(&mut idle).await;
    let mut silent = connect(api.addr).await;
    eventually("both are served", || async { api.metric("ciqadamq_rest_connections").await >= Some(3.0) }).await;
    let (addr, begun) = (api.addr, Instant::now());
    api.server.shutdown().await;
    assert!(begun.elapsed() < Duration::from_secs(2), "nothing was under way");
    assert!(read_to_close(&mut idle).await.is_empty() && read_to_close(&mut silent).await.is_empty());
    let again =
        Server::start(RestConfig { addr, ..config() }, Parts::new(None).deps(), Arc::new(FakeNode(7))).await.unwrap();
    again.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_waits_for_the_request_under_way() {
    let api = start().await;
    let body = br#"{"username":"t","userid":"u","password":"p"}"#;
    let head = format!(
        "POST /api/v1/users HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut slow = connect(api.addr).await;
    slow.write_all(head.as_bytes()).await.unwrap();
    eventually("it is under way", || async { api.metric("ciqadamq_rest_requests_in_flight").await == Some(2.0) }).await;
    let directory = api.directory.clone();
    let stopping = tokio::spawn(api.server.shutdown());
    slow.write_all(body).await.unwrap();
    assert_eq!(read_one(&mut slow).await.status, 201);
    stopping.await.unwrap();
    assert_eq!(directory.status().users, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_is_bounded_whatever_a_client_does() {
    let api = start_with(RestConfig { shutdown_grace: Duration::from_millis(200), ..config() }, None).await;
    let mut stuck = connect(api.addr).await;
    let head = format!(
        "POST /api/v1/users HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n"
    );
    stuck.write_all(head.as_bytes()).await.unwrap();
    eventually("it is under way", || async { api.metric("ciqadamq_rest_requests_in_flight").await == Some(2.0) }).await;
    let begun = Instant::now();
    api.server.shutdown().await;
    assert!(begun.elapsed() < Duration::from_secs(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_in_use_and_values_that_cannot_work_are_errors_that_name_them() {
    let api = start().await;
    let begin = |config| Server::start(config, Parts::new(None).deps(), Arc::new(FakeNode(7)));
    let error = begin(RestConfig { addr: api.addr, ..config() }).await.err().unwrap();
    assert!(matches!(error, RestError::Bind { .. }) && error.to_string().contains(&api.addr.to_string()), "{error}");
    let error = begin(RestConfig { max_connections: 0, ..config() }).await.err().unwrap().to_string();
    assert!(error.contains("max_connections"), "{error}");
}
