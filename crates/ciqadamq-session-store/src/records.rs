//! What is kept: sessions with what they are owed, and the messages behind that.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use ciqadamq_core::MoveTag;

use crate::wire::{Malformed, Put, Take};

/// A session of this store; never given out twice.
pub type SessionNo = u64;

/// A message of this store, in the order in which messages were accepted; never given out twice.
pub type MessageId = u64;

/// Position of a message in one session's queue.
pub type Seq = u64;

/// Milliseconds since 1970, UTC.
pub type Millis = i64;

/// Packet Identifiers that the store gives out: 1 to this. What is delivered without the store has the rest.
pub const PACKET_IDS: u64 = 49_151;

/// Whose session it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owner {
    /// login name
    pub username: Option<String>,
    /// person; `None` if the login was not judged by the user directory
    pub userid: Option<String>,
    /// what the directory had applied when the password was checked
    pub login: u64,
}

/// A session was handed to another node, which has not said yet that it has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaving {
    /// to which node
    pub to: u64,
    /// what both nodes call it
    pub tag: MoveTag,
}

/// A session's facts, apart from subscriptions and queue. Replaced as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionRecord {
    /// Client Identifier
    pub client_id: String,
    /// whose it is
    pub owner: Owner,
    /// how its client connected, in the adapter's encoding; without a password
    pub connection: Vec<u8>,
    /// when the session began
    pub created_at: Millis,
    /// when its connection ended; `None` while it is online
    pub disconnected_at: Option<Millis>,
    /// Session Expiry Interval that counts from then, in seconds
    pub expiry_secs: u32,
    /// the Will Message in `connection` is still to be published
    pub will_pending: bool,
    /// It is on its way to another node, and not to be used here.
    pub leaving: Option<Leaving>,
    /// It is on its way from another node, and not all of it is here: after a crash it is that node's still.
    pub arriving: bool,
}

impl SessionRecord {
    /// When the session ends; `None` while it is online.
    pub fn expires_at(&self) -> Option<Millis> {
        Some(self.disconnected_at? + i64::from(self.expiry_secs) * 1000)
    }

    /// Bytes of [`encode`](Self::encode), rather too many.
    pub(crate) fn size(&self) -> u64 {
        (256 + self.client_id.len() + self.connection.len()) as u64
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.bytes(self.client_id.as_bytes());
        option(out, self.owner.username.as_deref());
        option(out, self.owner.userid.as_deref());
        out.u64(self.owner.login);
        out.bytes(&self.connection);
        out.i64(self.created_at);
        out.i64(self.disconnected_at.unwrap_or(i64::MIN));
        out.u32(self.expiry_secs);
        let flags = [self.will_pending, self.leaving.is_some(), self.arriving];
        out.u8(flags.into_iter().rev().fold(0, |all, flag| all << 1 | u8::from(flag)));
        if let Some(Leaving { to, tag }) = self.leaving {
            out.u64(to);
            out.u64(tag);
        }
    }

    pub(crate) fn decode(from: &mut Take<'_>) -> Result<Self, Malformed> {
        let mut record = Self {
            client_id: from.text()?.to_owned(),
            owner: Owner { username: optional(from)?, userid: optional(from)?, login: from.u64()? },
            connection: from.bytes()?.to_vec(),
            created_at: from.i64()?,
            disconnected_at: Some(from.i64()?).filter(|at| *at != i64::MIN),
            expiry_secs: from.u32()?,
            ..Self::default()
        };
        let flags = from.u8()?;
        record.will_pending = flags & 1 != 0;
        record.arriving = flags & 4 != 0;
        if flags & 2 != 0 {
            record.leaving = Some(Leaving { to: from.u64()?, tag: from.u64()? });
        }
        Ok(record)
    }
}

/// Bytes that a subscription takes in its session.
pub(crate) fn size_of_subscription(filter: &str, options: &[u8]) -> u64 {
    (filter.len() + options.len() + 8) as u64
}

fn option(out: &mut Vec<u8>, value: Option<&str>) {
    out.u8(value.is_some().into());
    if let Some(value) = value {
        out.bytes(value.as_bytes());
    }
}

