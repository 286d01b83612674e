//! A client that does one thing at a time and shows everything that arrives.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::connect::{Answer, Connack, Connect};
use super::decode::{Message, Packet, parse};
use super::encode::{Publish, Version, kind, packet, publish, subscribe, unsubscribe};
use super::properties::Properties;
use super::stream::{Fill, Stream};
use crate::wait::WAIT;

/// What became of a message that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// QoS 0: nobody says
    Sent,
    /// QoS 1 and 2: the exchange ended with this reason code (0 before v5)
    Acked(u8),
    /// the connection was closed, in v5 perhaps with a DISCONNECT
    Closed(Option<u8>),
}

/// What came next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// a packet
    Packet(Packet),
    /// the end of the connection
    Closed,
    /// nothing
    Timeout,
}

/// One connection of a client. Dropping it closes the socket without a DISCONNECT.
#[derive(Debug)]
pub struct Client {
    /// protocol version
    pub version: Version,
    /// acknowledge what arrives (default)
    pub auto_ack: bool,
    /// the transport, for what is below MQTT
    pub stream: Stream,
    buffer: Vec<u8>,
    inbox: VecDeque<Message>,
    next_id: u16,
    ended: Option<Option<u8>>,
}

impl Client {
    /// Opens a connection and sends nothing yet.
    ///
    /// # Errors
    /// Of the socket, or the refused upgrade.
    pub fn open(connect: &Connect, addr: SocketAddr) -> io::Result<Self> {
        Ok(Self {
            version: connect.version,
            auto_ack: true,
            stream: Stream::open(&connect.link, addr)?,
            buffer: Vec::new(),
            inbox: VecDeque::new(),
            next_id: 0,
            ended: None,
        })
    }

    /// Opens a connection, sends CONNECT and waits for the answer.
    ///
    /// # Panics
    /// If nothing is answered.
    #[track_caller]
    pub fn connect(connect: &Connect, addr: SocketAddr) -> Answer {
        let mut client = Self::open(connect, addr).unwrap_or_else(|e| panic!("{addr} cannot be reached: {e}"));
        client.send(&connect.encode());
        client.connack()
    }

    /// Waits for the answer to a CONNECT that was sent.
    ///
    /// # Panics
    /// If something else comes, or nothing.
    #[track_caller]
    pub fn connack(mut self) -> Answer {
        match self.next(WAIT) {
            Event::Packet(Packet::Connack { session_present, code: 0, properties }) => {
                Answer::Accepted(Box::new(self), Connack { session_present, properties })
            }
            Event::Packet(Packet::Connack { code, session_present, .. }) => {
                assert!(!session_present, "a refusal speaks of a session");
                self.expect_closed();
                Answer::Refused(code)
            }
            // A login that is overtaken by the end of its user.
            Event::Packet(Packet::Disconnect { .. }) => {
                self.expect_closed();
                Answer::Closed
            }
            Event::Closed => Answer::Closed,
            other => panic!("in place of CONNACK: {other:?}"),
        }
    }

    /// Sends bytes. A connection that is closed meanwhile is noticed by what is read next.
    pub fn send(&mut self, bytes: &[u8]) {
        if self.stream.send(bytes).is_err() && self.ended.is_none() {
            // What the broker said before it closed may still be readable.
            self.stream.cut_write();
        }
    }

    /// The next packet, raw: nothing is acknowledged, nothing kept.
    ///
    /// # Panics
    /// On bytes that are no packet.
    #[track_caller]
    pub fn next(&mut self, timeout: Duration) -> Event {
        let deadline = Instant::now() + timeout;
        loop {
            match parse(self.version, &self.buffer) {
                Ok(Some((packet, len))) => {
                    self.buffer.drain(..len);
                    if let Packet::Disconnect { code, .. } = packet {
                        self.ended = Some(Some(code));
                    }
                    return Event::Packet(packet);
                }
                Ok(None) => {}
                Err(error) => panic!("the broker sent no packet: {error}: {:02x?}", self.buffer),
            }
            match self.stream.fill(&mut self.buffer, deadline).unwrap() {
                Fill::Data => {}
                Fill::Timeout => return Event::Timeout,
                Fill::Closed => {
                    self.ended.get_or_insert(None);
                    return Event::Closed;
                }
            }
        }
    }

