//! Bounds on connections that have not sent their CONNECT: in total, for one client address, and in memory.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::metrics::Refusal;

/// What unfinished CONNECTs may occupy together. An ordinary one is a few hundred bytes, but each may be as large as a
/// packet may be, and there may be thousands.
const BYTES_MAX: usize = 64 * 1024 * 1024;

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    bytes: usize,
    per_ip: HashMap<IpAddr, usize>,
}

/// The counters; see [`GateConfig`](crate::GateConfig) for what the limits mean.
#[derive(Debug)]
pub(crate) struct Pending {
    counts: Mutex<Counts>,
    max: usize,
    max_per_ip: usize,
}

impl Pending {
    pub(crate) fn new(max: usize, max_per_ip: usize) -> Arc<Self> {
        Arc::new(Self { counts: Mutex::default(), max, max_per_ip })
    }

    /// Counts a new connection. `ip` is `None` while the client's address is not known, see [`Permit::assign`].
    pub(crate) fn admit(self: &Arc<Self>, ip: Option<IpAddr>) -> Result<Permit, Refusal> {
        let mut counts = self.counts.lock();
        if self.max != 0 && counts.total >= self.max {
            return Err(Refusal::Total);
        }
        let ip = ip.map(network);
        if let Some(ip) = ip {
            self.count_ip(&mut counts, ip)?;
        }
        counts.total += 1;
        Ok(Permit { pending: self.clone(), ip, bytes: 0 })
    }

    fn count_ip(&self, counts: &mut Counts, ip: IpAddr) -> Result<(), Refusal> {
        if self.max_per_ip == 0 {
            return Ok(());
        }
        let count = counts.per_ip.entry(ip).or_insert(0);
        if *count >= self.max_per_ip {
            return Err(Refusal::PerIp);
        }
        *count += 1;
        Ok(())
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        let counts = self.counts.lock();
        counts.total == 0 && counts.bytes == 0 && counts.per_ip.is_empty()
    }
}

/// One pending connection; dropped when it has sent its CONNECT or is gone.
#[derive(Debug)]
pub(crate) struct Permit {
    pending: Arc<Pending>,
    ip: Option<IpAddr>,
    bytes: usize,
}

impl Permit {
    /// Tells the client's address of a connection that was admitted without.
    pub(crate) fn assign(&mut self, ip: IpAddr) -> Result<(), Refusal> {
        if self.ip.is_none() {
            let ip = network(ip);
            self.pending.count_ip(&mut self.pending.counts.lock(), ip)?;
            self.ip = Some(ip);
        }
        Ok(())
    }

    /// Tells how many bytes the connection's CONNECT occupies by now.
    pub(crate) fn occupy(&mut self, bytes: usize) -> Result<(), Refusal> {
        if bytes > self.bytes {
            let mut counts = self.pending.counts.lock();
            let more = bytes - self.bytes;
            if counts.bytes + more > BYTES_MAX {
                return Err(Refusal::Memory);
            }
            counts.bytes += more;
            self.bytes = bytes;
        }
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = self.pending.counts.lock();
        counts.total -= 1;
        counts.bytes -= self.bytes;
        if let Some(Entry::Occupied(mut entry)) = self.ip.map(|ip| counts.per_ip.entry(ip)) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

/// What one host is known by: its IPv4 address, or the /64 network from which it can choose IPv6 addresses at will.
fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn total_and_address_are_bounded_and_come_back() {
        let pending = Pending::new(3, 2);
        let first = pending.admit(ip("10.0.0.1")).unwrap();
        let second = pending.admit(ip("::ffff:10.0.0.1")).unwrap();
        assert_eq!(pending.admit(ip("10.0.0.1")).unwrap_err(), Refusal::PerIp);
        let third = pending.admit(ip("10.0.0.2")).unwrap();
        assert_eq!(pending.admit(ip("10.0.0.3")).unwrap_err(), Refusal::Total);
        drop(first);
        let fourth = pending.admit(ip("10.0.0.1")).unwrap();
        drop((second, third, fourth));
        assert!(pending.is_empty());
    }

    #[test]
    fn address_told_later_counts_from_then_on() {
        let pending = Pending::new(0, 1);
        let mut first = pending.admit(None).unwrap();
        let mut second = pending.admit(None).unwrap();
        first.assign("2001:db8::1".parse().unwrap()).unwrap();
        assert_eq!(second.assign("2001:db8::2".parse().unwrap()), Err(Refusal::PerIp));
        drop((first, second));
        assert!(pending.is_empty());
    }

    #[test]
    fn memory_is_bounded_over_all() {
        let pending = Pending::new(0, 0);
        let mut first = pending.admit(None).unwrap();
        let mut second = pending.admit(None).unwrap();
        first.occupy(BYTES_MAX - 10).unwrap();
        assert_eq!(second.occupy(11), Err(Refusal::Memory));
        second.occupy(10).unwrap();
        second.occupy(10).unwrap();
        drop(first);
        second.occupy(BYTES_MAX).unwrap();
        drop(second);
        assert!(pending.is_empty());
    }

    #[test]
    fn zero_is_unlimited() {
        let pending = Pending::new(0, 0);
        let permits: Vec<_> = (0..1000).map(|_| pending.admit(ip("10.0.0.1")).unwrap()).collect();
        drop(permits);
        assert!(pending.is_empty());
    }
}
