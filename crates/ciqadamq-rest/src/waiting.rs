//! Requests that wait to hear whether a token has rotated, counted by where they come from: one source leaves places to others.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;

use parking_lot::Mutex;

use crate::brake::network;

/// Requests of one source that may wait. A secret has places for four times as many.
pub(crate) const WAITING_MAX: usize = 64;

/// How many wait by source address; an IPv6 source is its /64 network. No larger than the number of those who wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Mutex<HashMap<Option<IpAddr>, usize>>);

/// A place among them, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    waiting: &'a Waiting,
    source: Option<IpAddr>,
}

impl Waiting {
    /// A place for one more, unless the source has them all.
    pub(crate) fn place(&self, source: Option<IpAddr>) -> Option<Place<'_>> {
        let source = source.map(network);
        let mut waiting = self.0.lock();
        let count = waiting.entry(source).or_default();
        if *count >= WAITING_MAX {
            return None;
        }
        *count += 1;
        Some(Place { waiting: self, source })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Entry::Occupied(mut entry) = self.waiting.0.lock().entry(self.source) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_source_has_so_many_places_and_gives_them_back() {
        let waiting = Waiting::default();
        let [a, b]: [Option<IpAddr>; 2] = ["192.0.2.1", "192.0.2.2"].map(|ip| Some(ip.parse().unwrap()));
        let mut places: Vec<_> = (0..WAITING_MAX).map(|_| waiting.place(a).unwrap()).collect();
        assert!(waiting.place(a).is_none());
        assert!(waiting.place(b).is_some() && waiting.place(None).is_some(), "others have theirs");
        places.pop();
        assert!(waiting.place(a).is_some());
        places.clear();
        assert!(waiting.0.lock().is_empty(), "nothing is kept of who is gone");
    }
}
