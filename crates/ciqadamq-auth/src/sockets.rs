//! The connections of this process, found by the address of their clients.

use std::net::{SocketAddr, TcpStream};

/// Calls `f` with a duplicate of each connected TCP socket whose peer is `wanted`; returns how often `f` said yes. Blocks, see
/// [`ciqadamq_sockets::own`].
#[cfg(unix)]
pub(crate) fn each_socket(wanted: impl Fn(&SocketAddr) -> bool, mut f: impl FnMut(TcpStream) -> bool) -> usize {
    let sockets = ciqadamq_sockets::own(|fd| ciqadamq_sockets::peer(fd).is_some_and(|peer| wanted(&peer)));
    sockets.filter_map(|socket| f(TcpStream::from(socket)).then_some(())).count()
}

#[cfg(not(unix))]
pub(crate) fn each_socket(_: impl Fn(&SocketAddr) -> bool, _: impl FnMut(TcpStream) -> bool) -> usize {
    0
}
