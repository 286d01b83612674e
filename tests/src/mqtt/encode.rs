//! Packets that a client sends.

use super::properties::Properties;

/// Protocol version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 3.1
    V31 = 3,
    /// 3.1.1
    V311 = 4,
    /// 5.0
    V5 = 5,
}

impl Version {
    /// The versions in use.
    pub const COMMON: [Self; 2] = [Self::V311, Self::V5];

    /// Whether it is 5.
    pub fn is_v5(self) -> bool {
        self == Self::V5
    }

    /// One value for 5, another for the others.
    pub fn pick<T>(self, v5: T, v3: T) -> T {
        if self.is_v5() { v5 } else { v3 }
    }
}

/// Types of control packets.
#[allow(missing_docs)] // the names are those of the standard
pub mod kind {
    pub const CONNECT: u8 = 1;
    pub const CONNACK: u8 = 2;
    pub const PUBLISH: u8 = 3;
    pub const PUBACK: u8 = 4;
    pub const PUBREC: u8 = 5;
    pub const PUBREL: u8 = 6;
    pub const PUBCOMP: u8 = 7;
    pub const SUBSCRIBE: u8 = 8;
    pub const SUBACK: u8 = 9;
    pub const UNSUBSCRIBE: u8 = 10;
    pub const UNSUBACK: u8 = 11;
    pub const PINGREQ: u8 = 12;
    pub const PINGRESP: u8 = 13;
    pub const DISCONNECT: u8 = 14;
}

/// A variable byte integer.
pub fn varint(mut n: usize) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let byte = (n % 128) as u8;
        n /= 128;
        out.push(if n > 0 { byte | 0x80 } else { byte });
        if n == 0 {
            return out;
        }
    }
}

/// Bytes with their length before them.
///
/// # Panics
/// If they are more than 65,535.
pub fn text(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    let len = u16::try_from(bytes.len()).unwrap();
    [&len.to_be_bytes(), bytes].concat()
}

/// A whole packet around `body`.
pub fn packet(kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
    [&[(kind << 4) | flags], varint(body.len()).as_slice(), body].concat()
}

/// A message to send.
#[derive(Debug, Clone, Default)]
pub struct Publish {
    /// Topic Name; any bytes
    pub topic: Vec<u8>,
    /// payload
    pub payload: Vec<u8>,
    /// 0, 1 or 2
    pub qos: u8,
    /// RETAIN
    pub retain: bool,
    /// DUP
    pub dup: bool,
    /// v5
    pub properties: Properties,
}

impl Publish {
    /// A message that is not retained.
    pub fn new(topic: impl AsRef<[u8]>, payload: impl AsRef<[u8]>, qos: u8) -> Self {
        Self { topic: topic.as_ref().into(), payload: payload.as_ref().into(), qos, ..Self::default() }
    }

    /// Retained.
    #[must_use]
    pub fn retained(mut self) -> Self {
        self.retain = true;
        self
    }

    /// With a Message Expiry Interval in seconds.
    #[must_use]
    pub fn expiring(mut self, secs: u32) -> Self {
        self.properties = self.properties.int(super::id::MESSAGE_EXPIRY, secs);
        self
    }
}

/// PUBLISH; `id` is used if the QoS is above 0.
pub fn publish(version: Version, message: &Publish, id: u16) -> Vec<u8> {
    let mut body = text(&message.topic);
    if message.qos > 0 {
        body.extend(id.to_be_bytes());
    }
    if version.is_v5() {
        body.extend(message.properties.encode());
    }
    body.extend(&message.payload);
    packet(kind::PUBLISH, (u8::from(message.dup) << 3) | (message.qos << 1) | u8::from(message.retain), &body)
}

/// SUBSCRIBE; a filter's byte is its subscription options.
pub fn subscribe(version: Version, id: u16, filters: &[(&str, u8)]) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    if version.is_v5() {
        body.extend(Properties::new().encode());
    }
    for (filter, options) in filters {
        body.extend(text(filter));
        body.push(*options);
    }
    packet(kind::SUBSCRIBE, 2, &body)
}

/// UNSUBSCRIBE
pub fn unsubscribe(version: Version, id: u16, filters: &[&str]) -> Vec<u8> {
    let mut body = id.to_be_bytes().to_vec();
    if version.is_v5() {
        body.extend(Properties::new().encode());
    }
    for filter in filters {
        body.extend(text(filter));
    }
    packet(kind::UNSUBSCRIBE, 2, &body)
}
