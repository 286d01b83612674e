//! Saying DISCONNECT to a v5 client whose session the server ends.
//!
//! The engine shuts the sending side of the socket down before it writes its DISCONNECT, so no client ever reads one.
//! This module writes it earlier: it finds the process's own sockets by their addresses, and puts the four bytes on
//! the wire before the session is told to end. Only sockets that the engine reads are touched; behind the gate that is
//! the loopback connection, which the gate forwards to the client as it forwards everything.
//!
//! It is a courtesy, best effort: where it finds no socket (not Unix, TLS terminated by the engine, a full send
//! buffer), the client sees the connection close.

use std::collections::HashMap;
use std::io::Write;
use std::net::SocketAddr;

use crate::sockets::each_socket;

/// The engine's end of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Connection {
    /// port of the listener
    pub local_port: u16,
    /// the other end of the socket that the engine reads
    pub peer: SocketAddr,
}

/// Writes a v5 DISCONNECT with `reason` to each connection; returns on how many.
///
/// One pass over the process's file descriptors, however many connections there are. Blocks for that long.
pub fn say_goodbye(connections: &[Connection], reason: u8) -> usize {
    // DISCONNECT, remaining length 2, reason code, no properties.
    let packet = [0xE0, 2, reason, 0];
    let wanted: HashMap<_, _> = connections.iter().map(|c| (c.peer, c.local_port)).collect();
    if wanted.is_empty() {
        return 0;
    }
    each_socket(
        |peer| wanted.contains_key(peer),
        |mut socket| {
            let (Ok(local), Ok(peer)) = (socket.local_addr(), socket.peer_addr()) else { return false };
            // The socket is in non-blocking mode (the runtime set it), so the write never waits.
            wanted.get(&peer) == Some(&local.port()) && socket.write(&packet).is_ok_and(|n| n == packet.len())
        },
    )
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn only_the_wanted_connection_hears_goodbye() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (wanted, _) = listener.accept().unwrap();
        let mut other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (kept, _) = listener.accept().unwrap();
        let connection =
            Connection { local_port: wanted.local_addr().unwrap().port(), peer: wanted.peer_addr().unwrap() };
        assert_eq!(say_goodbye(&[connection], 0x98), 1);
        let mut packet = [0; 4];
        client.read_exact(&mut packet).unwrap();
        assert_eq!(packet, [0xE0, 2, 0x98, 0]);
        drop(kept);
        assert_eq!(other.read(&mut packet).unwrap(), 0, "the other connection got bytes");
        assert_eq!(say_goodbye(&[], 0x98), 0);
    }
}