    /// Waits for a packet that is no message; messages are acknowledged and put aside.
    #[track_caller]
    fn reply(&mut self, timeout: Duration) -> Event {
        let deadline = Instant::now() + timeout;
        loop {
            let event = self.next(deadline.saturating_duration_since(Instant::now()));
            match event {
                Event::Packet(Packet::Publish(message)) => {
                    self.acknowledge(&message);
                    self.inbox.push_back(message);
                }
                Event::Packet(Packet::Ack { kind: kind::PUBREL, id, .. }) => {
                    if self.auto_ack {
                        self.send(&packet(kind::PUBCOMP, 0, &id.to_be_bytes()));
                    }
                }
                Event::Packet(Packet::Disconnect { .. }) => {}
                other => return other,
            }
        }
    }

    /// Sends PUBACK or PUBREC for a message, if it is automatic.
    fn acknowledge(&mut self, message: &Message) {
        if let (true, Some(id)) = (self.auto_ack, message.packet_id) {
            self.ack(if message.qos == 1 { kind::PUBACK } else { kind::PUBREC }, id);
        }
    }

    /// Sends an acknowledgement.
    pub fn ack(&mut self, kind: u8, id: u16) {
        let flags = if kind == kind::PUBREL { 2 } else { 0 };
        self.send(&packet(kind, flags, &id.to_be_bytes()));
    }

    /// A packet identifier that was not used lately.
    pub fn packet_id(&mut self) -> u16 {
        self.next_id = self.next_id.checked_add(1).unwrap_or(1);
        self.next_id
    }

    /// Subscribes and gives the codes of the SUBACK. A filter's byte is its subscription options: the QoS, mostly.
    ///
    /// # Panics
    /// If there is no SUBACK.
    #[track_caller]
    pub fn try_subscribe(&mut self, filters: &[(&str, u8)]) -> Vec<u8> {
        let id = self.packet_id();
        self.send(&subscribe(self.version, id, filters));
        match self.reply(WAIT) {
            Event::Packet(Packet::Suback { id: of, codes }) if of == id => codes,
            other => panic!("in place of SUBACK {id} for {filters:?}: {other:?}"),
        }
    }

    /// Subscribes at QoS 1 (2 for `qos2/` tests is what [`Self::try_subscribe`] is for).
    ///
    /// # Panics
    /// If one is refused.
    #[track_caller]
    pub fn subscribe(&mut self, filters: &[&str]) {
        let wanted: Vec<(&str, u8)> = filters.iter().map(|filter| (*filter, 1)).collect();
        assert_eq!(self.try_subscribe(&wanted), vec![1; filters.len()], "{filters:?}");
    }

    /// Whether the filter is granted; a refusal must have the code of the protocol version.
    ///
    /// # Panics
    /// On other codes.
    #[track_caller]
    pub fn may_subscribe(&mut self, filter: &str) -> bool {
        let codes = self.try_subscribe(&[(filter, 1)]);
        match codes.as_slice() {
            [0..=2] => true,
            [code] => {
                assert_eq!(*code, self.version.pick(0x87, 0x80), "{filter}");
                false
            }
            other => panic!("{filter}: {other:?}"),
        }
    }

    /// Unsubscribes and gives the codes (none before v5).
    ///
    /// # Panics
    /// If there is no UNSUBACK.
    #[track_caller]
    pub fn unsubscribe(&mut self, filters: &[&str]) -> Vec<u8> {
        let id = self.packet_id();
        self.send(&unsubscribe(self.version, id, filters));
        match self.reply(WAIT) {
            Event::Packet(Packet::Unsuback { id: of, codes }) if of == id => codes,
            other => panic!("in place of UNSUBACK {id}: {other:?}"),
        }
    }

    /// Sends a message and does not wait; gives the packet identifier that was used.
    pub fn send_publish(&mut self, message: &Publish) -> u16 {
        let id = if message.qos > 0 { self.packet_id() } else { 0 };
        self.send(&publish(self.version, message, id));
        id
    }

    /// Sends a message and waits until the exchange is over.
    ///
    /// # Panics
    /// If it stays open.
    #[track_caller]
    pub fn publish(&mut self, message: &Publish) -> Outcome {
        let id = self.send_publish(message);
        match message.qos {
            0 => Outcome::Sent,
            _ => self.finish_publish(message.qos, id),
        }
    }

