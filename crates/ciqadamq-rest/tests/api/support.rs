//! A running API and two ways to talk to it: reqwest, and bytes as they are.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ciqadamq_core::{AccessRules, ClusterParts, Health, InternalServices, Secret, SecretRefresh};
use ciqadamq_rest::{RestConfig, RestDeps, Server, Tokens};
use reqwest::Method;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fakes::{FakeDirectory, FakeHashing, FakeNode, FakePeers, FakeSessions};

pub const TOKEN: &str = "the-management-token";
/// Nothing here may take longer.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Api {
    pub server: Server,
    pub addr: SocketAddr,
    pub directory: Arc<FakeDirectory>,
    pub passwords: Arc<FakeHashing>,
    pub sessions: Arc<FakeSessions>,
    pub health: Arc<Health>,
    pub tokens: Arc<Tokens>,
    pub internal: Arc<InternalServices>,
    pub peers: Arc<FakePeers>,
    pub cluster: Arc<ClusterParts>,
    pub client: reqwest::Client,
}

pub struct Parts {
    pub directory: Arc<FakeDirectory>,
    pub passwords: Arc<FakeHashing>,
    pub sessions: Arc<FakeSessions>,
    pub health: Arc<Health>,
    pub tokens: Arc<Tokens>,
    pub internal: Arc<InternalServices>,
    pub peers: Arc<FakePeers>,
    pub cluster: Arc<ClusterParts>,
}

impl Parts {
    pub fn new(replication: Option<&str>) -> Self {
        let replication = replication.map(Secret::new);
        Self {
            directory: Arc::new(FakeDirectory::new()),
            passwords: Arc::default(),
            sessions: Arc::default(),
            health: Arc::default(),
            tokens: Arc::new(Tokens::new(&Secret::new(TOKEN), replication.as_ref()).unwrap()),
            internal: Arc::default(),
            peers: Arc::default(),
            cluster: Arc::default(),
        }
    }

    pub fn deps(&self) -> RestDeps {
        let names = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<Vec<_>>();
        let rules =
            AccessRules::new(&names(&["chatsync", "up/{clientid}"]), &names(&["fanout"]), &names(&["adminfanout"]));
        RestDeps {
            directory: self.directory.clone(),
            passwords: self.passwords.clone(),
            sessions: self.sessions.clone(),
            rules: Arc::new(rules.unwrap()),
            health: self.health.clone(),
            tokens: self.tokens.clone(),
            internal: self.internal.clone(),
            peers: self.peers.clone(),
            cluster: self.cluster.clone(),
            refresh: None,
            metrics: prometheus::Registry::new(),
        }
    }
}

pub fn config() -> RestConfig {
    RestConfig::new(([127, 0, 0, 1], 0).into())
}

pub async fn start() -> Api {
    start_with(config(), None).await
}

pub async fn start_with(config: RestConfig, replication: Option<&str>) -> Api {
    start_parts(config, Parts::new(replication), None).await
}

/// As the node of that number.
pub async fn start_node(id: u64) -> Api {
    start_as(id, config(), Parts::new(None), None).await
}

/// With somebody to ask about tokens that are not known.
pub async fn start_parts(config: RestConfig, parts: Parts, refresh: Option<Arc<dyn SecretRefresh>>) -> Api {
    start_as(7, config, parts, refresh).await
}

async fn start_as(id: u64, config: RestConfig, parts: Parts, refresh: Option<Arc<dyn SecretRefresh>>) -> Api {
    let deps = RestDeps { refresh, ..parts.deps() };
    let server = Server::start(config, deps, Arc::new(FakeNode(id))).await.unwrap();
    let Parts { directory, passwords, sessions, health, tokens, internal, peers, cluster } = parts;
    let client = reqwest::Client::builder().timeout(PATIENCE).no_proxy().build().unwrap();
    Api {
        addr: server.local_addr(),
        server,
        directory,
        passwords,
        sessions,
        health,
        tokens,
        internal,
        peers,
        cluster,
        client,
    }
}

