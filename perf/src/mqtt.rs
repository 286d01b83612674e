//! As much of MQTT 3.1.1 as a load needs, on a raw socket: a client library would be measured along with the broker.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How long a broker may take for an answer that everything waits for, on a machine whose every core is busy.
pub const ANSWER: Duration = Duration::from_secs(30);

/// Packet types, the upper half of a packet's first byte.
pub const PUBLISH: u8 = 3;
pub const PUBACK: u8 = 4;
pub const PUBREC: u8 = 5;
pub const PUBREL: u8 = 6;
pub const PUBCOMP: u8 = 7;
const CONNACK: u8 = 2;
const SUBACK: u8 = 9;

/// User name and password.
#[derive(Debug, Clone)]
pub struct Login {
    pub username: String,
    pub password: String,
}

/// One client.
pub struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    // where the unread packets begin in `input`
    at: usize,
}

/// A packet in the connection's buffer.
pub struct Packet<'a> {
    pub first: u8,
    pub body: &'a [u8],
}

impl Packet<'_> {
    /// The packet type.
    pub fn kind(&self) -> u8 {
        self.first >> 4
    }

    /// The QoS of a PUBLISH.
    pub fn qos(&self) -> u8 {
        (self.first >> 1) & 3
    }

    /// The packet id of an acknowledgement.
    pub fn id(&self) -> io::Result<[u8; 2]> {
        self.body.first_chunk().copied().ok_or_else(|| io::Error::other("an acknowledgement without a packet id"))
    }

    /// The packet id (QoS 1 and 2) and the payload of a PUBLISH.
    pub fn message(&self) -> io::Result<(Option<[u8; 2]>, &[u8])> {
        let short = || io::Error::other("a PUBLISH that is too short");
        let (length, rest) = self.body.split_first_chunk().ok_or_else(short)?;
        let rest = rest.get(usize::from(u16::from_be_bytes(*length))..).ok_or_else(short)?;
        if self.qos() == 0 {
            return Ok((None, rest));
        }
        let (id, payload) = rest.split_first_chunk().ok_or_else(short)?;
        Ok((Some(*id), payload))
    }
}

impl Connection {
    /// Connects, with a clean session and a keep-alive of ten minutes: runs are shorter, so nobody pings.
    pub async fn open(addr: SocketAddr, client_id: &str, login: Option<&Login>) -> io::Result<Self> {
        within(ANSWER, Self::try_open(addr, client_id, login)).await
    }

    async fn try_open(addr: SocketAddr, client_id: &str, login: Option<&Login>) -> io::Result<Self> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        let mut connection = Self { stream, input: Vec::with_capacity(1024), at: 0 };
        let mut body = Vec::new();
        put(&mut body, b"MQTT");
        body.push(4);
        body.push(if login.is_some() { 0xC2 } else { 0x02 });
        body.extend_from_slice(&600u16.to_be_bytes());
        put(&mut body, client_id.as_bytes());
        if let Some(login) = login {
            put(&mut body, login.username.as_bytes());
            put(&mut body, login.password.as_bytes());
        }
        let mut packet = Vec::new();
        frame(0x10, &body, &mut packet);
        let answer = connection.ask(&packet).await?;
        match (answer.kind(), answer.body) {
            (CONNACK, [_, 0]) => Ok(connection),
            (kind, body) => Err(io::Error::other(format!("CONNECT was answered with type {kind}, {body:?}"))),
        }
    }

    /// Subscribes to one filter.
    pub async fn subscribe(&mut self, filter: &str, qos: u8) -> io::Result<()> {
        let mut body = vec![0, 1];
        put(&mut body, filter.as_bytes());
        body.push(qos);
        let mut packet = Vec::new();
        frame(0x82, &body, &mut packet);
        let answer = within(ANSWER, self.ask(&packet)).await?;
        match (answer.kind(), answer.body) {
            (SUBACK, [_, _, granted]) if *granted == qos => Ok(()),
            (kind, body) => Err(io::Error::other(format!("SUBSCRIBE was answered with type {kind}, {body:?}"))),
        }
    }

    async fn ask(&mut self, packet: &[u8]) -> io::Result<Packet<'_>> {
        self.send(packet).await?;
        self.next().await
    }

    /// Writes whole packets.
    pub async fn send(&mut self, packets: &[u8]) -> io::Result<()> {
        self.stream.write_all(packets).await
    }

    /// The next packet; may be cancelled.
    pub async fn next(&mut self) -> io::Result<Packet<'_>> {
        let (first, body) = loop {
            if let Some(found) = split(&self.input, self.at) {
                break found;
            }
            self.input.drain(..self.at);
            self.at = 0;
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        self.at = body.end;
        Ok(Packet { first, body: &self.input[body] })
    }

    /// Whether the next packet is here already.
    pub fn has_next(&self) -> bool {
        split(&self.input, self.at).is_some()
    }
}