fn optional(from: &mut Take<'_>) -> Result<Option<String>, Malformed> {
    Ok(if from.u8()? != 0 { Some(from.text()?.to_owned()) } else { None })
}

/// How far the delivery of a message has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// waits; perhaps it was sent a moment before a crash
    Queued,
    /// sent, and not acknowledged
    Sent,
    /// QoS 2: the client has it (PUBREC); a PUBREL is owed
    Received,
}

/// A message that a session is owed. One copy of the message serves all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owed {
    /// which message
    pub message: MessageId,
    /// its place in the session's queue
    pub seq: Seq,
    /// how far its delivery has come
    pub stage: Stage,
    /// as it is delivered: the smaller of the publisher's and the subscription's
    pub qos: u8,
    /// as it is delivered
    pub retain: bool,
    /// Subscription Identifiers
    pub subscription_ids: Option<Box<[u32]>>,
}

impl Owed {
    /// The Packet Identifier under which it is delivered. It follows from the place in the queue, so that nothing has to be
    /// written before a delivery, and a delivery after a crash has the same one.
    pub fn packet_id(&self) -> u16 {
        packet_id(self.seq)
    }

    /// Whether the message itself is owed, and not only the end of its delivery.
    pub fn holds_message(&self) -> bool {
        self.stage != Stage::Received
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.u64(self.message);
        encode_recipient(out, self.seq, self.qos, self.retain, self.subscription_ids.as_deref());
        out.u8(match self.stage {
            Stage::Queued => 0,
            Stage::Sent => 1,
            Stage::Received => 2,
        });
    }

    pub(crate) fn decode(from: &mut Take<'_>) -> Result<Self, Malformed> {
        let message = from.u64()?;
        let mut owed = decode_recipient(from, message)?;
        owed.stage = match from.u8()? {
            0 => Stage::Queued,
            1 => Stage::Sent,
            2 => Stage::Received,
            _ => return Err(Malformed("stage")),
        };
        Ok(owed)
    }
}

pub(crate) fn packet_id(seq: Seq) -> u16 {
    (seq % PACKET_IDS + 1) as u16
}

pub(crate) fn encode_recipient(out: &mut Vec<u8>, seq: Seq, qos: u8, retain: bool, ids: Option<&[u32]>) {
    out.u64(seq);
    out.u8(qos | u8::from(retain) << 2);
    let ids = ids.unwrap_or_default();
    // A filter has one, and a client's filters that match one topic are few.
    let n = ids.len().min(u16::MAX.into());
    out.u16(n as u16);
    ids[..n].iter().for_each(|id| out.u32(*id));
}

pub(crate) fn decode_recipient(from: &mut Take<'_>, message: MessageId) -> Result<Owed, Malformed> {
    let seq = from.u64()?;
    let flags = from.u8()?;
    let ids = (0..from.u16()?).map(|_| from.u32()).collect::<Result<Vec<_>, _>>()?;
    let subscription_ids = (!ids.is_empty()).then(|| ids.into_boxed_slice());
    Ok(Owed { message, seq, stage: Stage::Queued, qos: flags & 3, retain: flags & 4 != 0, subscription_ids })
}

/// A QoS 2 message that a session's client has published, and not released (PUBREL).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inbound {
    /// of the client
    pub packet_id: u16,
    /// of the message, to tell a message sent again from another one under the same identifier
    pub hash: u64,
    /// under which number it was kept; the store knows
    pub message: MessageId,
}

/// Messages of another node that are remembered: more than it has on the way without hearing that they came.
pub(crate) const HEARD_MAX: usize = 1024;

/// The messages and sessions of another node that were stored last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Heard {
    /// of which of its processes
    pub boot: u64,
    /// their numbers, in the order in which they were stored
    pub numbers: VecDeque<u64>,
    /// by the numbers of its store, of all of its processes
    pub origins: VecDeque<u32>,
    /// and its sessions that were taken over
    pub taken: VecDeque<MoveTag>,
}

