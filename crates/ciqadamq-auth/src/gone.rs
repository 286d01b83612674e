//! Clients that have gone away while their password waits to be hashed.
//!
//! The engine does not read from a connection whose CONNECT is being judged, so it does not notice its end. In a storm of
//! logins, clients lose patience and come again; without this the hashing threads would work for those who have left.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::ownership::Ownership;
use crate::pool::HashPool;
use crate::sockets::each_socket;

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(250);
/// Passwords that wait, below which nobody is looked for: they are hashed before a look would tell.
const WAITING_MIN: usize = 8;

/// Looks while there is a queue, and tells the logins of those who have gone. Runs for ever.
pub(crate) async fn watch(ownership: Arc<Ownership>, pool: Arc<HashPool>) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        if pool.load() < WAITING_MIN {
            continue;
        }
        let judged: HashMap<_, Arc<Notify>> =
            ownership.connections_judged().into_iter().map(|(connection, gone)| (connection.peer, gone)).collect();
        let look = tokio::task::spawn_blocking(move || {
            each_socket(
                |peer| judged.contains_key(peer),
                |socket| {
                    let Some(gone) = socket.peer_addr().ok().and_then(|peer| judged.get(&peer)) else { return false };
                    let is_gone = has_ended(&socket);
                    if is_gone {
                        gone.notify_one();
                    }
                    is_gone
                },
            )
        });
        // A look that panicked found nobody; the next one may.
        let _ = look.await;
    }
}

/// Whether the other end has closed, and nothing it sent is left to be read. The runtime has set the socket to non-blocking.
fn has_ended(socket: &TcpStream) -> bool {
    match socket.peek(&mut [0; 1]) {
        Ok(read) => read == 0,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write as _;
    use std::net::TcpListener;

    #[test]
    fn who_waits_is_there_and_who_closed_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        assert!(!has_ended(&server));
        client.write_all(b"more").unwrap();
        assert!(!has_ended(&server));
        drop(client);
        server.set_nonblocking(false).unwrap();
        std::io::Read::read_exact(&mut &server, &mut [0; 4]).unwrap();
        assert!(has_ended(&server));
    }
}
