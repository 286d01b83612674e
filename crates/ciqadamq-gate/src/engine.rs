//! The way to the engine's internal listener.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::net::{TcpSocket, TcpStream};

/// Source addresses besides the usual one, each good for as many connections as the system has ephemeral ports (on Linux
/// about 28,000): one destination and one source alone would cap the gate there.
const SOURCES_MAX: u8 = 32;

/// Connects to the engine.
#[derive(Debug)]
pub(crate) struct Engine {
    addr: SocketAddr,
    /// The last octet of the source in 127.0.0.0/8; 1 leaves the choice to the system.
    source: AtomicU8,
}

impl Engine {
    pub(crate) fn new(addr: SocketAddr) -> Self {
        Self { addr, source: AtomicU8::new(1) }
    }

    /// A new connection, with no delay set.
    pub(crate) async fn connect(&self) -> io::Result<TcpStream> {
        let spare = self.addr.ip() == IpAddr::V4(Ipv4Addr::LOCALHOST);
        let first = self.source.load(Ordering::Relaxed);
        let mut source = first;
        loop {
            match self.connect_from(source).await {
                Ok(stream) => {
                    if source != first {
                        self.source.store(source, Ordering::Relaxed);
                    }
                    stream.set_nodelay(true)?;
                    return Ok(stream);
                }
                // Out of ports. Linux has the whole 127.0.0.0/8; elsewhere the other sources fail to bind the same way.
                Err(e) if spare && matches!(e.kind(), io::ErrorKind::AddrNotAvailable | io::ErrorKind::AddrInUse) => {
                    source = if source >= SOURCES_MAX { 1 } else { source + 1 };
                    if source == first {
                        return Err(e);
                    }
                }
                Err(e) => return Err(e),
            }
        }
    }

    async fn connect_from(&self, source: u8) -> io::Result<TcpStream> {
        if source == 1 {
            return TcpStream::connect(self.addr).await;
        }
        let socket = TcpSocket::new_v4()?;
        socket.bind((Ipv4Addr::new(127, 0, 0, source), 0).into())?;
        socket.connect(self.addr).await
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn spare_sources_reach_the_engine_under_their_own_address() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let engine = Engine::new(listener.local_addr().unwrap());
        engine.source.store(7, Ordering::Relaxed);
        let stream = engine.connect().await.unwrap();
        assert_eq!(stream.local_addr().unwrap().ip(), Ipv4Addr::new(127, 0, 0, 7));
        let (_, peer) = listener.accept().await.unwrap();
        assert_eq!(peer, stream.local_addr().unwrap());
    }
}
