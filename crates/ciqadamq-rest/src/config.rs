//! What an operator may set for the REST API.

use std::net::SocketAddr;
use std::time::Duration;

/// Settings of the REST API. [`RestConfig::new`] gives the defaults; the launcher fills in what its file says.
#[derive(Debug, Clone)]
pub struct RestConfig {
    /// Where to listen. Port 0 takes a free one, see [`crate::RestHandle::local_addr`].
    pub addr: SocketAddr,
    /// `/internal/*` answers here and nowhere else. `None`: at `addr`, with everything else. Default none.
    pub internal_addr: Option<SocketAddr>,
    /// Longest request body in bytes; a longer one is answered with 413. Default 65,536, at least 1,024.
    pub body_bytes_max: usize,
    /// How long a connection may take to send a whole request head, and how long it may idle between two requests.
    /// Default 10 s; the connection is closed.
    pub header_timeout: Duration,
    /// How long a body may take to arrive (then 408), and how long the answer may take after that (then 503).
    /// Default 10 s.
    pub request_timeout: Duration,
    /// How long a client may refuse to take any byte of an answer. Default 30 s; the connection is closed.
    pub write_timeout: Duration,
    /// Connections served at once. Further ones wait in the listen queue of the operating system until one is free.
    /// Default 1,024, at least 1.
    pub max_connections: usize,
    /// Connections of one address (IPv6: one /64 network) at once; a further one is closed. Behind a proxy all have the
    /// proxy's. Default 256, 0 is no bound.
    pub max_connections_per_address: usize,
    /// How long [`crate::RestHandle::shutdown`] waits for requests under way before it cuts them. Default 5 s.
    pub shutdown_grace: Duration,
    /// `GET /metrics` answers without a token. Default false.
    pub metrics_open: bool,
    /// `GET /docs` answers without a token. Default true: the page shows no data, a browser cannot send a token when
    /// it opens a page, and the document behind it (`openapi.json`) still needs one.
    pub docs_open: bool,
    /// Whether the access rule is in force on this node (`acl.enabled`); `POST /api/v1/acl/check` says so. Default
    /// true.
    pub acl_enabled: bool,
    /// Version of the product, shown by `GET /api/v1/cluster`. Default: this crate's.
    pub version: String,
}

impl RestConfig {
    /// The defaults, listening at `addr`.
    pub fn new(addr: SocketAddr) -> Self {
        Self {
            addr,
            internal_addr: None,
            body_bytes_max: 64 * 1024,
            header_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(30),
            max_connections: 1024,
            max_connections_per_address: 256,
            shutdown_grace: Duration::from_secs(5),
            metrics_open: false,
            docs_open: true,
            acl_enabled: true,
            version: env!("CARGO_PKG_VERSION").into(),
        }
    }

    /// Every value that cannot work, each with its remedy. Empty when all is well.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.body_bytes_max < 1024 {
            problems.push(format!("body_bytes_max is {}; set at least 1024", self.body_bytes_max));
        }
        if self.max_connections == 0 || self.max_connections > tokio::sync::Semaphore::MAX_PERMITS {
            problems.push(format!("max_connections is {}; set 1 or more", self.max_connections));
        }
        for (name, value) in [
            ("header_timeout", self.header_timeout),
            ("request_timeout", self.request_timeout),
            ("write_timeout", self.write_timeout),
        ] {
            if value.is_zero() {
                problems.push(format!("{name} is 0; set a positive duration"));
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_problems_are_listed_at_once() {
        let good = RestConfig::new(([127, 0, 0, 1], 0).into());
        assert!(good.problems().is_empty());
        let bad = RestConfig { body_bytes_max: 1, max_connections: 0, request_timeout: Duration::ZERO, ..good };
        let text = bad.problems().join("; ");
        assert!(
            text.contains("body_bytes_max") && text.contains("max_connections") && text.contains("request_timeout"),
            "{text}"
        );
    }
}
