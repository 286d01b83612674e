//! Closing connections that never finish their CONNECT, or stay open behind their DISCONNECT.
//!
//! On its own listener the engine waits for a CONNECT without an end, and after a DISCONNECT for the client to close
//! (MQTT-3.14.4-3 has the server close too). Such a connection holds a file descriptor. This task looks at the listener's
//! sockets now and then, and shuts down those that have had no online session for `mqtt.connect_timeout_secs`. (The gate keeps its own time for everything that comes through it.)

use std::collections::{HashMap, HashSet};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus::IntCounter;
use tracing::{debug, warn};

use crate::sessions::Sessions;
use crate::sockets::each_socket;

/// Which connections are watched.
#[derive(Debug, Clone, Copy)]
pub struct Silent {
    /// the engine's own listener
    pub port: u16,
    /// from acceptance to CONNACK
    pub timeout: Duration,
}

impl Silent {
    /// Often enough that the timeout is kept within a quarter, rarely enough to cost nothing.
    fn interval(&self) -> Duration {
        (self.timeout / 4).clamp(Duration::from_millis(250), Duration::from_secs(5))
    }

    /// Looks and closes, for ever.
    pub(crate) async fn watch(self, sessions: Arc<Sessions>, closed: IntCounter) {
        let mut waiting = HashMap::new();
        loop {
            tokio::time::sleep(self.interval()).await;
            let known = sessions.online_addresses().await;
            let look = tokio::task::spawn_blocking(move || {
                let count = self.look(&mut waiting, &known);
                (waiting, count)
            });
            match look.await {
                Ok((still, count)) => {
                    waiting = still;
                    closed.inc_by(count as u64);
                    if count > 0 {
                        debug!(count, "connections without an online session closed");
                    }
                }
                Err(error) => {
                    warn!(%error, "silent connections could not be looked at");
                    waiting = HashMap::new();
                }
            }
        }
    }

    /// One look: who is new is remembered, who is gone or has a session is forgotten, who is late is closed.
    fn look(&self, waiting: &mut HashMap<SocketAddr, Instant>, known: &HashSet<SocketAddr>) -> usize {
        let mut seen = HashMap::new();
        let closed = each_socket(
            |peer| !known.contains(peer),
            |socket| {
                let (Ok(local), Ok(peer)) = (socket.local_addr(), socket.peer_addr()) else { return false };
                if local.port() != self.port {
                    return false;
                }
                let since = waiting.get(&peer).copied().unwrap_or_else(Instant::now);
                if since.elapsed() < self.timeout {
                    seen.insert(peer, since);
                    return false;
                }
                // The engine reads the end of the stream and drops the connection.
                socket.shutdown(Shutdown::Both).is_ok()
            },
        );
        *waiting = seen;
        closed
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn late_connections_are_closed_and_those_with_a_session_are_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (mut silent, known) = (TcpStream::connect(addr).unwrap(), TcpStream::connect(addr).unwrap());
        let (_a, _b) = (listener.accept().unwrap(), listener.accept().unwrap());
        let watch = Silent { port: addr.port(), timeout: Duration::from_millis(20) };
        let has_session = HashSet::from([known.local_addr().unwrap()]);
        let mut waiting = HashMap::new();
        assert_eq!(watch.look(&mut waiting, &has_session), 0, "closed before its time");
        let since = Instant::now();
        while watch.look(&mut waiting, &has_session) == 0 {
            assert!(since.elapsed() < Duration::from_secs(10), "never closed");
            std::thread::yield_now();
        }
        assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0);
        known.set_nonblocking(true).unwrap();
        assert_eq!((&known).read(&mut [0; 1]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }
}
