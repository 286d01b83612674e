//! Closing connections that never finish their CONNECT, or stay open behind their DISCONNECT; and bounding them.
//!
//! On its own listener the engine waits for a CONNECT without an end, and after a DISCONNECT for the client to close
//! (MQTT-3.14.4-3 has the server close too). Such a connection holds a file descriptor. This task looks at the listener's
//! sockets now and then, and shuts down those that have had no online session for `mqtt.connect_timeout_secs`; of those that
//! take longer than a second it leaves so many as `limits.unauthenticated` and `limits.unauthenticated_per_address` say, the
//! youngest. (The gate keeps its own time and bounds for everything that comes through it.)

use std::collections::{HashMap, HashSet};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus::IntCounterVec;
use tracing::{debug, warn};

use crate::host::host;
use crate::ownership::Ownership;
use crate::sessions::Sessions;
use crate::sockets::each_socket;

/// Who takes no longer than this is not bounded: ten thousand clients that come back at once look like an attack before.
const GRACE: Duration = Duration::from_secs(1);

/// Which connections are watched.
#[derive(Debug, Clone, Copy)]
pub struct Silent {
    /// the engine's own listener
    pub port: u16,
    /// from acceptance to CONNACK
    pub timeout: Duration,
    /// connections without a session; 0 is no bound
    pub max: usize,
    /// the same of one address (IPv6: one /64 network); 0 is no bound
    pub max_per_address: usize,
}

/// Why a connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Late {
    Timeout,
    Total,
    PerAddress,
}

impl Late {
    const ALL: [Self; 3] = [Self::Timeout, Self::Total, Self::PerAddress];

    fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Total => "unauthenticated",
            Self::PerAddress => "unauthenticated_per_address",
        }
    }
}

impl Silent {
    /// Often enough that the timeout is kept within a quarter, rarely enough to cost nothing.
    fn interval(&self) -> Duration {
        (self.timeout / 4).clamp(Duration::from_millis(250), Duration::from_secs(2))
    }

    /// Looks and closes, for ever.
    pub(crate) async fn watch(self, sessions: Arc<Sessions>, ownership: Arc<Ownership>, closed: IntCounterVec) {
        let mut waiting = HashMap::new();
        loop {
            tokio::time::sleep(self.interval()).await;
            let known = sessions.online_addresses().await;
            let ownership = ownership.clone();
            let look = tokio::task::spawn_blocking(move || {
                let counts = self.look(&mut waiting, &known, |peer| ownership.is_judged(peer));
                (waiting, counts)
            });
            match look.await {
                Ok((still, counts)) => {
                    waiting = still;
                    for (late, count) in Late::ALL.into_iter().zip(counts) {
                        closed.with_label_values(&[late.as_str()]).inc_by(count as u64);
                        if count > 0 {
                            debug!(count, reason = late.as_str(), "connections without an online session closed");
                        }
                    }
                }
                Err(error) => {
                    warn!(%error, "silent connections could not be looked at");
                    waiting = HashMap::new();
                }
            }
        }
    }

    /// One look: who is new is remembered, who is gone or has a session is forgotten, who is late or too many is closed.
    ///
    /// `known` was true a while ago, with many sessions; `is_judged` is true now, and still for those who came in between.
    fn look(
        &self,
        waiting: &mut HashMap<SocketAddr, Instant>,
        known: &HashSet<SocketAddr>,
        is_judged: impl Fn(&SocketAddr) -> bool,
    ) -> [usize; 3] {
        let mut seen = HashMap::new();
        each_socket(
            |peer| !known.contains(peer) && !is_judged(peer),
            |socket| {
                let (Ok(local), Ok(peer)) = (socket.local_addr(), socket.peer_addr()) else { return false };
                if local.port() == self.port {
                    seen.insert(peer, waiting.get(&peer).copied().unwrap_or_else(Instant::now));
                }
                false
            },
        );
        let doomed = self.doomed(&seen);
        let mut counts = [0; 3];
        if !doomed.is_empty() {
            each_socket(
                |peer| doomed.contains_key(peer) && !is_judged(peer),
                |socket| {
                    let (Ok(local), Ok(peer)) = (socket.local_addr(), socket.peer_addr()) else { return false };
                    let Some(late) = doomed.get(&peer).filter(|_| local.port() == self.port) else { return false };
                    // The engine reads the end of the stream and drops the connection.
                    let is_closed = socket.shutdown(Shutdown::Both).is_ok();
                    counts[*late as usize] += usize::from(is_closed);
                    is_closed
                },
            );
        }
        *waiting = seen;
        counts
    }

