//! Slows down guessing: after many wrong tokens a source address is told to wait.
//!
//! A right token is never asked here, so nobody can be locked out by others behind the same proxy.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Wrong tokens one source may present in [`WINDOW`].
pub(crate) const WRONG_MAX: u32 = 20;
/// How long wrong tokens are remembered.
pub(crate) const WINDOW: Duration = Duration::from_secs(60);
/// Sources remembered at once. When it is full of fresh ones, further sources are not counted.
const SOURCES_MAX: usize = 10_000;

/// Wrong tokens by source address; an IPv6 source is its /64 network.
#[derive(Debug, Default)]
pub(crate) struct Brake {
    sources: Mutex<HashMap<IpAddr, (Instant, u32)>>,
}

impl Brake {
    /// Counts a wrong token. `Some` is how long the source should wait.
    pub(crate) fn wrong(&self, source: IpAddr, now: Instant) -> Option<Duration> {
        let source = network(source);
        let mut sources = self.sources.lock();
        if sources.len() >= SOURCES_MAX && !sources.contains_key(&source) {
            sources.retain(|_, (since, _)| now.duration_since(*since) < WINDOW);
            if sources.len() >= SOURCES_MAX {
                return None;
            }
        }
        let (since, count) = sources.entry(source).or_insert((now, 0));
        let age = now.duration_since(*since);
        if age >= WINDOW {
            (*since, *count) = (now, 1);
            return None;
        }
        *count = count.saturating_add(1);
        (*count > WRONG_MAX).then(|| WINDOW - age)
    }
}

/// What one host is known by: its IPv4 address, or its IPv6 /64 network.
pub(crate) fn network(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_source_is_braked_after_many_wrong_tokens_and_let_go_after_the_window() {
        let brake = Brake::default();
        let start = Instant::now();
        let [a, b]: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap()];
        for _ in 0..WRONG_MAX {
            assert_eq!(brake.wrong(a, start), None);
        }
        let wait = brake.wrong(a, start + Duration::from_secs(10)).unwrap();
        assert_eq!(wait, Duration::from_secs(50));
        assert_eq!(brake.wrong(b, start), None, "another source");
        assert_eq!(brake.wrong(a, start + WINDOW), None, "a new window");
    }

    #[test]
    fn an_ipv6_network_is_one_source() {
        let brake = Brake::default();
        let now = Instant::now();
        let braked = (0..=WRONG_MAX).map(|i| brake.wrong(format!("2001:db8::{i:x}").parse().unwrap(), now)).last();
        assert!(braked.unwrap().is_some());
        assert_eq!(network("::ffff:192.0.2.1".parse().unwrap()), "192.0.2.1".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn memory_is_bounded_whatever_the_number_of_sources() {
        let brake = Brake::default();
        let now = Instant::now();
        for i in 0..SOURCES_MAX as u32 + 500 {
            brake.wrong(IpAddr::from(i.to_be_bytes()), now);
        }
        assert_eq!(brake.sources.lock().len(), SOURCES_MAX);
        brake.wrong(IpAddr::from([255, 0, 0, 1]), now + WINDOW);
        assert_eq!(brake.sources.lock().len(), 1);
    }
}
