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
use std::net::SocketAddr;

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
    if wanted.is_empty() { 0 } else { imp::write_to(&wanted, &packet) }
}

/// Peer address to local port.
type Wanted = HashMap<SocketAddr, u16>;

#[cfg(unix)]
mod imp {
    use std::net::{SocketAddr, TcpStream};
    use std::os::fd::{BorrowedFd, RawFd};

    use super::Wanted;

    pub(super) fn write_to(wanted: &Wanted, packet: &[u8]) -> usize {
        open_descriptors().into_iter().filter(|fd| write_if_wanted(*fd, wanted, packet)).count()
    }

    /// `/dev/fd` names the open descriptors on Linux and macOS.
    fn open_descriptors() -> Vec<RawFd> {
        let Ok(entries) = std::fs::read_dir("/dev/fd") else { return Vec::new() };
        entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect()
    }

    fn write_if_wanted(fd: RawFd, wanted: &Wanted, packet: &[u8]) -> bool {
        // SAFETY: the descriptor is borrowed for one look-up and one duplication, which fail with an error if it was
        // closed or became something else meanwhile; nothing is read, written or closed through it.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        if !peer_of(borrowed).is_some_and(|peer| wanted.contains_key(&peer)) {
            return false;
        }
        // From here on through a duplicate of our own: it stays the same connection whatever happens to `fd`.
        let Ok(own) = borrowed.try_clone_to_owned() else { return false };
        send_if_wanted(TcpStream::from(own), wanted, packet)
    }

    /// The socket is in non-blocking mode (the runtime set it), so the write never waits.
    fn send_if_wanted(mut socket: TcpStream, wanted: &Wanted, packet: &[u8]) -> bool {
        use std::io::Write;
        let (Ok(local), Ok(peer)) = (socket.local_addr(), socket.peer_addr()) else { return false };
        wanted.get(&peer) == Some(&local.port()) && socket.write(packet).is_ok_and(|n| n == packet.len())
    }

    fn peer_of(fd: BorrowedFd<'_>) -> Option<SocketAddr> {
        SocketAddr::try_from(rustix::net::getpeername(fd).ok()??).ok()
    }
}

#[cfg(not(unix))]
mod imp {
    pub(super) fn write_to(_: &super::Wanted, _: &[u8]) -> usize {
        0
    }
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
