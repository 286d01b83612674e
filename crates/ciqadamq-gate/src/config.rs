//! What the gate is told: its listeners and its limits.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio_rustls::rustls::ServerConfig;

/// What is spoken on a listener, under the MQTT bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Plain TCP. Only useful behind a load balancer that sends PROXY headers: other clients go to the engine directly.
    Tcp,
    /// WebSocket over TCP, on any path.
    WebSocket,
    /// TLS over TCP.
    Tls,
    /// WebSocket over TLS.
    WebSocketTls,
}

impl Transport {
    /// Whether the bytes on the wire are TLS records.
    pub fn is_tls(self) -> bool {
        matches!(self, Self::Tls | Self::WebSocketTls)
    }

    /// Whether the MQTT bytes come in WebSocket frames.
    pub fn is_websocket(self) -> bool {
        matches!(self, Self::WebSocket | Self::WebSocketTls)
    }
}

/// From whom a PROXY header, version 1 or 2, is expected. Where it is, it is required, and its source is the client's
/// address; nowhere else is one taken. The two are never told apart by what comes: a client could write any address into it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ProxyProtocol {
    /// From nobody.
    #[default]
    Off,
    /// From everybody. For listeners that nobody but the load balancer can reach.
    Everybody,
    /// From these networks, where the load balancers are. IPv4 addresses are compared as such, however they came.
    Networks(Vec<IpNet>),
}

impl ProxyProtocol {
    /// Whether a connection from this address begins with a header.
    pub fn expects(&self, peer: IpAddr) -> bool {
        match self {
            Self::Off => false,
            Self::Everybody => true,
            Self::Networks(networks) => networks.iter().any(|network| network.contains(&peer.to_canonical())),
        }
    }
}

/// One address the gate listens on.
#[derive(Debug, Clone)]
pub struct GateListener {
    /// Names the listener in logs, metrics and errors. Unique within the gate.
    pub name: &'static str,
    /// Where to listen. Port 0 takes a free one, see [`Gate::local_addrs`](crate::Gate::local_addrs).
    pub addr: SocketAddr,
    /// What is spoken there.
    pub transport: Transport,
    /// Whose connections begin with a PROXY header.
    pub proxy_protocol: ProxyProtocol,
    /// Certificate and key, from [`tls_config`](crate::tls_config). Needed if the transport has TLS, else unused.
    pub tls: Option<Arc<ServerConfig>>,
}

/// The gate's listeners and limits.
#[derive(Debug, Clone)]
pub struct GateConfig {
    /// What to listen on.
    pub listeners: Vec<GateListener>,
    /// From accept until the first MQTT packet, which must be a CONNECT, is complete and handed to the engine: the PROXY
    /// header, the TLS handshake and the HTTP upgrade all fall into it.
    pub connect_timeout: Duration,
    /// How long a client may take none of the bytes that wait for it before its connection is cut. Its buffers and the
    /// kernels' are full then, and the engine is stopped by back-pressure; that the engine gives it up cannot be seen from
    /// here, as it would come after those bytes. Should not be below the engine's send timeout.
    pub stall_timeout: Duration,
    /// Connections that have not sent their CONNECT yet, over all listeners. `0` is unlimited. One more is closed at once.
    pub max_pending: usize,
    /// The same for one client address (for IPv6 one /64 network, which is what a single host can choose from). `0` is
    /// unlimited. Behind PROXY protocol the announced address counts, not the load balancer's.
    pub max_pending_per_ip: usize,
    /// The largest MQTT packet, in bytes, as the engine is configured. Here it bounds the CONNECT, which is collected, and
    /// the length a WebSocket message may have (never below 64 KiB, as one message may hold many packets).
    pub max_packet_size: u32,
    /// Connections the kernel completes before they are accepted. The kernel has its own limit too (`somaxconn`).
    pub backlog: i32,
    /// `TCP_NODELAY` towards the clients. Towards the engine it is always set: a packet that waits, waits once.
    pub nodelay: bool,
}

impl GateConfig {
    /// The given listeners with the default limits: 10 s to connect, 30 s of stall, 4096 pending, 256 pending for an
    /// address, 1 MiB, backlog 1024; packets that follow closely may share a segment.
    pub fn new(listeners: Vec<GateListener>) -> Self {
        Self {
            listeners,
            connect_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
            max_pending: 4096,
            max_pending_per_ip: 256,
            max_packet_size: 1024 * 1024,
            backlog: 1024,
            nodelay: false,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn headers_are_expected_from_the_networks_that_are_named_and_from_nobody_else() {
        let networks = ["10.1.0.0/16", "2001:db8::/32"].map(|network| network.parse().unwrap());
        let some = ProxyProtocol::Networks(networks.into());
        for (peer, expected) in [
            ("10.1.2.3", true),
            ("::ffff:10.1.2.3", true),
            ("2001:db8::1", true),
            ("10.2.0.1", false),
            ("::ffff:10.2.0.1", false),
            ("2001:db9::1", false),
        ] {
            assert_eq!(some.expects(peer.parse().unwrap()), expected, "{peer}");
        }
        let any = "10.1.2.3".parse().unwrap();
        assert!(ProxyProtocol::Everybody.expects(any));
        assert!(!ProxyProtocol::Off.expects(any) && !ProxyProtocol::Networks(Vec::new()).expects(any));
    }
}
