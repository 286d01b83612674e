//! The process's own TCP sockets, found by their addresses.
//!
//! The engine keeps its sockets to itself: from outside nobody can write to one, or close one that never says anything.
//! The operating system knows them all. Each caller says why it needs them.

use std::net::{SocketAddr, TcpStream};

/// Calls `f` with a duplicate of each connected TCP socket whose peer is `wanted`; returns how often `f` said yes.
///
/// One pass over the process's file descriptors; blocks for that long (about a microsecond each). Does nothing where
/// descriptors cannot be listed.
pub(crate) fn each_socket(wanted: impl Fn(&SocketAddr) -> bool, f: impl FnMut(TcpStream) -> bool) -> usize {
    imp::each_socket(wanted, f)
}

#[cfg(unix)]
mod imp {
    use std::net::{SocketAddr, TcpStream};
    use std::os::fd::{BorrowedFd, RawFd};

    pub(super) fn each_socket(wanted: impl Fn(&SocketAddr) -> bool, mut f: impl FnMut(TcpStream) -> bool) -> usize {
        open_descriptors()
            .into_iter()
            .filter_map(|fd| duplicate(fd, &wanted))
            .filter_map(|s| f(s).then_some(()))
            .count()
    }

    /// `/dev/fd` names the open descriptors on Linux and macOS.
    fn open_descriptors() -> Vec<RawFd> {
        let Ok(entries) = std::fs::read_dir("/dev/fd") else { return Vec::new() };
        entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect()
    }

    /// A duplicate stays the same connection, whatever happens to the original meanwhile.
    fn duplicate(fd: RawFd, wanted: impl Fn(&SocketAddr) -> bool) -> Option<TcpStream> {
        // SAFETY: the descriptor is borrowed for one look-up and one duplication, which fail with an error if it was
        // closed or became something else meanwhile; nothing is read, written or closed through it.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        let peer = SocketAddr::try_from(rustix::net::getpeername(borrowed).ok()??).ok()?;
        if !wanted(&peer) {
            return None;
        }
        let socket = TcpStream::from(borrowed.try_clone_to_owned().ok()?);
        socket.peer_addr().is_ok_and(|now| now == peer).then_some(socket)
    }
}

#[cfg(not(unix))]
mod imp {
    pub(super) fn each_socket(
        _: impl Fn(&std::net::SocketAddr) -> bool,
        _: impl FnMut(std::net::TcpStream) -> bool,
    ) -> usize {
        0
    }
}
