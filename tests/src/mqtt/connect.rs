//! CONNECT, and what a broker may answer.

use super::encode::{Version, kind, packet, text};
use super::properties::{Properties, Value, id};
use super::stream::Link;
use super::{Client, Publish};

/// A Will Message.
#[derive(Debug, Clone)]
pub struct Will {
    /// topic, payload, QoS, RETAIN and properties
    pub message: Publish,
}

/// Everything a CONNECT may say. Fields are public: tests say odd things.
#[derive(Debug, Clone)]
pub struct Connect {
    /// protocol version
    pub version: Version,
    /// transport
    pub link: Link,
    /// Client Identifier
    pub client_id: Vec<u8>,
    /// User Name
    pub username: Option<Vec<u8>>,
    /// Password
    pub password: Option<Vec<u8>>,
    /// Clean Session or Clean Start
    pub clean: bool,
    /// seconds
    pub keep_alive: u16,
    /// Will Message
    pub will: Option<Will>,
    /// v5
    pub properties: Properties,
    /// the Connect Flags, if they are to be others than what follows from the rest
    pub flags: Option<u8>,
}

/// What came back.
#[derive(Debug)]
pub enum Answer {
    /// the client is in
    Accepted(Box<Client>, Connack),
    /// CONNACK with this code, and the connection was closed
    Refused(u8),
    /// the connection was closed without a CONNACK
    Closed,
}

/// A successful CONNACK.
#[derive(Debug, Clone)]
pub struct Connack {
    /// Session Present
    pub session_present: bool,
    /// v5
    pub properties: Properties,
}

impl Connect {
    /// A clean session with a client id and nothing else.
    pub fn new(version: Version, link: Link, client_id: impl AsRef<[u8]>) -> Self {
        Self {
            version,
            link,
            client_id: client_id.as_ref().into(),
            username: None,
            password: None,
            clean: true,
            keep_alive: 60,
            will: None,
            properties: Properties::new(),
            flags: None,
        }
    }

    /// With credentials.
    #[must_use]
    pub fn login(mut self, username: impl AsRef<[u8]>, password: impl AsRef<[u8]>) -> Self {
        self.username = Some(username.as_ref().into());
        self.password = Some(password.as_ref().into());
        self
    }

    /// With a session that outlives the connection, by `secs` in v5 and by what the broker is set to before.
    #[must_use]
    pub fn persistent(mut self, secs: u32) -> Self {
        self.clean = false;
        self.session_expiry(secs)
    }

    /// With a Session Expiry Interval (v5).
    #[must_use]
    pub fn session_expiry(mut self, secs: u32) -> Self {
        self.properties = self.properties.int(id::SESSION_EXPIRY, secs);
        self
    }

    /// With a Receive Maximum (v5).
    #[must_use]
    pub fn receive_maximum(mut self, max: u16) -> Self {
        self.properties = self.properties.with(id::RECEIVE_MAXIMUM, Value::Short(max));
        self
    }

    /// With a Will Message.
    #[must_use]
    pub fn will(mut self, message: Publish) -> Self {
        self.will = Some(Will { message });
        self
    }

    /// With a Keep Alive in seconds.
    #[must_use]
    pub fn keep_alive(mut self, secs: u16) -> Self {
        self.keep_alive = secs;
        self
    }

    /// The packet.
    pub fn encode(&self) -> Vec<u8> {
        let mut flags = u8::from(self.clean) << 1;
        if let Some(Will { message }) = &self.will {
            flags |= 0x04 | (message.qos << 3) | (u8::from(message.retain) << 5);
        }
        flags |= u8::from(self.password.is_some()) << 6 | u8::from(self.username.is_some()) << 7;
        let name = if self.version == Version::V31 { "MQIsdp" } else { "MQTT" };
        let mut body = text(name);
        body.extend([self.version as u8, self.flags.unwrap_or(flags)]);
        body.extend(self.keep_alive.to_be_bytes());
        if self.version.is_v5() {
            body.extend(self.properties.encode());
        }
        body.extend(text(&self.client_id));
        if let Some(Will { message }) = &self.will {
            if self.version.is_v5() {
                body.extend(message.properties.encode());
            }
            body.extend(text(&message.topic));
            body.extend(text(&message.payload));
        }
        for field in [&self.username, &self.password].into_iter().flatten() {
            body.extend(text(field));
        }
        packet(kind::CONNECT, 0, &body)
    }
}

impl Answer {
    /// The client.
    ///
    /// # Panics
    /// If it is not in.
    #[track_caller]
    pub fn accepted(self) -> (Client, Connack) {
        match self {
            Self::Accepted(client, connack) => (*client, connack),
            other => panic!("not let in: {other:?}"),
        }
    }

    /// The code of the refusal.
    ///
    /// # Panics
    /// If there was none.
    #[track_caller]
    pub fn refused(self) -> u8 {
        match self {
            Self::Refused(code) => code,
            other => panic!("not refused: {other:?}"),
        }
    }

    /// Whether the client is in.
    pub fn is_accepted(&self) -> bool {
        matches!(self, Self::Accepted(..))
    }
}
