//! The two header formats as functions over bytes.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use super::{Announced, Malformed};

/// The longest version 1 line, its line end included.
pub(super) const V1_BYTES_MAX: usize = 107;
/// The first bytes of a version 1 line.
pub(super) const V1_PREFIX: &[u8] = b"PROXY ";
/// Source and destination of TCP over IPv6: the largest address block that is looked at.
pub(super) const V2_ADDRESSES_MAX: usize = 36;

/// Parses a version 1 line, which includes its line end.
pub(super) fn v1(line: &[u8]) -> Result<Announced, Malformed> {
    let text = line.strip_prefix(V1_PREFIX).and_then(|rest| rest.strip_suffix(b"\r\n")).ok_or(Malformed)?;
    if line.len() > V1_BYTES_MAX {
        return Err(Malformed);
    }
    let text = std::str::from_utf8(text).map_err(|_| Malformed)?;
    let mut words = text.split(' ');
    match words.next() {
        // Whatever follows UNKNOWN has to be ignored.
        Some("UNKNOWN") => Ok(Announced::Own),
        Some("TCP4") => v1_addresses::<Ipv4Addr>(words),
        Some("TCP6") => v1_addresses::<Ipv6Addr>(words),
        _ => Err(Malformed),
    }
}

fn v1_addresses<'a, Ip>(mut words: impl Iterator<Item = &'a str>) -> Result<Announced, Malformed>
where
    Ip: FromStr + Into<std::net::IpAddr>,
{
    let mut ip = || words.next().and_then(|word| word.parse::<Ip>().ok()).ok_or(Malformed);
    let (from, to) = (ip()?, ip()?);
    let mut port = || words.next().and_then(v1_port).ok_or(Malformed);
    let (from_port, to_port) = (port()?, port()?);
    if words.next().is_some() {
        return Err(Malformed);
    }
    Ok(Announced::Proxied {
        source: SocketAddr::new(from.into(), from_port),
        destination: SocketAddr::new(to.into(), to_port),
    })
}

fn v1_port(word: &str) -> Option<u16> {
    // `parse` would take a plus sign too.
    word.bytes().all(|b| b.is_ascii_digit()).then(|| word.parse().ok()).flatten()
}

/// Judges the four bytes after a version 2 signature: how many bytes follow, and how many of them are addresses that
/// count.
pub(super) fn v2_lengths(head: [u8; 4]) -> Result<(usize, usize), Malformed> {
    let [version_command, family, len_high, len_low] = head;
    let len = usize::from(u16::from_be_bytes([len_high, len_low]));
    let addresses = match (version_command, family) {
        // LOCAL: the receiver must ignore the family and skip the block.
        (0x20, _) => 0,
        (0x21, super::V2_TCP4) => 12,
        (0x21, super::V2_TCP6) => V2_ADDRESSES_MAX,
        // Unspecified, UDP and Unix sockets, which are valid but say nothing that the engine could use.
        (0x21, 0x00 | 0x12 | 0x22 | 0x31 | 0x32) => 0,
        _ => return Err(Malformed),
    };
    if len < addresses { Err(Malformed) } else { Ok((len, addresses)) }
}

/// Parses the address block of a version 2 header: 12 bytes for IPv4, 36 for IPv6, none if there is nothing to say.
pub(super) fn v2_addresses(block: &[u8]) -> Result<Announced, Malformed> {
    match block.len() {
        0 => Ok(Announced::Own),
        12 => Ok(Announced::Proxied {
            source: SocketAddr::new(Ipv4Addr::from(at::<4>(block, 0)?).into(), u16::from_be_bytes(at(block, 8)?)),
            destination: SocketAddr::new(Ipv4Addr::from(at::<4>(block, 4)?).into(), u16::from_be_bytes(at(block, 10)?)),
        }),
        V2_ADDRESSES_MAX => Ok(Announced::Proxied {
            source: SocketAddr::new(Ipv6Addr::from(at::<16>(block, 0)?).into(), u16::from_be_bytes(at(block, 32)?)),
            destination: SocketAddr::new(
                Ipv6Addr::from(at::<16>(block, 16)?).into(),
                u16::from_be_bytes(at(block, 34)?),
            ),
        }),
        _ => Err(Malformed),
    }
}

