//! MQTT as bytes: packets built and read by hand, so that no library hides a fault of the broker.

mod client;
mod connect;
mod decode;
mod encode;
mod properties;
mod stream;

pub use client::{Client, Event, Outcome};
pub use connect::{Answer, Connack, Connect, Will};
pub use decode::{Message, Packet, parse};
pub use encode::{Publish, Version, kind, packet, publish, subscribe, text, unsubscribe, varint};
pub use properties::{Properties, Value, id};
pub use stream::{Fill, Frame, Link, Stream, WebSocketError, opcode};

/// Reason codes of MQTT 5, and return codes of the versions before it.
pub mod reason {
    /// v5: success, normal disconnection
    pub const SUCCESS: u8 = 0x00;
    /// v5: not authorized
    pub const NOT_AUTHORIZED: u8 = 0x87;
    /// v5: bad user name or password
    pub const BAD_CREDENTIALS: u8 = 0x86;
    /// v5: server shutting down
    pub const SHUTTING_DOWN: u8 = 0x8B;
    /// v5: session taken over
    pub const TAKEN_OVER: u8 = 0x8E;
    /// v5: administrative action
    pub const ADMINISTRATIVE: u8 = 0x98;
    /// v3: bad user name or password
    pub const V3_BAD_CREDENTIALS: u8 = 4;
    /// v3: not authorized
    pub const V3_NOT_AUTHORIZED: u8 = 5;
    /// v3: SUBACK failure
    pub const V3_SUBACK_FAILURE: u8 = 0x80;
}
