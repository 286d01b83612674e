//! Properties of MQTT 5.

use super::encode::{text, varint};

/// Identifiers of properties.
#[allow(missing_docs)] // the names are those of the standard
pub mod id {
    pub const PAYLOAD_FORMAT: u8 = 0x01;
    pub const MESSAGE_EXPIRY: u8 = 0x02;
    pub const CONTENT_TYPE: u8 = 0x03;
    pub const SUBSCRIPTION_IDENTIFIER: u8 = 0x0B;
    pub const SESSION_EXPIRY: u8 = 0x11;
    pub const WILL_DELAY: u8 = 0x18;
    pub const REASON_STRING: u8 = 0x1F;
    pub const RECEIVE_MAXIMUM: u8 = 0x21;
    pub const TOPIC_ALIAS_MAXIMUM: u8 = 0x22;
    pub const TOPIC_ALIAS: u8 = 0x23;
    pub const USER_PROPERTY: u8 = 0x26;
}

/// What a property holds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Value {
    Byte(u8),
    Short(u16),
    Int(u32),
    Varint(u32),
    Bytes(Vec<u8>),
    Pair(Vec<u8>, Vec<u8>),
}

/// A list of properties.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Properties(pub Vec<(u8, Value)>);

impl Properties {
    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more.
    #[must_use]
    pub fn with(mut self, id: u8, value: Value) -> Self {
        self.0.push((id, value));
        self
    }

    /// With a four byte integer more.
    #[must_use]
    pub fn int(self, id: u8, value: u32) -> Self {
        self.with(id, Value::Int(value))
    }

    /// The first with that identifier.
    pub fn get(&self, id: u8) -> Option<&Value> {
        self.0.iter().find(|(known, _)| *known == id).map(|(_, value)| value)
    }

    /// The first with that identifier, as a number.
    pub fn number(&self, id: u8) -> Option<u32> {
        match self.get(id)? {
            Value::Byte(n) => Some((*n).into()),
            Value::Short(n) => Some((*n).into()),
            Value::Int(n) | Value::Varint(n) => Some(*n),
            Value::Bytes(_) | Value::Pair(..) => None,
        }
    }

    /// As they stand in a packet, with their length.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for (id, value) in &self.0 {
            body.push(*id);
            match value {
                Value::Byte(n) => body.push(*n),
                Value::Short(n) => body.extend(n.to_be_bytes()),
                Value::Int(n) => body.extend(n.to_be_bytes()),
                Value::Varint(n) => body.extend(varint(*n as usize)),
                Value::Bytes(bytes) => body.extend(text(bytes)),
                Value::Pair(key, value) => body.extend([text(key), text(value)].concat()),
            }
        }
        [varint(body.len()), body].concat()
    }
}