/// Status and body of an answer; a body that is no JSON is a string.
pub type Said = (u16, Value);

pub async fn said(response: reqwest::Response) -> Said {
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

impl Api {
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, self.url(path)).bearer_auth(TOKEN)
    }

    pub async fn get(&self, path: &str) -> Said {
        said(self.request(Method::GET, path).send().await.unwrap()).await
    }

    pub async fn delete(&self, path: &str) -> Said {
        said(self.request(Method::DELETE, path).send().await.unwrap()).await
    }

    pub async fn send(&self, method: Method, path: &str, body: &Value) -> Said {
        said(self.request(method, path).json(body).send().await.unwrap()).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Said {
        self.send(Method::POST, path, body).await
    }

    pub async fn patch(&self, path: &str, body: &Value) -> Said {
        self.send(Method::PATCH, path, body).await
    }

    /// A user of that name, with a password.
    pub async fn create(&self, username: &str, userid: &str) {
        let body = serde_json::json!({"username": username, "userid": userid, "password": "secret"});
        let (status, said) = self.post("/api/v1/users", &body).await;
        assert_eq!(status, 201, "{username}: {said}");
    }

    /// A POST to the users with these body bytes and headers, byte by byte as given.
    pub async fn raw_post(&self, headers: &str, body: &[u8]) -> RawAnswer {
        let head = format!(
            "POST /api/v1/users HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\nconnection: close\r\n{headers}\r\n"
        );
        exchange(self.addr, &[head.as_bytes(), body].concat()).await
    }

    /// The value of a metric line that begins with `name`.
    pub async fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = self.get("/metrics").await;
        let text = text.as_str().unwrap().to_owned();
        text.lines().find(|l| l.starts_with(name)).map(|l| l.rsplit(' ').next().unwrap().parse().unwrap())
    }
}

/// An answer as it came over the socket.
#[derive(Debug)]
pub struct RawAnswer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl RawAnswer {
    pub fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.body))
    }
}

pub async fn connect(addr: SocketAddr) -> TcpStream {
    TcpStream::connect(addr).await.unwrap()
}

/// Sends bytes and reads until the server closes. A server that stops reading is not an error here.
pub async fn exchange(addr: SocketAddr, bytes: &[u8]) -> RawAnswer {
    exchange_shared(addr, Arc::from(bytes)).await
}

/// The same for bytes that many connections send.
pub async fn exchange_shared(addr: SocketAddr, bytes: Arc<[u8]>) -> RawAnswer {
    let (mut reader, mut writer) = connect(addr).await.into_split();
    let writing = tokio::spawn(async move {
        // The answer may come before everything is sent.
        let _ = writer.write_all(&bytes).await;
        writer
    });
    let answer = read_to_close(&mut reader).await;
    writing.abort();
    RawAnswer::parse(&answer)
}

pub async fn read_to_close(reader: &mut (impl AsyncReadExt + Unpin)) -> Vec<u8> {
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, async {
        let mut chunk = [0; 4096];
        // A reset after the answer ends it as well as a close.
        while let Ok(n @ 1..) = reader.read(&mut chunk).await {
            answer.extend_from_slice(&chunk[..n]);
        }
    });
    read.await.expect("the server hangs");
    answer
}

/// Reads one answer from a connection that stays open.
pub async fn read_one(stream: &mut TcpStream) -> RawAnswer {
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, async {
        loop {
            let mut byte = [0; 1];
            stream.read_exact(&mut byte).await.unwrap();
            answer.push(byte[0]);
            if answer.ends_with(b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&answer).to_ascii_lowercase();
                let length =
                    head.lines().find_map(|l| l.strip_prefix("content-length: ")).map_or(0, |l| l.parse().unwrap());
                let mut body = vec![0; length];
                stream.read_exact(&mut body).await.unwrap();
                answer.extend_from_slice(&body);
                return;
            }
        }
    });
    read.await.expect("the server hangs");
    RawAnswer::parse(&answer)
}

/// Waits until `holds` says so.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub fn encode(name: &str) -> String {
    percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string()
}
