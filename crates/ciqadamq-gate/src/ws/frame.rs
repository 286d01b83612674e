//! Frames to bytes and back, without assembling messages.
//!
//! tungstenite's own socket collects each message in a buffer that stays with the connection. MQTT does not care where
//! frames begin and end, so payload is unmasked where it was read and passed on at once: an idle connection holds no
//! buffer, and the length a frame claims costs no memory. The header is parsed by tungstenite.

use std::io::Cursor;

use tokio_tungstenite::tungstenite::protocol::frame::FrameHeader;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Control, Data, OpCode};

use super::code;

/// The longest header: two bytes, eight of length, four of mask.
const HEADER_BYTES_MAX: usize = 14;
/// The longest payload of a control frame.
const CONTROL_BYTES_MAX: u64 = 125;
/// The bytes to leave free in front of a payload of up to 64 KiB for [`put_data_header`].
pub(crate) const HEADER_ROOM: usize = 4;

/// Why no more MQTT comes from the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It sent a close frame, with this code if any.
    Close(Option<u16>),
    /// It sent something that is not allowed: the code to close with, and what it was.
    Violation(u16, &'static str),
}

impl End {
    /// The close frame that answers it.
    pub(crate) fn answer(self) -> Vec<u8> {
        match self {
            Self::Close(None) => vec![0x88, 0],
            Self::Close(Some(code)) => close_frame(code, ""),
            Self::Violation(code, what) => close_frame(code, what),
        }
    }
}

/// What a piece of input held.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Decoded {
    /// So many bytes of payload now stand at the start of the buffer.
    pub(crate) data: usize,
    /// Nothing after this is looked at.
    pub(crate) end: Option<End>,
}

#[derive(Debug, Clone, Copy)]
enum Part {
    Header,
    Data { last: bool },
    Control(Control),
}

/// Takes a client's frames in whatever pieces they come.
#[derive(Debug)]
pub(crate) struct Decoder {
    part: Part,
    /// A header of which not all is there yet.
    header: [u8; HEADER_BYTES_MAX],
    header_len: usize,
    /// What is missing of the current frame's payload.
    left: u64,
    /// The mask, turned so that its first byte is the next to apply.
    mask: [u8; 4],
    /// The payload of the current control frame. Empty, and without memory, between control frames.
    control: Vec<u8>,
    in_message: bool,
    message_bytes: u64,
    message_bytes_max: u64,
}

impl Decoder {
    /// A decoder at the start of a stream that refuses messages of more than `message_bytes_max`.
    pub(crate) fn new(message_bytes_max: u64) -> Self {
        Self {
            part: Part::Header,
            header: [0; HEADER_BYTES_MAX],
            header_len: 0,
            left: 0,
            mask: [0; 4],
            control: Vec::new(),
            in_message: false,
            message_bytes: 0,
            message_bytes_max,
        }
    }

    /// Decodes `buf`, leaves the payload of its data frames at the start of `buf`, and appends to `replies` the pongs that
    /// its pings ask for, never more bytes than it read.
    pub(crate) fn decode(&mut self, buf: &mut [u8], replies: &mut Vec<u8>) -> Decoded {
        let mut decoded = Decoded { data: 0, end: None };
        let mut pos = 0;
        while pos < buf.len() && decoded.end.is_none() {
            let step = match self.part {
                Part::Header => self.take_header(&buf[pos..], replies).map(|n| pos += n),
                Part::Data { last } => {
                    let n = self.here(buf.len() - pos);
                    buf.copy_within(pos..pos + n, decoded.data);
                    self.unmask(&mut buf[decoded.data..decoded.data + n]);
                    decoded.data += n;
                    pos += n;
                    if self.left == 0 {
                        self.data_done(last);
                    }
                    Ok(())
                }
                Part::Control(kind) => {
                    let n = self.here(buf.len() - pos);
                    self.unmask(&mut buf[pos..pos + n]);
                    self.control.extend_from_slice(&buf[pos..pos + n]);
                    pos += n;
                    if self.left == 0 { self.control_done(kind, replies) } else { Ok(()) }
                }
            };
            decoded.end = step.err();
        }
        decoded
    }

    /// Takes a header, or what there is of one, and returns how many bytes of `input` belong to it.
    fn take_header(&mut self, input: &[u8], replies: &mut Vec<u8>) -> Result<usize, End> {
        let before = self.header_len;
        let n = input.len().min(HEADER_BYTES_MAX - before);
        self.header[before..before + n].copy_from_slice(&input[..n]);
        let mut cursor = Cursor::new(&self.header[..before + n]);
        let parsed = FrameHeader::parse(&mut cursor).map_err(|_| protocol("reserved opcode"))?;
        let Some((header, len)) = parsed else {
            self.header_len += n;
            return Ok(n);
        };
        let used = cursor.position() as usize - before;
        self.header_len = 0;
        self.begin(&header, len, replies)?;
        Ok(used)
    }

