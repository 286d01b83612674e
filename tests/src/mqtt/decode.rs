//! Packets that a broker sends.

use super::encode::{Version, kind};
use super::properties::{Properties, Value};

/// A message that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Topic Name
    pub topic: String,
    /// payload
    pub payload: Vec<u8>,
    /// 0, 1 or 2
    pub qos: u8,
    /// RETAIN
    pub retain: bool,
    /// DUP
    pub dup: bool,
    /// if the QoS is above 0
    pub packet_id: Option<u16>,
    /// v5
    pub properties: Properties,
}

impl Message {
    /// The payload as text, for assertions.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.payload).into_owned()
    }
}

/// A packet that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // the names are those of the standard
pub enum Packet {
    Connack {
        session_present: bool,
        code: u8,
        properties: Properties,
    },
    Publish(Message),
    /// PUBACK, PUBREC, PUBREL or PUBCOMP
    Ack {
        kind: u8,
        id: u16,
        code: u8,
        properties: Properties,
    },
    Suback {
        id: u16,
        codes: Vec<u8>,
    },
    Unsuback {
        id: u16,
        codes: Vec<u8>,
    },
    Pingresp,
    Disconnect {
        code: u8,
        properties: Properties,
    },
}

/// Reads one packet off the front of `bytes`; `None` if it is not complete yet, else also its length.
pub fn parse(version: Version, bytes: &[u8]) -> Result<Option<(Packet, usize)>, String> {
    let mut reader = Reader { bytes, at: 0 };
    let (Some(first), Some(len)) = (reader.maybe_byte(), reader.maybe_varint()?) else { return Ok(None) };
    let end = reader.at + len;
    if bytes.len() < end {
        return Ok(None);
    }
    let body = Reader { bytes: &bytes[..end], at: reader.at };
    Ok(Some((read(version, first, body)?, end)))
}

fn read(version: Version, first: u8, mut body: Reader<'_>) -> Result<Packet, String> {
    let v5 = version.is_v5();
    Ok(match first >> 4 {
        kind::CONNACK => {
            let (flags, code) = (body.byte()?, body.byte()?);
            let properties = if body.is_empty() { Properties::new() } else { body.properties()? };
            Packet::Connack { session_present: flags & 1 == 1, code, properties }
        }
        kind::PUBLISH => {
            let qos = (first >> 1) & 3;
            let topic = String::from_utf8(body.text()?).map_err(|e| e.to_string())?;
            let packet_id = if qos > 0 { Some(body.short()?) } else { None };
            let properties = if v5 { body.properties()? } else { Properties::new() };
            let (retain, dup) = (first & 1 == 1, first & 8 == 8);
            Packet::Publish(Message { topic, payload: body.rest(), qos, retain, dup, packet_id, properties })
        }
        kind @ (kind::PUBACK | kind::PUBREC | kind::PUBREL | kind::PUBCOMP) => {
            let id = body.short()?;
            let code = if body.is_empty() { 0 } else { body.byte()? };
            let properties = if body.is_empty() { Properties::new() } else { body.properties()? };
            Packet::Ack { kind, id, code, properties }
        }
        kind::SUBACK | kind::UNSUBACK => {
            let id = body.short()?;
            if v5 {
                body.properties()?;
            }
            let codes = body.rest();
            if first >> 4 == kind::SUBACK { Packet::Suback { id, codes } } else { Packet::Unsuback { id, codes } }
        }
        kind::PINGRESP => Packet::Pingresp,
        kind::DISCONNECT => {
            let code = if body.is_empty() { 0 } else { body.byte()? };
            let properties = if body.is_empty() { Properties::new() } else { body.properties()? };
            Packet::Disconnect { code, properties }
        }
        other => return Err(format!("a broker does not send packets of type {other}")),
    })
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    fn maybe_byte(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.at).copied()?;
        self.at += 1;
        Some(byte)
    }

    fn maybe_varint(&mut self) -> Result<Option<usize>, String> {
        let mut n = 0;
        for shift in [0, 7, 14, 21] {
            let Some(byte) = self.maybe_byte() else { return Ok(None) };
            n |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(Some(n));
            }
        }
        Err("a length of more than four bytes".into())
    }

    fn byte(&mut self) -> Result<u8, String> {
        self.maybe_byte().ok_or_else(|| "the packet ends too early".into())
    }

    fn short(&mut self) -> Result<u16, String> {
        Ok(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }

    fn int(&mut self) -> Result<u32, String> {
        Ok(u32::from(self.short()?) << 16 | u32::from(self.short()?))
    }

    fn varint(&mut self) -> Result<usize, String> {
        self.maybe_varint()?.ok_or_else(|| "the packet ends too early".into())
    }

    fn take(&mut self, len: usize) -> Result<Vec<u8>, String> {
        let taken = self.bytes.get(self.at..self.at + len).ok_or("the packet ends too early")?;
        self.at += len;
        Ok(taken.to_vec())
    }

    fn text(&mut self) -> Result<Vec<u8>, String> {
        let len = self.short()?;
        self.take(len.into())
    }

    fn rest(&mut self) -> Vec<u8> {
        let rest = self.bytes[self.at..].to_vec();
        self.at = self.bytes.len();
        rest
    }

    fn properties(&mut self) -> Result<Properties, String> {
        let len = self.varint()?;
        let end = self.at + len;
        let mut list = Vec::new();
        while self.at < end {
            let id = self.byte()?;
            let value = match id {
                0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28 | 0x29 | 0x2A => Value::Byte(self.byte()?),
                0x13 | 0x21 | 0x22 | 0x23 => Value::Short(self.short()?),
                0x02 | 0x11 | 0x18 | 0x27 => Value::Int(self.int()?),
                0x0B => Value::Varint(self.varint()? as u32),
                0x03 | 0x08 | 0x09 | 0x12 | 0x15 | 0x16 | 0x1A | 0x1C | 0x1F => Value::Bytes(self.text()?),
                0x26 => Value::Pair(self.text()?, self.text()?),
                other => return Err(format!("there is no property {other:#04x}")),
            };
            list.push((id, value));
        }
        Ok(Properties(list))
    }
}

#[cfg(test)]
mod tests {
    use super::super::encode::{Publish, publish};
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for version in Version::COMMON {
            let sent = Publish::new("a/b", "hello", 2).retained().expiring(7);
            let bytes = publish(version, &sent, 513);
            for cut in 0..bytes.len() {
                assert_eq!(parse(version, &bytes[..cut]), Ok(None), "{cut}");
            }
            let (packet, len) = parse(version, &bytes).unwrap().unwrap();
            assert_eq!(len, bytes.len());
            let Packet::Publish(message) = packet else { panic!("{packet:?}") };
            assert_eq!((message.topic.as_str(), message.text().as_str(), message.qos), ("a/b", "hello", 2));
            assert_eq!((message.packet_id, message.retain), (Some(513), true));
            let expiry = message.properties.number(super::super::id::MESSAGE_EXPIRY);
            assert_eq!(expiry, version.pick(Some(7), None));
        }
    }
}
