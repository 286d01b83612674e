//! PROXY protocol: reading what a load balancer sends, writing what the engine reads.
//!
//! Own code, since the crates at hand want the whole header at once and would have to be fed by guessing: here the header
//! may arrive byte by byte, and not one byte of what follows it is taken from the socket.
//! Format: <https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt>.

mod parse;
mod read;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

pub(crate) use read::read_header;

/// The first bytes of a version 2 header.
const V2_SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY.
const V2_PROXY: u8 = 0x21;
/// TCP over IPv4, TCP over IPv6.
const V2_TCP4: u8 = 0x11;
const V2_TCP6: u8 = 0x21;

/// What a header says of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Announced {
    /// The client's address, and the one it connected to.
    Proxied { source: SocketAddr, destination: SocketAddr },
    /// The sender speaks for itself (a health check), or cannot say whom it speaks for.
    Own,
}

/// A header that is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// A version 2 header: 28 bytes for an IPv4 source, 52 for IPv6. A destination of the other family is adapted to it.
pub(crate) fn encode_v2(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let mut header = Vec::with_capacity(52);
    header.extend_from_slice(&V2_SIGNATURE);
    header.push(V2_PROXY);
    match (source.ip(), destination.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            header.extend_from_slice(&[V2_TCP4, 0, 12]);
            header.extend_from_slice(&from.octets());
            header.extend_from_slice(&to.octets());
        }
        (IpAddr::V4(from), IpAddr::V6(_)) => {
            // The engine looks at the source alone, and must see IPv4 for what it is.
            header.extend_from_slice(&[V2_TCP4, 0, 12]);
            header.extend_from_slice(&from.octets());
            header.extend_from_slice(&Ipv4Addr::UNSPECIFIED.octets());
        }
        (IpAddr::V6(from), to) => {
            header.extend_from_slice(&[V2_TCP6, 0, 36]);
            header.extend_from_slice(&from.octets());
            header.extend_from_slice(&to_v6(to).octets());
        }
    }
    header.extend_from_slice(&source.port().to_be_bytes());
    header.extend_from_slice(&destination.port().to_be_bytes());
    header
}

fn to_v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}
