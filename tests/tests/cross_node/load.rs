//! Devices that are always there, and a backend that always speaks.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use ciqadamq_tests::mqtt::{Answer, Event, Outcome, Packet, Publish, subscribe};
use ciqadamq_tests::{Account, Client, Version};

/// Between two messages of the backend.
const PACE: Duration = Duration::from_millis(10);

/// What came of it, so far.
#[derive(Debug, Default)]
pub struct Counts {
    /// messages of the backend that were acknowledged
    pub published: AtomicU32,
    /// messages that devices got, over all
    pub got: AtomicU32,
    /// CONNECTs that were let in
    pub connects: AtomicU32,
    /// CONNECTs that were refused with a code
    pub refused: AtomicU32,
    /// the longest that anybody was without a connection. Milliseconds.
    pub away_ms: AtomicU64,
    /// ends it
    pub stop: AtomicBool,
}

impl Counts {
    pub fn read(&self, which: impl Fn(&Self) -> &AtomicU32) -> u32 {
        which(self).load(Ordering::Relaxed)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Connects until it is let in; whoever ends a connection unseen is tried again.
    fn connect(&self, account: &Account, client_id: &str, to: SocketAddr) -> Option<Client> {
        let since = Instant::now();
        while !self.stopped() {
            let connect = account.connect(Version::V5, client_id);
            let answer = Client::connect(&connect, to);
            if answer.is_accepted() {
                self.connects.fetch_add(1, Ordering::Relaxed);
                self.away_ms.fetch_max(since.elapsed().as_millis() as u64, Ordering::Relaxed);
                return Some(answer.accepted().0);
            }
            if matches!(answer, Answer::Refused(_)) {
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
            thread::sleep(Duration::from_millis(50));
        }
        None
    }

    fn device(&self, account: &Account, client_id: &str, topic: &str, to: SocketAddr) {
        while let Some(mut client) = self.connect(account, client_id, to) {
            // Its answer, or the end of the connection, comes before the first message or among them.
            client.send(&subscribe(client.version, 1, &[(topic, 1)]));
            let mut last: Option<u32> = None;
            while !self.stopped() {
                match client.message_within(Duration::from_millis(100)) {
                    Ok(message) => {
                        let n = message.text().parse().unwrap();
                        assert!(last.is_none_or(|last| last < n), "{client_id}: {n} after {last:?}");
                        last = Some(n);
                        self.got.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(Event::Packet(Packet::Suback { codes, .. })) => assert_eq!(codes, [1], "{client_id}"),
                    Err(Event::Timeout) => {}
                    Err(_) => break,
                }
            }
        }
    }

    fn backend(&self, account: &Account, topic: &str, to: SocketAddr) {
        let mut n = 0_u32;
        while let Some(mut client) = self.connect(account, &account.userid, to) {
            while !self.stopped() {
                n += 1;
                match client.publish(&Publish::new(topic, n.to_string(), 1)) {
                    Outcome::Acked(0 | 0x10) => drop(self.published.fetch_add(1, Ordering::Relaxed)),
                    Outcome::Closed(_) => break,
                    other => panic!("message {n}: {other:?}"),
                }
                thread::sleep(PACE);
            }
        }
    }

    /// Starts so many devices of one user, and the backend, all by one door.
    pub fn run<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        (user, root): (&'scope Account, &'scope Account),
        devices: usize,
        to: SocketAddr,
    ) {
        let topic = format!("chat/{}/m/all", user.userid);
        for n in 0..devices {
            let topic = topic.clone();
            scope.spawn(move || self.device(user, &format!("{}-device{n}", user.userid), &topic, to));
        }
        scope.spawn(move || self.backend(root, &topic, to));
    }
}

/// Ends the load, whatever becomes of the story.
pub struct StopAtEnd<'a>(pub &'a Counts);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}
