//! The upgrade as a function of the request's bytes.
#![allow(clippy::unwrap_used)]

use std::task::Poll;

use proptest::prelude::*;
use tokio::io::ReadBuf;

use super::*;

/// Hands its bytes out in pieces, then ends.
struct Pieces<'a>(&'a [u8], usize);

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let (now, later) = self.0.split_at(self.0.len().min(self.1).min(buf.remaining()));
        buf.put_slice(now);
        self.0 = later;
        Poll::Ready(Ok(()))
    }
}

fn run(input: &[u8], step: usize) -> Result<Upgrade, Refused> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(upgrade(&mut Pieces(input, step)))
}

/// The status line's code and the whole answer of a request whose headers are `extra` and the usual ones.
fn ask(extra: &str) -> (u16, String) {
    let request = format!(
        "GET /any/path?x HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{extra}\r\n"
    );
    status(run(request.as_bytes(), request.len()))
}

fn status(result: Result<Upgrade, Refused>) -> (u16, String) {
    let answer = String::from_utf8(result.map(|u| u.answer).unwrap_or_else(|r| r.answer)).unwrap();
    (answer[9..12].parse().unwrap(), answer)
}

#[test]
fn subprotocol_is_the_clients_first_choice_among_ours() {
    for (offer, expected) in [
        ("Sec-WebSocket-Protocol: mqtt\r\n", "mqtt"),
        ("Sec-WebSocket-Protocol: mqttv3.1\r\n", "mqttv3.1"),
        ("sec-websocket-protocol: mqttv3.1, mqtt\r\n", "mqttv3.1"),
        ("Sec-WebSocket-Protocol: chat,mqtt,mqttv3.1\r\n", "mqtt"),
        ("Sec-WebSocket-Protocol: wamp\r\nSec-WebSocket-Protocol: mqtt\r\n", "mqtt"),
    ] {
        let (status, answer) = ask(offer);
        assert_eq!(status, 101, "{offer}");
        assert!(answer.contains(&format!("\r\nSec-WebSocket-Protocol: {expected}\r\n")), "{offer}: {answer}");
        assert!(answer.contains("\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"), "{answer}");
    }
}

#[test]
fn absent_or_empty_subprotocol_is_accepted_without_an_answer() {
    for offer in ["", "Sec-WebSocket-Protocol:\r\n"] {
        let (status, answer) = ask(offer);
        assert_eq!(status, 101);
        assert!(!answer.contains("Sec-WebSocket-Protocol"));
    }
}

#[test]
fn foreign_subprotocols_are_refused() {
    for offer in ["chat", "MQTT-ish, xmqtt", "mqtt/5"] {
        assert_eq!(ask(&format!("Sec-WebSocket-Protocol: {offer}\r\n")).0, 400, "{offer}");
    }
}

#[test]
fn requests_that_are_no_upgrade_get_an_http_answer() {
    let key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let up = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
    for (request, expected) in [
        ("GET / HTTP/1.1\r\nHost: h\r\n\r\n".into(), 426),
        ("POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}".into(), 426),
        ("GET / HTTP/1.0\n\n".into(), 426),
        ("GET nonsense\r\n\r\n".into(), 400),
        (format!("GET / HTTP/1.1\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n{key}\r\n"), 400),
        (format!("GET / HTTP/1.1\r\n{up}Sec-WebSocket-Version: 8\r\n{key}\r\n"), 426),
        (format!("GET / HTTP/1.1\r\n{up}{key}\r\n"), 426),
        (format!("GET / HTTP/1.1\r\n{up}Sec-WebSocket-Version: 13\r\n\r\n"), 400),
        (format!("GET / HTTP/1.1\r\n{up}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: short\r\n\r\n"), 400),
        (format!("GET / HTTP/1.1\r\n{up}Sec-WebSocket-Version: 13\r\n{key}{key}\r\n"), 400),
        (format!("PUT / HTTP/1.1\r\n{up}Sec-WebSocket-Version: 13\r\n{key}\r\n"), 400),
        ("\x10\x0c\0\x04MQTT".into(), 400),
        (format!("GET / HTTP/1.1\r\n{}", "X: y\r\n".repeat(4000)), 431),
        (format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(101)), 400),
    ] {
        let request: String = request;
        let (status, answer) = status(run(request.as_bytes(), 1000));
        assert_eq!(status, expected, "{request:.80}");
        assert!(answer.contains("Connection: close"), "{answer}");
    }
}

#[test]
fn frames_sent_along_are_kept_however_the_request_is_cut() {
    let mut request = b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        .to_vec();
    let head = request.len();
    request.extend_from_slice(b"\x82\x80abcd");
    for step in [1, 3, head - 1, head, head + 2, request.len()] {
        let granted = run(&request, step).unwrap();
        assert!(b"\x82\x80abcd".starts_with(&granted.rest), "in pieces of {step}");
        if step == request.len() {
            assert_eq!(granted.rest.len(), 6);
        }
    }
}

#[test]
fn client_that_goes_before_the_end_is_not_answered() {
    let refused = run(b"GET / HTTP/1.1\r\n", 5).unwrap_err();
    assert_eq!(refused, Refused { reason: Failure::Closed, answer: Vec::new() });
}

proptest! {
    #[test]
    fn no_request_makes_it_panic(text in "(GET|POST)? ?/? ?(HTTP/1.1)?\r\n([A-Za-z-]{1,10}:[ -~]{0,10}\r\n){0,5}(\r\n)?", step in 1..50usize) {
        // Only that it returns matters.
        let _ = run(text.as_bytes(), step);
    }
}
