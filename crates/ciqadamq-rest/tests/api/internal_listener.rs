//! `/internal/*` on a listener of its own, and the bound on connections of one address.

use ciqadamq_rest::RestConfig;
use tokio::io::AsyncWriteExt;

use crate::support::{TOKEN, config, connect, eventually, read_one, read_to_close, start_with};

#[tokio::test(flavor = "multi_thread")]
async fn with_a_listener_of_its_own_internal_answers_there_and_nowhere_else() {
    let api =
        start_with(RestConfig { internal_addr: Some(([127, 0, 0, 1], 0).into()), ..config() }, Some("between-nodes"))
            .await;
    let internal = api.server.internal_addr().unwrap();
    assert_ne!(internal, api.addr);
    let status = |addr: std::net::SocketAddr, path: &'static str, token: Option<&'static str>| {
        let mut request = api.client.get(format!("http://{addr}{path}"));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        async move { request.send().await.unwrap().status().as_u16() }
    };
    assert_eq!(status(internal, "/internal/users-full", Some("between-nodes")).await, 200);
    assert_eq!(status(internal, "/internal/users-full", Some(TOKEN)).await, 401);
    assert_eq!(status(internal, "/internal/users-full", None).await, 401);
    assert_eq!(status(api.addr, "/internal/users-full", Some("between-nodes")).await, 401);
    assert_eq!(status(api.addr, "/internal/users-full", Some(TOKEN)).await, 404);
    for path in ["/api/v1/users", "/health", "/ready", "/metrics", "/docs"] {
        assert_eq!(status(internal, path, None).await, 401, "{path}");
        assert_eq!(status(internal, path, Some(TOKEN)).await, 401, "{path}");
        assert_eq!(status(internal, path, Some("between-nodes")).await, 404, "{path}");
    }
    assert_eq!(status(api.addr, "/api/v1/users", Some(TOKEN)).await, 200);
    api.server.shutdown().await;
    assert!(tokio::net::TcpStream::connect(internal).await.is_err(), "it still listens");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_address_does_not_take_all_places() {
    let api = start_with(RestConfig { max_connections_per_address: 2, ..config() }, None).await;
    let mut kept = [connect(api.addr).await, connect(api.addr).await];
    for stream in &mut kept {
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        assert_eq!(read_one(stream).await.status, 200);
    }
    let mut over = connect(api.addr).await;
    assert!(read_to_close(&mut over).await.is_empty(), "one more is closed");
    drop(kept);
    eventually("there is room again", || async {
        let mut stream = connect(api.addr).await;
        let request = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await.is_ok() && !read_to_close(&mut stream).await.is_empty()
    })
    .await;
}
