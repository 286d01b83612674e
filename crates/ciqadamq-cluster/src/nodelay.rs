//! What the routing plugin's nodes tell each other leaves at once.
//!
//! The plugin accepts the calls of other nodes on sockets without `TCP_NODELAY`, and has no setting for it: an answer that
//! follows another one closely waits until the caller's kernel acknowledges that one, which may take 40 ms. Every CONNECT
//! and SUBSCRIBE waits for such answers. An accepted socket has what its listener has, so it is enough to find that.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::debug;

/// How long the plugin's thread may take until it listens.
const WITHIN: Duration = Duration::from_secs(10);

/// Looks for the listener on `addr`'s port in this process, and lets all that is accepted there send at once.
///
/// Returns when that is so; nothing depends on it but how long answers take.
pub(crate) async fn send_at_once(addr: SocketAddr) {
    let until = Instant::now() + WITHIN;
    while !imp::set(addr.port()) {
        if Instant::now() >= until {
            debug!(%addr, "no listener found; answers to other nodes may wait for the network");
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
    // What was in the listener's queue at that moment has been accepted by now.
    sleep(Duration::from_secs(1)).await;
    imp::set(addr.port());
}

#[cfg(unix)]
mod imp {
    use ciqadamq_sockets::{local, own};
    use rustix::net::sockopt;

    /// Sets it on all TCP sockets with this port on this side; whether a listener was among them.
    pub(super) fn set(port: u16) -> bool {
        let mut listens = false;
        for socket in own(|fd| local(fd).is_some_and(|addr| addr.port() == port)) {
            let done = sockopt::set_tcp_nodelay(&socket, true).is_ok();
            listens |= done && sockopt::socket_acceptconn(&socket).unwrap_or(false);
        }
        listens
    }
}

#[cfg(not(unix))]
mod imp {
    pub(super) fn set(_: u16) -> bool {
        true
    }
}

#[cfg(all(test, unix))]
mod tests {
    use tokio::net::{TcpListener, TcpStream};

    use super::send_at_once;

    #[tokio::test]
    async fn what_a_listener_accepts_sends_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let _before = TcpStream::connect(addr).await.unwrap();
        let (before, _) = listener.accept().await.unwrap();
        assert!(!before.nodelay().unwrap());
        send_at_once(addr).await;
        let _after = TcpStream::connect(addr).await.unwrap();
        let (after, _) = listener.accept().await.unwrap();
        assert!(before.nodelay().unwrap() && after.nodelay().unwrap());
    }
}
