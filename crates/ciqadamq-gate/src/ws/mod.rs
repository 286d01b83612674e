//! WebSocket, as far as MQTT needs it (RFC 6455): the upgrade, and frames as a stream.

mod frame;
mod upgrade;

pub(crate) use frame::{Decoder, End, HEADER_ROOM, close_frame, put_data_header};
pub(crate) use upgrade::upgrade;

/// Close codes the gate sends.
pub(crate) mod code {
    /// The engine ended the connection.
    pub(crate) const NORMAL: u16 = 1000;
    /// The gate is going away.
    pub(crate) const AWAY: u16 = 1001;
    /// The client broke WebSocket or sent something that is not MQTT.
    pub(crate) const PROTOCOL: u16 = 1002;
    /// A text frame.
    pub(crate) const UNSUPPORTED: u16 = 1003;
    /// The client took too long, or there are too many of it.
    pub(crate) const POLICY: u16 = 1008;
    /// A message or packet over the limit.
    pub(crate) const TOO_BIG: u16 = 1009;
    /// The engine cannot be reached.
    pub(crate) const INTERNAL: u16 = 1011;
}
