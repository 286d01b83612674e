//! The first MQTT packet: the engine is bothered only by a connection that has sent a whole CONNECT.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::io::ClientIo;
use crate::metrics::Failure;
use crate::pending::Permit;
use crate::ws::{Decoder, End, close_frame, code};

/// CONNECT's packet type, with the flags that the standard fixes (MQTT 5.0 §3.1.1).
const CONNECT: u8 = 0x10;
/// Read at a time. A CONNECT is rarely larger.
const CHUNK: usize = 2048;
/// What each pending connection may use before it counts against the memory of all.
const UNCOUNTED_BYTES: usize = 2 * CHUNK;

/// What the client sent until its CONNECT was complete.
#[derive(Debug)]
pub(crate) struct FirstBytes {
    /// The CONNECT, and what came in the same read after it.
    pub(crate) bytes: Vec<u8>,
    /// The client ended the stream in the same read.
    pub(crate) end: Option<End>,
}

/// No CONNECT came.
#[derive(Debug)]
pub(crate) struct NoConnect {
    pub(crate) reason: Failure,
    /// What to send before closing.
    pub(crate) answer: Vec<u8>,
}

/// Reads until the first packet is complete. `rest` are bytes that were read before. The caller sets the time limit.
///
/// Memory grows with what has come, not with what the packet says it will be.
pub(crate) async fn collect(
    io: &mut ClientIo,
    mut frames: Option<&mut Decoder>,
    rest: Vec<u8>,
    max_packet_size: u32,
    permit: &mut Permit,
) -> Result<FirstBytes, NoConnect> {
    let mut bytes = Vec::new();
    let mut chunk = rest;
    loop {
        let mut end = None;
        let mut data = chunk.len();
        if let Some(decoder) = &mut frames {
            let mut replies = Vec::new();
            let decoded = decoder.decode(&mut chunk, &mut replies);
            (data, end) = (decoded.data, decoded.end);
            if !replies.is_empty() && (io.write_all(&replies).await.is_err() || io.flush().await.is_err()) {
                return Err(NoConnect { reason: Failure::Closed, answer: Vec::new() });
            }
        }
        bytes.extend_from_slice(&chunk[..data]);
        match is_complete(&bytes, max_packet_size) {
            Ok(true) => return Ok(FirstBytes { bytes, end }),
            Ok(false) if bytes.capacity() <= UNCOUNTED_BYTES => {}
            Ok(false) => {
                if let Err(refusal) = permit.occupy(bytes.capacity()) {
                    let reason = Failure::Refused(refusal);
                    return Err(NoConnect { reason, answer: answer(reason, frames.is_some()) });
                }
            }
            Err(reason) => return Err(NoConnect { reason, answer: answer(reason, frames.is_some()) }),
        }
        if let Some(end) = end {
            let reason = if matches!(end, End::Close(_)) { Failure::Closed } else { Failure::WebSocket };
            return Err(NoConnect { reason, answer: end.answer() });
        }
        chunk.resize(CHUNK, 0);
        match io.read(&mut chunk).await {
            Ok(0) | Err(_) => return Err(NoConnect { reason: Failure::Closed, answer: Vec::new() }),
            Ok(n) => chunk.truncate(n),
        }
    }
}

/// The last words to a client for whose failure there is a WebSocket close code, if it speaks WebSocket.
pub(crate) fn answer(reason: Failure, websocket: bool) -> Vec<u8> {
    if !websocket {
        return Vec::new();
    }
    match reason {
        Failure::Timeout => close_frame(code::POLICY, "no CONNECT in time"),
        Failure::NotConnect => close_frame(code::PROTOCOL, "the first packet must be CONNECT"),
        Failure::Refused(_) => close_frame(code::POLICY, "too many connections"),
        Failure::TooLarge => close_frame(code::TOO_BIG, "packet too large"),
        Failure::Engine => close_frame(code::INTERNAL, ""),
        Failure::Shutdown => close_frame(code::AWAY, ""),
        _ => Vec::new(),
    }
}

/// Whether `bytes` hold a whole CONNECT; an error as soon as they cannot become one.
fn is_complete(bytes: &[u8], max_packet_size: u32) -> Result<bool, Failure> {
    let Some((&first, rest)) = bytes.split_first() else { return Ok(false) };
    if first != CONNECT {
        return Err(Failure::NotConnect);
    }
    let mut remaining = 0;
    for (i, byte) in rest.iter().take(4).enumerate() {
        remaining |= u32::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            if remaining > max_packet_size {
                return Err(Failure::TooLarge);
            }
            return Ok(rest.len() - (i + 1) >= remaining as usize);
        }
    }
    // A fourth length byte that asks for a fifth.
    if rest.len() >= 4 { Err(Failure::NotConnect) } else { Ok(false) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_is_complete_with_its_last_byte() {
        assert_eq!(is_complete(&[], 10), Ok(false));
        assert_eq!(is_complete(&[0x10], 10), Ok(false));
        assert_eq!(is_complete(&[0x10, 2, 0], 10), Ok(false));
        assert_eq!(is_complete(&[0x10, 2, 0, 0], 10), Ok(true));
        assert_eq!(is_complete(&[0x10, 2, 0, 0, 0xe0, 0], 10), Ok(true));
        let mut long = vec![0x10, 0x80, 0x01];
        long.resize(3 + 127, 0);
        assert_eq!(is_complete(&long, 128), Ok(false));
        long.push(0);
        assert_eq!(is_complete(&long, 128), Ok(true));
    }

    #[test]
    fn anything_else_fails_at_the_first_byte_that_tells() {
        assert_eq!(is_complete(&[0x30], 10), Err(Failure::NotConnect));
        assert_eq!(is_complete(&[0x11], 10), Err(Failure::NotConnect));
        assert_eq!(is_complete(&[0x10, 11], 10), Err(Failure::TooLarge));
        assert_eq!(is_complete(&[0x10, 0xff, 0xff, 0xff, 0x7f], 1 << 20), Err(Failure::TooLarge));
        assert_eq!(is_complete(&[0x10, 0xff, 0xff, 0xff, 0xff], u32::MAX), Err(Failure::NotConnect));
    }
}
