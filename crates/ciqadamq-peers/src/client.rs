//! The HTTP behind a call.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ciqadamq_core::{INTERNAL_BODY_BYTES_MAX, Lane, NodeId, PeerError, Peers, Reachability, Secret, with_causes};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Certificate, Client, Response, StatusCode};
use thiserror::Error;

use crate::book::Book;

/// Time to open a connection. On a local network a node that takes longer is as good as gone.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Idle connections are given up before the other side gives them up (10 s), so that no call meets a closing one.
const IDLE: Duration = Duration::from_secs(8);
/// Text of an error that is read.
const ERROR_BYTES_MAX: usize = 4096;

/// What is needed to call the other nodes.
pub struct PeersConfig {
    /// this node
    pub this: NodeId,
    /// base URL of each other node's API; this node's own is left out
    pub addresses: Vec<(NodeId, String)>,
    /// the nodes' credential, asked for at each call; without one there is no call
    pub credential: Arc<dyn Fn() -> Option<Secret> + Send + Sync>,
    /// PEM certificates of authorities that certify the nodes, besides the public ones
    pub authorities: Option<Vec<u8>>,
}

/// Why there is no client.
#[derive(Debug, Error)]
pub enum PeersError {
    /// the PEM text is none
    #[error("cluster.peer_ca: {0}")]
    Authorities(String),
    /// reqwest says no
    #[error("the HTTP client for other nodes cannot be set up: {0}")]
    Client(String),
}

/// The other nodes over HTTP.
pub struct HttpPeers {
    this: NodeId,
    book: Book,
    client: Client,
    credential: Arc<dyn Fn() -> Option<Secret> + Send + Sync>,
}

impl HttpPeers {
    /// Calls nobody yet.
    pub fn new(config: PeersConfig) -> Result<Self, PeersError> {
        let mut builder = Client::builder()
            // The credential goes to the node that was named and nowhere else.
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .http1_only()
            .tcp_nodelay(true)
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE);
        if let Some(pem) = &config.authorities {
            let certificates =
                Certificate::from_pem_bundle(pem).map_err(|e| PeersError::Authorities(with_causes(&e)))?;
            if certificates.is_empty() {
                return Err(PeersError::Authorities("holds no certificate".into()));
            }
            for certificate in certificates {
                builder = builder.add_root_certificate(certificate);
            }
        }
        let client = builder.build().map_err(|e| PeersError::Client(with_causes(&e)))?;
        let book = Book::configured(config.addresses.into_iter().filter(|(node, _)| *node != config.this));
        Ok(Self { this: config.this, book, client, credential: config.credential })
    }

    /// What a call shows.
    fn authorization(&self) -> Result<HeaderValue, PeerError> {
        let Some(credential) = (self.credential)() else {
            return Err(PeerError::Unavailable(
                "what nodes show each other (ciqada/repl-token) is not known to this node yet; see its condition `secrets`"
                    .into(),
            ));
        };
        let mut token = [b"Bearer ", credential.expose()].concat();
        let header = HeaderValue::from_bytes(&token);
        token.fill(0);
        let mut header = header.map_err(|_| PeerError::Refused("the credential is no header value".into()))?;
        header.set_sensitive(true);
        Ok(header)
    }

    async fn send(
        &self,
        url: &str,
        service: &str,
        authorization: HeaderValue,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, PeerError> {
        let request = self
            .client
            .post(format!("{}/internal/v1/{service}", url.trim_end_matches('/')))
            .header(AUTHORIZATION, authorization)
            .header(CONTENT_TYPE, "application/octet-stream")
            .body(body);
        let response = request.send().await.map_err(|e| classify(&e))?;
        let status = response.status();
        if status == StatusCode::OK {
            return read(response, INTERNAL_BODY_BYTES_MAX).await;
        }
        let text = read(response, ERROR_BYTES_MAX).await.unwrap_or_default();
        let said = serde_json::from_slice::<serde_json::Value>(&text).unwrap_or_default();
        let said = said["error"].as_str().map_or_else(|| status.to_string(), str::to_owned);
        Err(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS => {
                PeerError::Refused(format!(
                    "it does not take this node's credential ({status}); api.repl_token must be the same on all nodes"
                ))
            }
            StatusCode::SERVICE_UNAVAILABLE => PeerError::Unavailable(said),
            // The node's own time limit, or a proxy in between: it may have been at work.
            status if status.is_server_error() => PeerError::NoAnswer(said),
            _ => PeerError::Refused(said),
        })
    }
}

#[async_trait]
impl Peers for HttpPeers {
    fn others(&self) -> Vec<NodeId> {
        self.book.nodes()
    }

    fn url(&self, node: NodeId) -> Option<String> {
        self.book.url(node)
    }

    fn learn(&self, node: NodeId, url: &str) {
        if node != self.this {
            self.book.learn(node, url);
        }
    }

    fn reachability(&self, node: NodeId) -> Reachability {
        self.book.reachability(node)
    }

    async fn call(
        &self,
        node: NodeId,
        service: &str,
        lane: Lane,
        body: Vec<u8>,
        timeout: Duration,
    ) -> Result<Vec<u8>, PeerError> {
        let (url, slots) = self.book.way(node, lane).ok_or(PeerError::NoAddress(node))?;
        // Fails without a word about the way there.
        let authorization = self.authorization()?;
        let deadline = tokio::time::Instant::now() + timeout;
        let slot = match tokio::time::timeout_at(deadline, slots.acquire_owned()).await {
            Ok(Ok(slot)) => slot,
            _ => return Err(PeerError::Unavailable("too many calls to this node are under way".into())),
        };
        let outcome = tokio::time::timeout_at(deadline, self.send(&url, service, authorization, body)).await;
        drop(slot);
        let outcome = outcome.unwrap_or_else(|_| Err(PeerError::NoAnswer(format!("none within {timeout:?}"))));
        match &outcome {
            Err(PeerError::Unreachable(reason) | PeerError::NoAnswer(reason)) => self.book.failed(node, reason),
            _ => self.book.answered(node),
        }
        outcome
    }

    async fn call_at(&self, url: &str, service: &str, body: Vec<u8>, timeout: Duration) -> Result<Vec<u8>, PeerError> {
        let authorization = self.authorization()?;
        let outcome = tokio::time::timeout(timeout, self.send(url, service, authorization, body)).await;
        outcome.unwrap_or_else(|_| Err(PeerError::NoAnswer(format!("none within {timeout:?}"))))
    }
}

impl std::fmt::Debug for HttpPeers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpPeers").field("this", &self.this).field("others", &self.book.nodes()).finish()
    }
}

/// Reads a body to its end, or to `max` bytes and then it is too long.
async fn read(mut response: Response, max: usize) -> Result<Vec<u8>, PeerError> {
    let mut bytes = Vec::with_capacity(response.content_length().map_or(0, |length| (length as usize).min(max)));
    // The call was taken: whatever goes wrong from here on, it may have been done.
    while let Some(chunk) = response.chunk().await.map_err(|e| PeerError::NoAnswer(with_causes(&e)))? {
        if bytes.len() + chunk.len() > max {
            return Err(PeerError::NoAnswer(format!("the answer has more than {max} bytes")));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

// The URL holds no secret.
fn classify(error: &reqwest::Error) -> PeerError {
    if error.is_connect() || error.is_builder() {
        return PeerError::Unreachable(with_causes(error));
    }
    PeerError::NoAnswer(with_causes(error))
}