fn at<const N: usize>(block: &[u8], start: usize) -> Result<[u8; N], Malformed> {
    block.get(start..start + N).and_then(|bytes| bytes.try_into().ok()).ok_or(Malformed)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::super::encode_v2;
    use super::*;

    fn proxied(source: &str, destination: &str) -> Announced {
        Announced::Proxied { source: source.parse().unwrap(), destination: destination.parse().unwrap() }
    }

    #[test]
    fn v1_lines_of_the_specification_are_understood() {
        assert_eq!(
            v1(b"PROXY TCP4 255.255.255.255 10.0.0.1 65535 1883\r\n"),
            Ok(proxied("255.255.255.255:65535", "10.0.0.1:1883"))
        );
        let longest = b"PROXY TCP6 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n";
        let far = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535";
        assert_eq!(v1(longest), Ok(proxied(far, far)));
        assert_eq!(v1(b"PROXY UNKNOWN\r\n"), Ok(Announced::Own));
        assert_eq!(v1(b"PROXY UNKNOWN anything at all\r\n"), Ok(Announced::Own));
    }

    #[test]
    fn malformed_v1_lines_are_refused() {
        for line in [
            &b"PROXY \r\n"[..],
            b"PROXY TCP4\r\n",
            b"PROXY TCP4 10.0.0.1 10.0.0.2 1\r\n",
            b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2 3\r\n",
            b"PROXY TCP4 10.0.0.1  10.0.0.2 1 2\r\n",
            b"PROXY TCP4 10.0.0.1 10.0.0.2 +1 2\r\n",
            b"PROXY TCP4 10.0.0.1 10.0.0.2 65536 2\r\n",
            b"PROXY TCP4 ::1 ::1 1 2\r\n",
            b"PROXY TCP6 10.0.0.1 10.0.0.2 1 2\r\n",
            b"PROXY UDP4 10.0.0.1 10.0.0.2 1 2\r\n",
            b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\n",
            b"proxy TCP4 10.0.0.1 10.0.0.2 1 2\r\n",
            b"PROXY UNKNOWNX\r\n",
            b"PROXY TCP4 \xff.0.0.1 10.0.0.2 1 2\r\n",
        ] {
            assert_eq!(v1(line), Err(Malformed), "{}", line.escape_ascii());
        }
    }

    #[test]
    fn v2_heads_tell_what_follows() {
        assert_eq!(v2_lengths([0x21, 0x11, 0, 12]), Ok((12, 12)));
        assert_eq!(v2_lengths([0x21, 0x11, 1, 0]), Ok((256, 12)));
        assert_eq!(v2_lengths([0x21, 0x21, 0, 36]), Ok((36, 36)));
        assert_eq!(v2_lengths([0x20, 0x00, 0, 0]), Ok((0, 0)));
        assert_eq!(v2_lengths([0x20, 0xff, 0, 9]), Ok((9, 0)));
        assert_eq!(v2_lengths([0x21, 0x31, 0, 216]), Ok((216, 0)));
        assert_eq!(v2_lengths([0x21, 0x11, 0, 11]), Err(Malformed));
        assert_eq!(v2_lengths([0x21, 0x21, 0, 12]), Err(Malformed));
        assert_eq!(v2_lengths([0x21, 0x41, 0, 12]), Err(Malformed));
        assert_eq!(v2_lengths([0x22, 0x11, 0, 12]), Err(Malformed));
        assert_eq!(v2_lengths([0x11, 0x11, 0, 12]), Err(Malformed));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parsers_panic(
            line in prop::collection::vec(any::<u8>(), 0..200),
            words in "PROXY (TCP4|TCP6|UNKNOWN)?[ 0-9a-f:.]{0,90}\r\n",
            head in any::<[u8; 4]>(),
            block in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            // Only that they return matters.
            let _ = (v1(&line), v1(words.as_bytes()), v2_addresses(&block));
            if let Ok((len, addresses)) = v2_lengths(head) {
                prop_assert!(addresses <= len && addresses <= V2_ADDRESSES_MAX);
            }
        }

        #[test]
        fn addresses_come_back_as_they_were_written(v6 in any::<bool>(), from in any::<u128>(), to in any::<u128>(), ports in any::<(u16, u16)>()) {
            let ip = |bits: u128| -> std::net::IpAddr {
                if v6 { Ipv6Addr::from(bits).into() } else { Ipv4Addr::from(bits as u32).into() }
            };
            let expected = Announced::Proxied {
                source: SocketAddr::new(ip(from), ports.0),
                destination: SocketAddr::new(ip(to), ports.1),
            };
            let line = format!("PROXY {} {} {} {} {}\r\n", if v6 { "TCP6" } else { "TCP4" }, ip(from), ip(to), ports.0, ports.1);
            prop_assert_eq!(v1(line.as_bytes()), Ok(expected));

            let header = encode_v2(SocketAddr::new(ip(from), ports.0), SocketAddr::new(ip(to), ports.1));
            let (len, addresses) = v2_lengths(header[12..16].try_into().unwrap()).unwrap();
            prop_assert_eq!(len, header.len() - 16);
            prop_assert_eq!(v2_addresses(&header[16..16 + addresses]), Ok(expected));
        }
    }
}
