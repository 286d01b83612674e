//! Last words that the engine does not say: DISCONNECT with a reason, and a CONNACK with the right one.
//!
//! The engine shuts the sending side of the socket down before it writes its DISCONNECT, so no client ever reads one; and
//! a hook that refuses a CONNECT can choose between two codes. This module writes earlier: it finds the process's own
//! sockets by their addresses, and puts a few bytes on the wire before the engine closes. Only sockets that the engine
//! reads are touched; behind the gate that is the loopback connection, which the gate forwards to the client as it
//! forwards everything.
//!
//! It is a courtesy, best effort: where it finds no socket (not Unix, TLS terminated by the engine, a full send
//! buffer) or comes too late (many connections end at once), the client sees the connection close.

use std::collections::HashMap;
use std::io::Write;
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::sockets::each_socket;

/// Words that wait to be said at once. What comes on top is not said.
const WAITING_MAX: usize = 1024;
/// How long whoever closes a connection waits for its words.
const PATIENCE: Duration = Duration::from_millis(500);
/// Passes over the descriptors take about one part in so many of one processor, at most,
const SHARE: u32 = 10;
/// and are at most so far apart.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// The engine's end of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Connection {
    /// port of the listener
    pub local_port: u16,
    /// the other end of the socket that the engine reads
    pub peer: SocketAddr,
}

/// What is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// DISCONNECT to a v5 client
    Disconnect(u8),
    /// The CONNACK of a refusal to a v5 client. Nothing follows: the engine's own, which would, is not sent.
    Connack5(u8),
    /// the same to a v3 client
    Connack3(u8),
}

impl Word {
    fn packet(self) -> ([u8; 5], usize) {
        match self {
            // DISCONNECT, remaining length 2, reason code, no properties.
            Self::Disconnect(code) => ([0xE0, 2, code, 0, 0], 4),
            // CONNACK, remaining length 3, no session, reason code, no properties.
            Self::Connack5(code) => ([0x20, 3, 0, code, 0], 5),
            Self::Connack3(code) => ([0x20, 2, 0, code, 0], 4),
        }
    }

    fn is_last(self) -> bool {
        !matches!(self, Self::Disconnect(_))
    }
}

/// Says words for tasks that close connections, many in one pass.
#[derive(Default)]
pub struct Farewells {
    waiting: Mutex<Vec<(Connection, Word, oneshot::Sender<()>)>>,
    wake: Notify,
}

impl Farewells {
    /// Has a word said, and waits shortly until it is.
    pub async fn say(&self, connection: Connection, word: Word) {
        let (said, done) = oneshot::channel();
        {
            let mut waiting = self.waiting.lock();
            if waiting.len() >= WAITING_MAX {
                return;
            }
            waiting.push((connection, word, said));
        }
        self.wake.notify_one();
        // Unsaid in time is unsaid.
        let _ = tokio::time::timeout(PATIENCE, done).await;
    }

    /// Says what is to be said, for ever.
    pub(crate) async fn run(&self) {
        loop {
            self.wake.notified().await;
            let batch = std::mem::take(&mut *self.waiting.lock());
            // Whoever has lost patience is about to close, or has: the address may be another's by now.
            let batch: Vec<_> = batch.into_iter().filter(|(_, _, said)| !said.is_closed()).collect();
            let begun = Instant::now();
            let pass = tokio::task::spawn_blocking(move || {
                say_all(batch.iter().map(|(connection, word, _)| (*connection, *word)));
                // Dropping the batch tells those who wait.
                drop(batch);
            });
            // A pass that panicked said nothing; the next one may.
            let _ = pass.await;
            tokio::time::sleep((begun.elapsed() * (SHARE - 1)).min(PAUSE_MAX)).await;
        }
    }
}

/// Writes a v5 DISCONNECT with `reason` to each connection; returns on how many.
pub fn say_goodbye(connections: &[Connection], reason: u8) -> usize {
    say_all(connections.iter().map(|connection| (*connection, Word::Disconnect(reason))))
}

/// One pass over the process's file descriptors, however many words there are. Blocks for that long.
fn say_all(words: impl Iterator<Item = (Connection, Word)>) -> usize {
    let wanted: HashMap<_, _> = words.map(|(c, word)| (c.peer, (c.local_port, word))).collect();
    if wanted.is_empty() {
        return 0;
    }
    each_socket(
        |peer| wanted.contains_key(peer),
        |mut socket| {
            let (Ok(local), Ok(peer)) = (socket.local_addr(), socket.peer_addr()) else { return false };
            let Some((_, word)) = wanted.get(&peer).filter(|(port, _)| *port == local.port()) else { return false };
            let (packet, len) = word.packet();
            // The socket is in non-blocking mode (the runtime set it), so the write never waits.
            let said = socket.write(&packet[..len]).is_ok_and(|n| n == len);
            if said && word.is_last() {
                // The peer may be gone; then nothing follows either.
                let _ = socket.shutdown(Shutdown::Write);
            }
            said
        },
    )
}

#[cfg(all(test, unix))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;

    fn pair(listener: &TcpListener) -> (TcpStream, TcpStream, Connection) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, peer) = listener.accept().unwrap();
        let connection = Connection { local_port: server.local_addr().unwrap().port(), peer };
        (client, server, connection)
    }

    #[test]
    fn only_the_wanted_connection_hears_goodbye() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut client, _wanted, connection) = pair(&listener);
        let (mut other, kept, _) = pair(&listener);
        assert_eq!(say_goodbye(&[connection], 0x98), 1);
        let mut packet = [0; 4];
        client.read_exact(&mut packet).unwrap();
        assert_eq!(packet, [0xE0, 2, 0x98, 0]);
        drop(kept);
        assert_eq!(other.read(&mut packet).unwrap(), 0, "the other connection got bytes");
        assert_eq!(say_goodbye(&[], 0x98), 0);
    }

    #[test]
    fn nothing_follows_the_answer_to_a_connect() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        for (word, expected) in
            [(Word::Connack5(0x97), &[0x20, 3, 0, 0x97, 0][..]), (Word::Connack3(2), &[0x20, 2, 0, 2][..])]
        {
            let (mut client, mut server, connection) = pair(&listener);
            assert_eq!(say_all([(connection, word)].into_iter()), 1);
            assert!(server.write_all(b"the engine's own").is_err());
            let mut got = Vec::new();
            client.read_to_end(&mut got).unwrap();
            assert_eq!(got, expected);
        }
    }

    #[tokio::test]
    async fn many_words_are_said_in_few_passes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut pairs: Vec<_> = (0..50).map(|_| pair(&listener)).collect();
        let farewells = Arc::new(Farewells::default());
        let runner = tokio::spawn({
            let farewells = farewells.clone();
            async move { farewells.run().await }
        });
        let words = pairs.iter().map(|(_, _, connection)| farewells.say(*connection, Word::Disconnect(0x8E)));
        futures::future::join_all(words).await;
        runner.abort();
        for (client, _, _) in &mut pairs {
            client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let mut packet = [0; 4];
            client.read_exact(&mut packet).unwrap();
            assert_eq!(packet, [0xE0, 2, 0x8E, 0]);
        }
    }
}
