//! Which of the gate's sockets towards the engine serves which client.
//!
//! The engine knows a client by the address in the PROXY header, while its own socket is connected to the gate's. Whoever
//! has to find that socket (to read its send queue, or to end it) asks here.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;

/// A client's address as the engine sees it: without IPv6 scope and flow, and IPv4 written as IPv4.
type Key = (IpAddr, u16);

/// From a client's address to the local address of the gate's socket towards the engine.
///
/// Cheap to clone; all clones are one table. An entry lives as long as the connection.
#[derive(Debug, Clone, Default)]
pub struct EnginePeers {
    table: Arc<Mutex<HashMap<Key, SocketAddr>>>,
}

impl EnginePeers {
    /// The local address of the gate's loopback socket for the connection whose client address is `client`: the engine's
    /// socket for that client has this address as its peer. `None` for a client that did not come through the gate.
    pub fn engine_peer(&self, client: SocketAddr) -> Option<SocketAddr> {
        self.table.lock().get(&key(client)).copied()
    }

    /// Enters a connection for as long as the returned guard lives.
    pub(crate) fn enter(&self, client: SocketAddr, local: SocketAddr) -> PeerGuard {
        let key = key(client);
        self.table.lock().insert(key, local);
        PeerGuard { peers: self.clone(), key, local }
    }
}

/// Removes its entry when dropped.
pub(crate) struct PeerGuard {
    peers: EnginePeers,
    key: Key,
    local: SocketAddr,
}

impl Drop for PeerGuard {
    fn drop(&mut self) {
        let mut table = self.peers.table.lock();
        // A client may be back on the same port before its old connection is gone: the entry is then the new one's.
        if table.get(&self.key) == Some(&self.local) {
            table.remove(&self.key);
        }
    }
}

/// Writes an IPv4 address that came through a dual-stack socket as what it is.
pub(crate) fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

fn key(addr: SocketAddr) -> Key {
    (addr.ip().to_canonical(), addr.port())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn entry_of_a_reused_client_address_survives_the_older_connection() {
        let peers = EnginePeers::default();
        let client = "[::ffff:10.1.2.3]:4000".parse().unwrap();
        let old = peers.enter(client, "127.0.0.1:1".parse().unwrap());
        let new = peers.enter(client, "127.0.0.1:2".parse().unwrap());
        drop(old);
        assert_eq!(peers.engine_peer("10.1.2.3:4000".parse().unwrap()), Some("127.0.0.1:2".parse().unwrap()));
        drop(new);
        assert_eq!(peers.engine_peer(client), None);
    }
}
