//! The sockets of this process, for who has not opened them.
//!
//! The engine keeps its sockets to itself, and so does its routing plugin: from outside nobody can write to one, close one that
//! never says anything, or set an option for which there is no setting. The operating system knows them all. Each caller says
//! why it needs them.

#![cfg(unix)]

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

/// A duplicate of each socket that is `wanted`.
///
/// One pass over the process's file descriptors; blocks for that long (about a microsecond each). None where descriptors
/// cannot be listed.
pub fn own(wanted: impl Fn(BorrowedFd<'_>) -> bool) -> impl Iterator<Item = OwnedFd> {
    open_descriptors().into_iter().filter_map(move |fd| duplicate(fd, &wanted))
}

/// The other side of a connected TCP socket.
pub fn peer(socket: impl AsFd) -> Option<SocketAddr> {
    SocketAddr::try_from(rustix::net::getpeername(socket).ok()??).ok()
}

/// This side of a TCP socket.
pub fn local(socket: impl AsFd) -> Option<SocketAddr> {
    SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()
}

/// `/dev/fd` names the open descriptors on Linux and macOS.
fn open_descriptors() -> Vec<RawFd> {
    let Ok(entries) = std::fs::read_dir("/dev/fd") else { return Vec::new() };
    let mut all: Vec<RawFd> = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    // The one by which they were listed is closed by now, and its number may be the next duplicate's.
    all.retain(|fd| rustix::io::fcntl_getfd(borrowed(*fd)).is_ok());
    all
}

/// For one look, or one duplication.
fn borrowed<'fd>(fd: RawFd) -> BorrowedFd<'fd> {
    // SAFETY: what is done with it fails with an error if it was closed, and tells if it became something else meanwhile; nothing
    // is read, written or closed through it.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// A duplicate stays the same socket, whatever happens to the original meanwhile.
fn duplicate(fd: RawFd, wanted: impl Fn(BorrowedFd<'_>) -> bool) -> Option<OwnedFd> {
    let original = borrowed(fd);
    if !wanted(original) {
        return None;
    }
    // It may have become something else in between.
    original.try_clone_to_owned().ok().filter(|socket| wanted(socket.as_fd()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_socket_is_found_by_either_side_and_is_the_same_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(addr).unwrap();
        let (_server, from) = listener.accept().unwrap();
        let found: Vec<_> = own(|fd| peer(fd) == Some(from)).collect();
        assert_eq!(found.len(), 1);
        TcpStream::from(found.into_iter().next().unwrap()).write_all(b"x").unwrap();
        client.read_exact(&mut [0]).unwrap();
        // The listener, and what it has accepted.
        assert_eq!(own(|fd| local(fd) == Some(addr)).count(), 2);
    }
}