impl Heard {
    pub(crate) fn note(&mut self, boot: u64, number: u64, origin: Option<u32>) {
        if self.boot != boot {
            self.boot = boot;
            self.numbers.clear();
        }
        remember(&mut self.numbers, number);
        if let Some(origin) = origin {
            remember(&mut self.origins, origin);
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(20 + (self.numbers.len() + self.taken.len()) * 8 + self.origins.len() * 4);
        out.u64(self.boot);
        out.u32(self.numbers.len() as u32);
        self.numbers.iter().for_each(|number| out.u64(*number));
        out.u32(self.origins.len() as u32);
        self.origins.iter().for_each(|origin| out.u32(*origin));
        out.u32(self.taken.len() as u32);
        self.taken.iter().for_each(|tag| out.u64(*tag));
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let from = &mut Take::new(bytes);
        let boot = from.u64()?;
        let numbers = (0..from.u32()?).map(|_| from.u64()).collect::<Result<_, _>>()?;
        let origins = (0..from.u32()?).map(|_| from.u32()).collect::<Result<_, _>>()?;
        // Earlier versions have not written the rest.
        let taken = if from.is_empty() { 0 } else { from.u32()? };
        let taken = (0..taken).map(|_| from.u64()).collect::<Result<_, _>>()?;
        Ok(Self { boot, numbers, origins, taken })
    }
}

/// Puts something at the end, once; the first goes if there are too many.
pub(crate) fn remember<T: PartialEq>(all: &mut VecDeque<T>, new: T) {
    if all.contains(&new) {
        return;
    }
    if all.len() == HEARD_MAX {
        all.pop_front();
    }
    all.push_back(new);
}

/// All about one session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionState {
    /// its facts
    pub record: SessionRecord,
    /// Topic Filter -> options in the adapter's encoding
    pub subscriptions: BTreeMap<String, Vec<u8>>,
    /// what it is owed, by `seq`, and so by message
    pub queue: VecDeque<Owed>,
    /// in the order in which they were received
    pub inbound: Vec<Inbound>,
    /// the next place in the queue
    pub next_seq: Seq,
    /// is in sled as well
    pub(crate) in_base: bool,
    /// is going to be written to sled at the next checkpoint
    pub(crate) touched: bool,
}

impl SessionState {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128 + self.queue.len() * 24);
        self.record.encode(&mut out);
        out.u64(self.next_seq);
        out.u32(self.subscriptions.len() as u32);
        for (filter, options) in &self.subscriptions {
            out.bytes(filter.as_bytes());
            out.bytes(options);
        }
        out.u32(self.queue.len() as u32);
        self.queue.iter().for_each(|owed| owed.encode(&mut out));
        out.u32(self.inbound.len() as u32);
        for inbound in &self.inbound {
            out.u16(inbound.packet_id);
            out.u64(inbound.hash);
            out.u64(inbound.message);
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let from = &mut Take::new(bytes);
        let record = SessionRecord::decode(from)?;
        let next_seq = from.u64()?;
        let subscriptions = (0..from.u32()?)
            .map(|_| Ok((from.text()?.to_owned(), from.bytes()?.to_vec())))
            .collect::<Result<_, Malformed>>()?;
        let queue = (0..from.u32()?).map(|_| Owed::decode(from)).collect::<Result<_, _>>()?;
        let inbound = (0..from.u32()?)
            .map(|_| Ok(Inbound { packet_id: from.u16()?, hash: from.u64()?, message: from.u64()? }))
            .collect::<Result<_, Malformed>>()?;
        if !from.is_empty() {
            return Err(Malformed("a session has something behind it"));
        }
        Ok(Self { record, subscriptions, queue, inbound, next_seq, in_base: true, touched: false })
    }

    /// Bytes of [`encode`](Self::encode), rather too many.
    pub(crate) fn size(&self) -> u64 {
        self.size_of_facts() + (self.queue.len() * 32 + self.inbound.len() * 18) as u64
    }

    /// The same, of what does not change with each message.
    pub(crate) fn size_of_facts(&self) -> u64 {
        let subscriptions = self.subscriptions.iter().map(|(filter, options)| size_of_subscription(filter, options));
        self.record.size() + subscriptions.sum::<u64>()
    }

    /// Where the message with this place in the queue stands.
    pub(crate) fn position(&self, seq: Seq) -> Option<usize> {
        self.queue.binary_search_by_key(&seq, |owed| owed.seq).ok()
    }
}