/// The result of something that must not take longer than `limit`.
pub async fn within<T>(limit: Duration, step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}"));
    tokio::time::timeout(limit, step).await.map_err(late)?
}

/// Appends a PUBLISH.
pub fn publish(topic: &str, qos: u8, id: u16, payload: &[u8], out: &mut Vec<u8>) {
    let id_len = if qos > 0 { 2 } else { 0 };
    head(0x30 | (qos << 1), 2 + topic.len() + id_len + payload.len(), out);
    put(out, topic.as_bytes());
    if qos > 0 {
        out.extend_from_slice(&id.to_be_bytes());
    }
    out.extend_from_slice(payload);
}

/// Appends an acknowledgement.
pub fn acknowledge(kind: u8, id: [u8; 2], out: &mut Vec<u8>) {
    let flags = if kind == PUBREL { 2 } else { 0 };
    out.extend_from_slice(&[kind << 4 | flags, 2, id[0], id[1]]);
}

fn put(out: &mut Vec<u8>, text: &[u8]) {
    // Nothing here is longer than a topic of ours.
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text);
}

fn frame(first: u8, body: &[u8], out: &mut Vec<u8>) {
    head(first, body.len(), out);
    out.extend_from_slice(body);
}

fn head(first: u8, mut length: usize, out: &mut Vec<u8>) {
    out.push(first);
    while length > 127 {
        out.push((length % 128) as u8 | 0x80);
        length /= 128;
    }
    out.push(length as u8);
}

/// First byte and body of the packet that begins at `at`, if it is complete.
fn split(input: &[u8], at: usize) -> Option<(u8, Range<usize>)> {
    let first = *input.get(at)?;
    let (mut length, mut shift, mut next) = (0usize, 0, at + 1);
    loop {
        let digit = *input.get(next)?;
        next += 1;
        length |= usize::from(digit & 0x7F) << shift;
        if digit & 0x80 == 0 {
            break;
        }
        shift += 7;
    }
    (input.len() >= next + length).then_some((first, next..next + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_written() {
        for (qos, size) in [(0, 0), (1, 100), (2, 20_000)] {
            let payload = vec![7; size];
            let mut wire = Vec::new();
            publish("chat/u1/m/all", qos, 0x1234, &payload, &mut wire);
            assert_eq!(split(&wire[..wire.len() - 1], 0), None, "an incomplete packet");
            let (first, body) = split(&wire, 0).unwrap();
            assert_eq!(body.end, wire.len());
            let packet = Packet { first, body: &wire[body] };
            assert_eq!((packet.kind(), packet.qos()), (PUBLISH, qos));
            let (id, read) = packet.message().unwrap();
            assert_eq!(id, (qos > 0).then_some([0x12, 0x34]));
            assert_eq!(read, payload);
        }
    }

    #[test]
    fn a_truncated_message_is_an_error() {
        assert!(Packet { first: 0x30, body: &[0] }.message().is_err());
        assert!(Packet { first: 0x32, body: &[0, 1, b't', 0] }.message().is_err());
        assert!(Packet { first: 0x40, body: &[1] }.id().is_err());
    }
}
