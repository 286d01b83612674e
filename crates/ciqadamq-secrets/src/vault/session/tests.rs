//! A vault that answers with what it was given, in that order.

use std::sync::Arc;

use parking_lot::Mutex as Shared;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::vault::config::{KvVersion, VaultConfig};

/// Paths that were asked for, and the API that asks.
struct Rig {
    asked: Arc<Shared<Vec<String>>>,
    api: Api,
}

/// Status, further headers, body.
type Canned = (u16, &'static str, &'static str);

async fn vault(answers: Vec<Canned>) -> Rig {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Shared::new(Vec::new()));
    let noted = asked.clone();
    tokio::spawn(async move {
        for (status, headers, body) in answers {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                assert_ne!(socket.read_buf(&mut request).await.unwrap(), 0, "no request");
            }
            let line = String::from_utf8_lossy(&request).lines().next().unwrap_or_default().to_owned();
            noted.lock().push(line.split(' ').nth(1).unwrap_or_default().to_owned());
            let length = body.len();
            let answer =
                format!("HTTP/1.1 {status} x\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}");
            socket.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let config = VaultConfig {
        address,
        namespace: None,
        mount: "secret".into(),
        path: "ciqada/{name}".into(),
        field: "value".into(),
        kv_version: KvVersion::V2,
        login: token(),
        timeout: Duration::from_secs(10),
        poll: Duration::from_secs(30),
        ca_file: None,
    };
    Rig { asked, api: Api::new(&config).unwrap() }
}

fn token() -> Login {
    Login::Token(Credential::Value(Secret::new("s.token")))
}

const MONTH: Canned = (200, "", r#"{"data":{"ttl":2592000,"renewable":true}}"#);

#[tokio::test]
async fn a_token_that_could_not_be_looked_up_is_looked_up_again() {
    let vault = vault(vec![(503, "", "{}"), (200, "", "<html>"), MONTH]).await;
    let session = Session::new(token());
    for _ in 0..2 {
        assert_eq!(session.upkeep(&vault.api).await, Some(UPKEEP_AGAIN));
    }
    assert_eq!(session.upkeep(&vault.api).await, Some(UPKEEP.1), "a month is long, and looked at every minute");
    assert_eq!(*vault.asked.lock(), ["/v1/auth/token/lookup-self"; 3]);
    assert_eq!(session.upkeep(&vault.api).await, Some(UPKEEP.1));
    assert_eq!(vault.asked.lock().len(), 3, "what is known is not asked again");
}

#[tokio::test]
async fn a_token_that_may_not_look_itself_up_is_left_alone() {
    let vault = vault(vec![(403, "", "{}")]).await;
    assert_eq!(Session::new(token()).upkeep(&vault.api).await, None);
}

#[tokio::test]
async fn a_vault_that_is_asked_too_often_is_left_alone_for_as_long_as_it_says() {
    let answers = vec![
        (429, "Retry-After: 17\r\n", ""),
        (429, "Retry-After: 0\r\n", ""),
        (429, "Retry-After: 999999\r\n", ""),
        (429, "", ""),
    ];
    let vault = vault(answers).await;
    let session = Session::new(token());
    for secs in [17, 5, 300, 60] {
        assert_eq!(session.upkeep(&vault.api).await, Some(Duration::from_secs(secs)));
    }
}
