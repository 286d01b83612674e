//! Requests as clients misuse them: never a 5xx, never a hang, always JSON.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::support::{
    TOKEN, config, connect, exchange, exchange_shared, read_one, read_to_close, said, start, start_with,
};

const JSON: &str = "content-type: application/json\r\n";

fn with_length(headers: &str, body: &[u8]) -> String {
    format!("{headers}content-length: {}\r\n", body.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_body_is_a_400_in_json() {
    let api = start().await;
    let deep = format!("{{\"username\":{}{}}}", "[".repeat(20_000), "]".repeat(20_000));
    let deeper = "[".repeat(60_000);
    let bodies: &[&[u8]] = &[
        b"",
        b" ",
        b"{",
        b"[]",
        b"null",
        b"true",
        b"1",
        b"\"x\"",
        b"{}",
        b"{}{}",
        b"{\"username\":1}",
        b"[{\"username\":\"a\"}]",
        b"[\"a\",\"b\",\"c\"]",
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\0}\0",
        b"{\"username\":\"\xff\"}",
        b"{\"\xc3\":1}",
        br#"{"username":"\ud800","userid":"u","password":"p"}"#,
        br#"{"username":"t","userid":"u","password":"\udfff"}"#,
        br#"{"username":"t","userid":"u","password":"p","password":"q"}"#,
        br#"{"username":"t","\u0075sername":"t","userid":"u","password":"p"}"#,
        br#"{"username":"t","userid":"u","password":"p","extra":{}}"#,
        br#"{"username":"t","userid":"u","password":"p",}"#,
        br#"{"username":"t" "userid":"u"}"#,
        br#"{"username":"t","userid":"u","password":"p","admin":1e999}"#,
        b"username=t&userid=u&password=p",
        b"\0",
        deep.as_bytes(),
        deeper.as_bytes(),
    ];
    for body in bodies {
        let answer = api.raw_post(&with_length(JSON, body), body).await;
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        assert_eq!(answer.status, 400, "{shown}: {answer:?}");
        assert!(answer.json()["error"].is_string() && answer.head.contains("application/json"), "{shown}");
        // The same in chunks.
        let chunked = [format!("{:x}\r\n", body.len()).as_bytes(), body, b"\r\n0\r\n\r\n"].concat();
        let chunked: &[u8] = if body.is_empty() { b"0\r\n\r\n" } else { &chunked };
        assert_eq!(
            api.raw_post(&format!("{JSON}transfer-encoding: chunked\r\n"), chunked).await.status,
            400,
            "{shown}"
        );
    }
    // No length at all is an empty body.
    assert_eq!(api.raw_post(JSON, b"").await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_content_type_is_a_415() {
    let api = start().await;
    let body = br#"{"username":"t","userid":"u","password":"p"}"#;
    for headers in [
        "",
        "content-type: text/plain\r\n",
        "content-type: application/x-www-form-urlencoded\r\n",
        "content-type:\r\n",
        "content-type: application/json; charset=latin1\r\n",
        "content-type: application/json\r\ncontent-encoding: gzip\r\n",
        "content-type: application/json\r\ncontent-type: text/plain\r\n",
        "content-type: \u{e9}\r\n",
    ] {
        let answer = api.raw_post(&with_length(headers, body), body).await;
        assert_eq!(answer.status, 415, "{headers}");
        assert!(answer.json()["error"].is_string());
    }
    let answer = api.raw_post(&with_length("content-type: application/json; charset=UTF-8\r\n", body), body).await;
    assert_eq!(answer.status, 201, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_body_is_a_413_before_it_is_sent_and_while_it_is_sent() {
    let api = start().await;
    // A gigabyte is announced, nothing of it is sent.
    let answer = api.raw_post(&format!("{JSON}content-length: 1073741824\r\n"), b"").await;
    assert_eq!(answer.status, 413);
    assert!(answer.json()["error"].as_str().unwrap().contains("65536"));
    let answer = api.raw_post(&format!("{JSON}content-length: 1073741824\r\nexpect: 100-continue\r\n"), b"").await;
    assert_eq!(answer.status, 413, "nobody is asked to go on");
    // Clients that send everything first still get to see the answer.
    for size in [65_537, 1 << 20, 10 << 20] {
        let body = vec![b' '; size];
        assert_eq!(api.raw_post(&with_length(JSON, &body), &body).await.status, 413, "{size}");
        let sent =
            api.request(Method::POST, "/api/v1/users").header("content-type", "application/json").body(body).send();
        let (status, said) = said(sent.await.unwrap()).await;
        assert!(status == 413 && said["error"].is_string(), "{size}");
    }
    let chunk = [b"10000\r\n", vec![b' '; 0x10000].as_slice(), b"\r\n"].concat();
    let body = [chunk.as_slice(), b"1\r\n \r\n0\r\n\r\n"].concat();
    assert_eq!(api.raw_post(&format!("{JSON}transfer-encoding: chunked\r\n"), &body).await.status, 413);
    // Exactly the limit is taken in (and is no JSON object).
    let body = vec![b' '; 65_536];
    assert_eq!(api.raw_post(&with_length(JSON, &body), &body).await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_body_ends() {
    let api = start().await;
    let head = format!(
        "POST /api/v1/users HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n{JSON}transfer-encoding: chunked\r\n\r\n"
    );
    let (mut reader, mut writer) = connect(api.addr).await.into_split();
    writer.write_all(head.as_bytes()).await.unwrap();
    let flood = tokio::spawn(async move {
        let chunk = [b"4000\r\n", vec![b' '; 0x4000].as_slice(), b"\r\n"].concat();
        while writer.write_all(&chunk).await.is_ok() {}
    });
    let answer = String::from_utf8_lossy(&read_to_close(&mut reader).await).into_owned();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    flood.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_arrive_is_a_408() {
    let api =
        start_with(ciqadamq_rest::RestConfig { request_timeout: Duration::from_millis(300), ..config() }, None).await;
    for body in [&b""[..], b"{\"username\""] {
        let head = format!(
            "POST /api/v1/users HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n{JSON}content-length: 100\r\n\r\n"
        );
        let mut stream = connect(api.addr).await;
        stream.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
        let answer = read_one(&mut stream).await;
        assert_eq!(answer.status, 408);
        assert!(answer.json()["error"].is_string() && answer.head.contains("connection: close"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_with_long_bodies_cost_one_small_answer_each() {
    let api = start().await;
    let head = "POST /api/v1/users HTTP/1.1\r\nhost: x\r\ncontent-length: 10485760\r\n\r\n";
    let request: Arc<[u8]> = [head.as_bytes(), &vec![b'x'; 10 << 20]].concat().into();
    let answers = futures::future::join_all((0..40).map(|_| exchange_shared(api.addr, request.clone()))).await;
    for answer in answers {
        assert!(answer.status == 401 && answer.json()["error"].is_string());
    }
    assert_eq!(api.get("/health").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_body_is_not_taken_for_the_next_request() {
    let api = start().await;
    let hidden = "DELETE /api/v1/users/t HTTP/1.1\r\nhost: x\r\n\r\n";
    let head = format!("POST /api/v1/users HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{hidden}", hidden.len());
    let answer = exchange(api.addr, head.as_bytes()).await;
    assert_eq!(answer.status, 401);
    assert_eq!(answer.body.matches("HTTP/1.1").count(), 0, "one answer: {answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_requests_share_a_connection_also_after_a_refusal() {
    let api = start().await;
    let mut stream = connect(api.addr).await;
    let body = b"{\"username\":1}";
    for _ in 0..2 {
        let head = format!(
            "POST /api/v1/users HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n{JSON}content-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
        assert_eq!(read_one(&mut stream).await.status, 400);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_paths_and_methods_are_answered_in_json() {
    let api = start().await;
    for path in [
        "/",
        "/nope",
        "/api",
        "/api/v1",
        "/api/v1/users/",
        "/api/v1/users/a/b",
        "/api/v2/users",
        "//api/v1/users",
        "/internal",
        "/docs/",
    ] {
        let (status, said) = api.get(path).await;
        assert!(status == 404 && said["error"].is_string(), "{path}: {status} {said}");
    }
    for (method, path, allow) in [
        (Method::PUT, "/api/v1/users", "GET, POST, HEAD"),
        (Method::POST, "/api/v1/users/t", "GET, PATCH, DELETE, HEAD"),
        (Method::GET, "/api/v1/acl/check", "POST"),
        (Method::POST, "/health", "GET, HEAD"),
        (Method::OPTIONS, "/api/v1/users", "GET, POST, HEAD"),
        (Method::GET, "/internal/replicate", "POST"),
        (Method::TRACE, "/ready", "GET, HEAD"),
    ] {
        let answer = api.request(method.clone(), path).send().await.unwrap();
        assert_eq!(answer.headers()["allow"], allow, "{method} {path}");
        let (status, said) = said(answer).await;
        assert!(status == 405 && said["error"].is_string(), "{method} {path}");
    }
    let odd =
        format!("BREW /api/v1/users HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\nconnection: close\r\n\r\n");
    assert_eq!(exchange(api.addr, odd.as_bytes()).await.status, 405);
    let not_utf8 = format!(
        "GET /api/v1/users/%ff HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\nconnection: close\r\n\r\n"
    );
    assert_eq!(exchange(api.addr, not_utf8.as_bytes()).await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn head_is_get_without_the_body() {
    let api = start().await;
    api.create("t", "u").await;
    for path in ["/health", "/api/v1/users/t", "/api/v1/users", "/docs", "/api/v1/openapi.json"] {
        let request =
            format!("HEAD {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\nconnection: close\r\n\r\n");
        let answer = exchange(api.addr, request.as_bytes()).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, ""), "{path}");
    }
    let missing = format!(
        "HEAD /api/v1/users/x HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\nconnection: close\r\n\r\n"
    );
    let answer = exchange(api.addr, missing.as_bytes()).await;
    assert_eq!((answer.status, answer.body.as_str()), (404, ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_http_are_answered_or_closed() {
    let api = start().await;
    let long_head = format!("GET /health HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(200_000));
    for bytes in [
        &b"\r\n\r\n\r\nhello\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x3c\x00\x02ab",
        long_head.as_bytes(),
        b"POST /api/v1/users HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /api/v1/users HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    ] {
        let (mut reader, mut writer) = connect(api.addr).await.into_split();
        let bytes = bytes.to_vec();
        let writing = tokio::spawn(async move {
            let _ = writer.write_all(&bytes).await; // the server may close first
            writer
        });
        let answer = String::from_utf8_lossy(&read_to_close(&mut reader).await).into_owned();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
        writing.abort();
    }
    assert_eq!(api.get("/health").await, (200, json!({"status": "ok"})));
}
