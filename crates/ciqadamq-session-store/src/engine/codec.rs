//! The engine's messages and connections as bytes. The store keeps them without knowing what they are.

use std::collections::HashMap;

use rmqtt::codec::types::Publish as Packet;
use rmqtt::types::{ConnectInfo, From, Publish, SubscriptionOptions};
use serde::{Deserialize, Serialize};

/// Version of the encodings here.
const VERSION: u8 = 1;
/// Origins remembered while many messages are read.
const ORIGINS_MAX: usize = 10_000;

#[derive(Serialize)]
struct Written<'a> {
    version: u8,
    // A value of its own inside, so that one of many messages is decoded once.
    from: serde_bytes_like::Bytes<'a>,
    created: Option<i64>,
    packet: &'a Packet,
}

#[derive(Deserialize)]
struct Read<'a> {
    version: u8,
    #[serde(borrow)]
    from: &'a [u8],
    created: Option<i64>,
    packet: Packet,
}

/// A slice that is written as bytes, and not as a sequence of numbers.
mod serde_bytes_like {
    pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

    impl serde::Serialize for Bytes<'_> {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_bytes(self.0)
        }
    }
}

/// A message with its origin and its age.
pub(super) fn encode_message(from: &From, publish: &Publish) -> postcard::Result<Vec<u8>> {
    let from = postcard::to_stdvec(from)?;
    let mut out = Vec::with_capacity(64 + from.len() + publish.topic.len() + publish.payload.len());
    let (from, created) = (serde_bytes_like::Bytes(&from), publish.create_time);
    postcard::to_io(&Written { version: VERSION, from, created, packet: &publish.inner }, &mut out)?;
    Ok(out)
}

/// Decodes messages, and shares what they have in common.
#[derive(Default)]
pub(super) struct Decoder {
    origins: HashMap<Vec<u8>, From>,
}

impl Decoder {
    /// `None` if it was written by another version.
    pub(super) fn message(&mut self, bytes: &[u8]) -> Option<(From, Publish)> {
        let read: Read<'_> = postcard::from_bytes(bytes).ok()?;
        if read.version != VERSION {
            return None;
        }
        let from = match self.origins.get(read.from) {
            Some(from) => from.clone(),
            None => {
                let from: From = postcard::from_bytes(read.from).ok()?;
                if self.origins.len() >= ORIGINS_MAX {
                    self.origins.clear();
                }
                self.origins.insert(read.from.to_vec(), from.clone());
                from
            }
        };
        Some((from, Publish::new(Box::new(read.packet), None, None, read.created)))
    }
}

/// How a client connected: without password, certificate, and what else may be secret.
pub(super) fn encode_connection(connection: &ConnectInfo) -> postcard::Result<Vec<u8>> {
    let mut connection = connection.clone();
    match &mut connection {
        ConnectInfo::V3(_, connect) => {
            connect.password = None;
            connect.cert = None;
        }
        ConnectInfo::V5(_, connect) => {
            connect.password = None;
            connect.cert = None;
            connect.auth_data = None;
            connect.user_properties.clear();
        }
    }
    postcard::to_stdvec(&(VERSION, connection))
}

pub(super) fn decode_connection(bytes: &[u8]) -> Option<ConnectInfo> {
    let (version, connection): (u8, ConnectInfo) = postcard::from_bytes(bytes).ok()?;
    (version == VERSION).then_some(connection)
}

pub(super) fn encode_options(options: &SubscriptionOptions) -> postcard::Result<Vec<u8>> {
    postcard::to_stdvec(&(VERSION, options))
}

pub(super) fn decode_options(bytes: &[u8]) -> Option<SubscriptionOptions> {
    let (version, options): (u8, SubscriptionOptions) = postcard::from_bytes(bytes).ok()?;
    (version == VERSION).then_some(options)
}

/// Tells a message that is sent again from another one under the same Packet Identifier.
pub(super) fn fingerprint(publish: &Publish) -> u64 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(publish.topic.as_bytes());
    hasher.update(&[0, publish.retain.into()]);
    hasher.update(&publish.payload);
    let len = publish.payload.len() as u64;
    u64::from(hasher.finalize()) << 32 | (len & 0xFFFF_FFFF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rmqtt::codec::types::QoS;
    use rmqtt::codec::v5::PublishProperties;
    use rmqtt::types::{ClientId, Id};

    #[test]
    fn a_message_comes_back_as_it_was() {
        let packet = Packet {
            dup: false,
            retain: true,
            qos: QoS::ExactlyOnce,
            topic: "a/b".into(),
            packet_id: std::num::NonZeroU16::new(7),
            payload: vec![1u8; 1000].into(),
            properties: Some(PublishProperties { content_type: Some("x".into()), ..Default::default() }),
        };
        let publish = Publish::from(packet.clone()).create_time(123);
        let from = From::from_custom(Id::from(1, ClientId::from("c")));
        let bytes = encode_message(&from, &publish).unwrap();
        assert!(bytes.len() < 1100, "{} bytes", bytes.len());
        let mut decoder = Decoder::default();
        for _ in 0..2 {
            let (origin, back) = decoder.message(&bytes).unwrap();
            assert_eq!((*back.inner == packet, back.create_time, origin.id == from.id), (true, Some(123), true));
        }
        assert!(decoder.message(&bytes[..10]).is_none());
    }

    #[test]
    fn a_connection_is_kept_without_its_password() {
        let connect = rmqtt::codec::v5::Connect {
            username: Some("alice".into()),
            password: Some("correct horse".into()),
            session_expiry_interval_secs: 77,
            ..Default::default()
        };
        let id = Id::from(1, ClientId::from("c"));
        let bytes = encode_connection(&ConnectInfo::V5(id, Box::new(connect))).unwrap();
        assert!(!bytes.windows(7).any(|w| w == b"correct"));
        let Some(ConnectInfo::V5(_, back)) = decode_connection(&bytes) else { panic!("lost") };
        assert_eq!((back.password, back.session_expiry_interval_secs), (None, 77));
        assert!(decode_connection(b"").is_none());
    }
}
