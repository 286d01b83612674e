//! The changes that the store knows. The log is a sequence of them, and state is what they make of nothing: whoever applies
//! the same commands in the same order has the same sessions, on this node after a crash, or on another one.
//!
//! Each may be applied again to a state that has seen it already, if those that came after it are applied again too.

use crate::records::{
    Inbound, MessageId, Millis, Owed, Seq, SessionNo, SessionRecord, decode_recipient, encode_recipient,
};
use crate::wire::{Malformed, Put, Take};

/// One change.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Command<'a> {
    /// Begins a session, or replaces its facts.
    Session { no: SessionNo, record: SessionRecord },
    /// Ends a session with all it is owed.
    End { no: SessionNo },
    /// Adds or replaces a subscription.
    Subscribe { no: SessionNo, filter: &'a str, options: &'a [u8] },
    /// Removes one.
    Unsubscribe { no: SessionNo, filter: &'a str },
    /// A message, once, and the sessions that are owed it; and that the publisher's session has delivered it.
    Publish {
        id: MessageId,
        expires_at: Millis,
        recipients: Vec<(SessionNo, Owed)>,
        inbound: Option<(SessionNo, Inbound)>,
        message: &'a [u8],
    },
    /// It was sent.
    Sent { no: SessionNo, seq: Seq },
    /// The client has it (PUBREC).
    Received { no: SessionNo, seq: Seq },
    /// It is owed no longer: acknowledged, dropped or expired.
    Done { no: SessionNo, seq: Seq },
    /// The client has released a QoS 2 message of its own (PUBREL).
    Released { no: SessionNo, packet_id: u16 },
    /// Sets the Retained Message of a topic.
    Retain { topic: &'a str, expires_at: Millis, message: &'a [u8] },
    /// Removes it.
    Clear { topic: &'a str },
    /// A message of another node was stored: the one of the command behind this.
    Heard { node: u64, boot: u64, number: u64, origin: Option<u32> },
    /// A session of another node was stored, with all it is owed.
    Taken { node: u64, tag: u64 },
}

impl<'a> Command<'a> {
    /// Appends the command. Where it carries a message, that stands at the end.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Session { no, record } => {
                out.u8(1);
                out.u64(*no);
                record.encode(out);
            }
            Self::End { no } => {
                out.u8(2);
                out.u64(*no);
            }
            Self::Subscribe { no, filter, options } => {
                out.u8(3);
                out.u64(*no);
                out.bytes(filter.as_bytes());
                out.bytes(options);
            }
            Self::Unsubscribe { no, filter } => {
                out.u8(4);
                out.u64(*no);
                out.bytes(filter.as_bytes());
            }
            Self::Publish { id, expires_at, recipients, inbound, message } => {
                out.u8(5);
                out.u64(*id);
                out.i64(*expires_at);
                out.u32(recipients.len() as u32);
                for (no, owed) in recipients {
                    out.u64(*no);
                    encode_recipient(out, owed.seq, owed.qos, owed.retain, owed.subscription_ids.as_deref());
                }
                out.u8(inbound.is_some().into());
                if let Some((no, inbound)) = inbound {
                    out.u64(*no);
                    out.u16(inbound.packet_id);
                    out.u64(inbound.hash);
                }
                out.bytes(message);
            }
            Self::Sent { no, seq } => place(out, 6, *no, *seq),
            Self::Received { no, seq } => place(out, 7, *no, *seq),
            Self::Done { no, seq } => place(out, 8, *no, *seq),
            Self::Released { no, packet_id } => {
                out.u8(9);
                out.u64(*no);
                out.u16(*packet_id);
            }
            Self::Retain { topic, expires_at, message } => {
                out.u8(10);
                out.bytes(topic.as_bytes());
                out.i64(*expires_at);
                out.bytes(message);
            }
            Self::Clear { topic } => {
                out.u8(11);
                out.bytes(topic.as_bytes());
            }
            Self::Heard { node, boot, number, origin } => {
                out.u8(12);
                [node, boot, number].into_iter().for_each(|n| out.u64(*n));
                out.u8(origin.is_some().into());
                out.u32(origin.unwrap_or_default());
            }
            Self::Taken { node, tag } => place(out, 13, *node, *tag),
        }
    }

    /// Takes a command from the front.
    pub(crate) fn decode(from: &mut Take<'a>) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            1 => Self::Session { no: from.u64()?, record: SessionRecord::decode(from)? },
            2 => Self::End { no: from.u64()? },
            3 => Self::Subscribe { no: from.u64()?, filter: from.text()?, options: from.bytes()? },
            4 => Self::Unsubscribe { no: from.u64()?, filter: from.text()? },
            5 => {
                let id = from.u64()?;
                let expires_at = from.i64()?;
                let recipients = (0..from.u32()?)
                    .map(|_| Ok((from.u64()?, decode_recipient(from, id)?)))
                    .collect::<Result<_, Malformed>>()?;
                let inbound = match from.u8()? {
                    0 => None,
                    _ => Some((from.u64()?, Inbound { packet_id: from.u16()?, hash: from.u64()?, message: id })),
                };
                Self::Publish { id, expires_at, recipients, inbound, message: from.bytes()? }
            }
            6 => Self::Sent { no: from.u64()?, seq: from.u64()? },
            7 => Self::Received { no: from.u64()?, seq: from.u64()? },
            8 => Self::Done { no: from.u64()?, seq: from.u64()? },
            9 => Self::Released { no: from.u64()?, packet_id: from.u16()? },
            10 => Self::Retain { topic: from.text()?, expires_at: from.i64()?, message: from.bytes()? },
            11 => Self::Clear { topic: from.text()? },
            12 => {
                let (node, boot, number) = (from.u64()?, from.u64()?, from.u64()?);
                let (has_origin, origin) = (from.u8()? != 0, from.u32()?);
                Self::Heard { node, boot, number, origin: has_origin.then_some(origin) }
            }
            13 => Self::Taken { node: from.u64()?, tag: from.u64()? },
            _ => return Err(Malformed("a command of another version")),
        })
    }
}

fn place(out: &mut Vec<u8>, kind: u8, no: SessionNo, seq: Seq) {
    out.u8(kind);
    out.u64(no);
    out.u64(seq);
}
