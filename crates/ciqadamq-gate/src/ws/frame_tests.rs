//! The decoder against hand-made frames, and against itself in any cut.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

const MASK: [u8; 4] = [0x11, 0xa2, 0x33, 0xc4];

/// A client's frame, with its header as tungstenite writes it.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    match payload.len() {
        n @ 0..126 => out.push(0x80 | n as u8),
        n @ 126..=0xffff => {
            out.push(0x80 | 126);
            out.extend_from_slice(&(n as u16).to_be_bytes());
        }
        n => {
            out.push(0x80 | 127);
            out.extend_from_slice(&(n as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&MASK);
    out.extend(payload.iter().zip(MASK.iter().cycle()).map(|(b, m)| b ^ m));
    out
}

/// Decodes `input` cut into pieces of `step` bytes.
fn decode(input: &[u8], step: usize, max: u64) -> (Vec<u8>, Vec<u8>, Option<End>) {
    let mut decoder = Decoder::new(max);
    let (mut data, mut replies) = (Vec::new(), Vec::new());
    for piece in input.chunks(step) {
        let mut piece = piece.to_vec();
        let decoded = decoder.decode(&mut piece, &mut replies);
        data.extend_from_slice(&piece[..decoded.data]);
        if decoded.end.is_some() {
            return (data, replies, decoded.end);
        }
    }
    (data, replies, None)
}

#[test]
fn fragments_and_control_frames_in_between_are_told_apart() {
    let mut input = frame(0x02, b"ab");
    input.extend(frame(0x89, b"hey"));
    input.extend(frame(0x00, b""));
    input.extend(frame(0x89, b""));
    input.extend(frame(0x8a, b"unasked"));
    input.extend(frame(0x80, &[b'c'; 300]));
    input.extend(frame(0x82, b"next"));
    input.extend(frame(0x88, &[0x03, 0xe8, b'b', b'y', b'e']));
    input.extend(frame(0x82, b"ignored"));
    for step in [1, 2, 3, 7, 64, input.len()] {
        let (data, replies, end) = decode(&input, step, 1000);
        assert_eq!(data, [&b"ab"[..], &[b'c'; 300], b"next"].concat(), "in pieces of {step}");
        assert_eq!(replies, b"\x8a\x03hey\x8a\x00", "in pieces of {step}");
        assert_eq!(end, Some(End::Close(Some(1000))), "in pieces of {step}");
    }
}

#[test]
fn what_websocket_forbids_ends_the_stream_with_its_code() {
    let unmasked = vec![0x82, 0x01, 0x00];
    let lie = [&[0x82, 0xff][..], &u64::MAX.to_be_bytes(), &MASK].concat();
    let too_long_in_fragments = [frame(0x02, &[0; 60]), frame(0x80, &[0; 41])].concat();
    for (input, code) in [
        (frame(0x81, b"text"), 1003),
        (unmasked, 1002),
        (frame(0xc2, b"compressed"), 1002),
        (frame(0x83, b"reserved"), 1002),
        (frame(0x8b, b"reserved"), 1002),
        (frame(0x80, b"continues nothing"), 1002),
        ([frame(0x02, b"a"), frame(0x82, b"b")].concat(), 1002),
        (frame(0x09, b"fragmented ping"), 1002),
        (frame(0x89, &[0; 126]), 1002),
        (frame(0x88, &[3]), 1002),
        (frame(0x88, &[0x03, 0xed]), 1002),
        (frame(0x88, &[0x03, 0xe8, 0xff]), 1002),
        (frame(0x82, &[0; 101]), 1009),
        (too_long_in_fragments, 1009),
        (lie, 1009),
    ] {
        let (_, _, end) = decode(&input, input.len(), 100);
        assert!(matches!(end, Some(End::Violation(c, _)) if c == code), "{}: {end:?}", input.escape_ascii());
        let answer = end.unwrap().answer();
        assert_eq!(answer[2..4], code.to_be_bytes());
    }
}

#[test]
fn close_without_code_is_answered_without_code() {
    let (_, _, end) = decode(&frame(0x88, b""), 1, 100);
    assert_eq!(end.unwrap().answer(), [0x88, 0]);
}

#[test]
fn data_headers_stand_right_before_the_payload() {
    for len in [0, 1, 125, 126, 127, 16384, 65535] {
        let mut buf = vec![7; HEADER_ROOM + len];
        let start = put_data_header(&mut buf);
        let (header, n) = FrameHeader::parse(&mut Cursor::new(&buf[start..])).unwrap().unwrap();
        assert_eq!((n as usize, header.mask, header.is_final), (len, None, true));
        assert_eq!(start + header.len(n), HEADER_ROOM);
    }
}

proptest! {
    #[test]
    fn any_bytes_in_any_cut_decode_alike(input in prop::collection::vec(any::<u8>(), 0..400), step in 1..40usize) {
        prop_assert_eq!(decode(&input, step, 200), decode(&input, 1, 200));
    }

    #[test]
    fn payload_comes_through_any_cut(payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..6), step in 1..70usize) {
        let input: Vec<u8> = payloads.iter().flat_map(|p| frame(0x82, p)).collect();
        let (data, replies, end) = decode(&input, step, 300);
        prop_assert_eq!(data, payloads.concat());
        prop_assert!(replies.is_empty() && end.is_none());
    }
}