    /// Waits until the exchange of a message that was sent is over.
    ///
    /// # Panics
    /// If it stays open.
    #[track_caller]
    pub fn finish_publish(&mut self, qos: u8, id: u16) -> Outcome {
        let awaited = if qos == 1 { kind::PUBACK } else { kind::PUBREC };
        let code = match self.reply(WAIT) {
            Event::Packet(Packet::Ack { kind, id: of, code, .. }) if kind == awaited && of == id => code,
            Event::Closed => return Outcome::Closed(self.ended.flatten()),
            other => panic!("in place of the acknowledgement of {id}: {other:?}"),
        };
        if qos == 1 || code >= 0x80 {
            return Outcome::Acked(code);
        }
        self.ack(kind::PUBREL, id);
        match self.reply(WAIT) {
            Event::Packet(Packet::Ack { kind: kind::PUBCOMP, id: of, .. }) if of == id => Outcome::Acked(code),
            Event::Closed => Outcome::Closed(self.ended.flatten()),
            other => panic!("in place of PUBCOMP {id}: {other:?}"),
        }
    }

    /// Sends a message that has to be taken.
    ///
    /// # Panics
    /// If it is not.
    #[track_caller]
    pub fn publish_ok(&mut self, topic: &str, payload: &str, qos: u8) {
        let outcome = self.publish(&Publish::new(topic, payload, qos));
        // 0x10: no matching subscribers
        let taken = matches!(outcome, Outcome::Sent | Outcome::Acked(0 | 0x10));
        assert!(taken, "{topic}: {outcome:?}");
    }

    /// The next message.
    ///
    /// # Panics
    /// If there is none.
    #[track_caller]
    pub fn message(&mut self) -> Message {
        self.message_within(WAIT).unwrap_or_else(|event| panic!("in place of a message: {event:?}"))
    }

    /// The next message, or what came instead.
    ///
    /// # Errors
    /// What came instead.
    #[track_caller]
    pub fn message_within(&mut self, timeout: Duration) -> Result<Message, Event> {
        if let Some(message) = self.inbox.pop_front() {
            return Ok(message);
        }
        let deadline = Instant::now() + timeout;
        loop {
            match self.next(deadline.saturating_duration_since(Instant::now())) {
                Event::Packet(Packet::Publish(message)) => {
                    self.acknowledge(&message);
                    return Ok(message);
                }
                Event::Packet(Packet::Ack { kind: kind::PUBREL, id, .. }) => {
                    if self.auto_ack {
                        self.ack(kind::PUBCOMP, id);
                    }
                }
                other => return Err(other),
            }
        }
    }

    /// The next message, which has to be this.
    ///
    /// # Panics
    /// If it is another, or there is none.
    #[track_caller]
    pub fn expect(&mut self, topic: &str, payload: &str) -> Message {
        let message = self.message();
        assert_eq!((message.topic.as_str(), message.text().as_str()), (topic, payload));
        message
    }

    /// All messages before the one with this topic and payload, which is taken too.
    ///
    /// # Panics
    /// If it does not come.
    #[track_caller]
    pub fn until(&mut self, topic: &str, payload: &str) -> Vec<Message> {
        let mut before = Vec::new();
        loop {
            match self.message_within(WAIT) {
                Ok(message) if message.topic == topic && message.text() == payload => return before,
                Ok(message) => before.push(message),
                Err(event) => panic!("{topic} {payload} did not come, but {event:?}, after {} others", before.len()),
            }
        }
    }

    /// PINGREQ and its answer: `false` if the connection is closed instead.
    ///
    /// # Panics
    /// If nothing happens.
    #[track_caller]
    pub fn ping(&mut self) -> bool {
        self.send(&packet(kind::PINGREQ, 0, &[]));
        match self.reply(WAIT) {
            Event::Packet(Packet::Pingresp) => true,
            Event::Closed => false,
            other => panic!("in place of PINGRESP: {other:?}"),
        }
    }

    /// Waits for the end of the connection: the reason code of the DISCONNECT, if there was one.
    ///
    /// # Panics
    /// If it stays open.
    #[track_caller]
    pub fn expect_closed(&mut self) -> Option<u8> {
        loop {
            match self.reply(WAIT) {
                Event::Closed => return self.ended.flatten(),
                Event::Packet(_) => {}
                Event::Timeout => panic!("the connection is still open"),
            }
        }
    }

    /// Says goodbye, closes as a client has to, and waits until the broker has closed too.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn disconnect(self) {
        self.goodbye(&[]);
    }

    /// The same with a reason code (v5).
    ///
    /// # Panics
    /// If the broker does not close.
    #[track_caller]
    pub fn disconnect_with(self, code: u8, properties: &Properties) {
        self.goodbye(&[vec![code], properties.encode()].concat());
    }

    #[track_caller]
    fn goodbye(mut self, body: &[u8]) {
        self.send(&packet(kind::DISCONNECT, 0, body));
        self.stream.cut_write();
        self.expect_closed();
    }

    /// Ends the connection without a word, as a lost network does: a Will is due.
    pub fn cut(self) {
        self.stream.cut();
    }
}