    fn begin(&mut self, header: &FrameHeader, len: u64, replies: &mut Vec<u8>) -> Result<(), End> {
        if header.rsv1 || header.rsv2 || header.rsv3 {
            return Err(protocol("reserved bits set"));
        }
        self.mask = header.mask.ok_or(protocol("frame without mask"))?;
        self.left = len;
        match header.opcode {
            OpCode::Control(kind) => {
                if !header.is_final || len > CONTROL_BYTES_MAX {
                    return Err(protocol("control frame fragmented or too long"));
                }
                self.part = Part::Control(kind);
                if len == 0 { self.control_done(kind, replies) } else { Ok(()) }
            }
            OpCode::Data(Data::Text) => Err(End::Violation(code::UNSUPPORTED, "MQTT needs binary frames")),
            OpCode::Data(kind) => {
                if (kind == Data::Continue) != self.in_message {
                    return Err(protocol("fragments out of order"));
                }
                self.message_bytes = self.message_bytes.saturating_add(len);
                if self.message_bytes > self.message_bytes_max {
                    return Err(End::Violation(code::TOO_BIG, "message too big"));
                }
                self.in_message = true;
                self.part = Part::Data { last: header.is_final };
                if len == 0 {
                    self.data_done(header.is_final);
                }
                Ok(())
            }
        }
    }

    fn data_done(&mut self, last: bool) {
        self.part = Part::Header;
        if last {
            self.in_message = false;
            self.message_bytes = 0;
        }
    }

    fn control_done(&mut self, kind: Control, replies: &mut Vec<u8>) -> Result<(), End> {
        self.part = Part::Header;
        let payload = std::mem::take(&mut self.control);
        match kind {
            Control::Close => Err(close_received(&payload)),
            Control::Ping => {
                control_frame(replies, 0x8a, &payload);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// How much of the current payload is among the next `available` bytes.
    fn here(&self, available: usize) -> usize {
        usize::try_from(self.left).map_or(available, |left| left.min(available))
    }

    /// Unmasks the next bytes of the payload, and counts them.
    fn unmask(&mut self, bytes: &mut [u8]) {
        let [a, b, c, d] = self.mask;
        let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
        let mut words = bytes.chunks_exact_mut(8);
        for word in &mut words {
            let mut plain = [0; 8];
            plain.copy_from_slice(word);
            word.copy_from_slice(&(u64::from_ne_bytes(plain) ^ wide).to_ne_bytes());
        }
        for (byte, mask) in words.into_remainder().iter_mut().zip(self.mask.into_iter().cycle()) {
            *byte ^= mask;
        }
        self.mask.rotate_left(bytes.len() % 4);
        self.left -= bytes.len() as u64;
    }
}

fn protocol(what: &'static str) -> End {
    End::Violation(code::PROTOCOL, what)
}

fn close_received(payload: &[u8]) -> End {
    match payload {
        [] => End::Close(None),
        [high, low, reason @ ..] => {
            let code = u16::from_be_bytes([*high, *low]);
            if CloseCode::from(code).is_allowed() && std::str::from_utf8(reason).is_ok() {
                End::Close(Some(code))
            } else {
                protocol("malformed close frame")
            }
        }
        [_] => protocol("malformed close frame"),
    }
}

/// A close frame. `reason` is for whoever debugs the client, at most 123 bytes.
pub(crate) fn close_frame(code: u16, reason: &str) -> Vec<u8> {
    let mut payload = code.to_be_bytes().to_vec();
    payload.extend_from_slice(reason.as_bytes());
    let mut frame = Vec::with_capacity(2 + payload.len());
    control_frame(&mut frame, 0x88, &payload);
    frame
}

fn control_frame(out: &mut Vec<u8>, first: u8, payload: &[u8]) {
    debug_assert!(payload.len() as u64 <= CONTROL_BYTES_MAX);
    out.extend_from_slice(&[first, payload.len() as u8]);
    out.extend_from_slice(payload);
}

/// Writes the header of a binary message in front of its payload and returns where the frame begins.
///
/// `buf` is [`HEADER_ROOM`] free bytes and then the payload, of at most 65,535 bytes.
pub(crate) fn put_data_header(buf: &mut [u8]) -> usize {
    let len = buf.len() - HEADER_ROOM;
    debug_assert!(len <= usize::from(u16::MAX));
    if len < 126 {
        buf[2..HEADER_ROOM].copy_from_slice(&[0x82, len as u8]);
        2
    } else {
        buf[..2].copy_from_slice(&[0x82, 126]);
        buf[2..HEADER_ROOM].copy_from_slice(&(len as u16).to_be_bytes());
        0
    }
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