    /// Who has to go: the late ones, and of the others the oldest over the bounds.
    fn doomed(&self, seen: &HashMap<SocketAddr, Instant>) -> HashMap<SocketAddr, Late> {
        let mut doomed = HashMap::new();
        let mut rest: Vec<(Instant, SocketAddr)> = Vec::new();
        for (peer, since) in seen {
            match since.elapsed() {
                age if age >= self.timeout => drop(doomed.insert(*peer, Late::Timeout)),
                age if age >= GRACE.min(self.timeout / 2) => rest.push((*since, *peer)),
                _ => {}
            }
        }
        // The youngest first: they are kept.
        rest.sort_unstable_by_key(|(since, _)| std::cmp::Reverse(*since));
        let (mut kept, mut per_address) = (0, HashMap::new());
        for (_, peer) in rest {
            let of_address = per_address.entry(host(peer.ip())).or_insert(0_usize);
            if self.max_per_address > 0 && *of_address >= self.max_per_address {
                doomed.insert(peer, Late::PerAddress);
            } else if self.max > 0 && kept >= self.max {
                doomed.insert(peer, Late::Total);
            } else {
                kept += 1;
                *of_address += 1;
            }
        }
        doomed
    }
}

#[cfg(all(test, unix))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn late_connections_are_closed_and_those_with_a_session_are_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (mut silent, known) = (TcpStream::connect(addr).unwrap(), TcpStream::connect(addr).unwrap());
        let (_a, _b) = (listener.accept().unwrap(), listener.accept().unwrap());
        let watch = Silent { port: addr.port(), timeout: Duration::from_millis(20), max: 0, max_per_address: 0 };
        let has_session = HashSet::from([known.local_addr().unwrap()]);
        let mut waiting = HashMap::new();
        let look =
            |waiting: &mut _, is_judged: &dyn Fn(&SocketAddr) -> bool| watch.look(waiting, &has_session, is_judged);
        assert_eq!(look(&mut waiting, &|_| false), [0; 3], "closed before its time");
        // Late, and let in since it was looked who is online.
        std::thread::sleep(watch.timeout);
        let (late, asked) = (silent.local_addr().unwrap(), std::cell::Cell::new(0));
        let just_now = |peer: &SocketAddr| *peer == late && asked.replace(asked.get() + 1) > 0;
        assert_eq!(look(&mut waiting, &just_now), [0; 3], "closed while it was let in");
        assert_eq!(asked.get(), 2);
        let since = Instant::now();
        while look(&mut waiting, &|_| false) == [0; 3] {
            assert!(since.elapsed() < Duration::from_secs(10), "never closed");
            std::thread::yield_now();
        }
        assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0);
        known.set_nonblocking(true).unwrap();
        assert_eq!((&known).read(&mut [0; 1]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }

    fn seen(peers: &[(&str, u64)]) -> HashMap<SocketAddr, Instant> {
        let now = Instant::now();
        peers.iter().map(|(peer, age)| (peer.parse().unwrap(), now - Duration::from_secs(*age))).collect()
    }

    #[test]
    fn of_too_many_the_oldest_go_and_those_who_just_came_are_not_counted() {
        let watch = Silent { port: 1, timeout: Duration::from_secs(10), max: 3, max_per_address: 2 };
        let doomed = watch.doomed(&seen(&[
            ("10.0.0.1:1", 11),
            ("10.0.0.1:2", 7),
            ("10.0.0.1:3", 6),
            ("10.0.0.1:4", 5),
            ("[2001:db8::1]:1", 4),
            ("[2001:db8::2]:1", 3),
            ("10.0.0.2:1", 2),
            ("10.0.0.3:1", 0),
        ]));
        let mut late: Vec<_> = doomed.iter().map(|(peer, late)| (peer.to_string(), *late)).collect();
        late.sort_by(|a, b| a.0.cmp(&b.0));
        // Kept: 10.0.0.2:1, both IPv6 (one network, two places), and whoever just came.
        let expected = [
            ("10.0.0.1:1", Late::Timeout),
            ("10.0.0.1:2", Late::Total),
            ("10.0.0.1:3", Late::Total),
            ("10.0.0.1:4", Late::Total),
        ];
        assert_eq!(late, expected.map(|(peer, late)| (peer.to_owned(), late)));
        let watch = Silent { max: 0, ..watch };
        let doomed = watch.doomed(&seen(&[("10.0.0.1:2", 7), ("10.0.0.1:3", 6), ("10.0.0.1:4", 5)]));
        assert_eq!(doomed.into_iter().collect::<Vec<_>>(), [("10.0.0.1:2".parse().unwrap(), Late::PerAddress)]);
    }
}
