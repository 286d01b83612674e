//! By what a bound or a brake knows a host.

use std::net::{IpAddr, Ipv6Addr};

/// What one host is known by: its IPv4 address, or the /64 network from which it can choose IPv6 addresses at will.
pub(crate) fn host(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        other => other,
    }
}
