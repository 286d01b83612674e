//! The HTTP request that opens a WebSocket, and its answer.
//!
//! Any path is taken. A request that is not an upgrade gets an HTTP answer, so that a browser or a health check that
//! strays here shows something better than a reset.

use httparse::{EMPTY_HEADER, Header, Request, Status};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::metrics::Failure;

/// The largest request head taken: browsers send cookies, and proxies add their own.
const HEAD_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 100;
/// The subprotocols of MQTT: the registered one, and that of MQTT 3.1.
const SUBPROTOCOLS: [&str; 2] = ["mqtt", "mqttv3.1"];

/// An upgrade to grant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Upgrade {
    /// The `101` to send.
    pub(crate) answer: Vec<u8>,
    /// Bytes that came after the request: the client's first frames.
    pub(crate) rest: Vec<u8>,
}

/// A request that is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) reason: Failure,
    /// What to answer before closing. Empty if there is nobody to answer.
    pub(crate) answer: Vec<u8>,
}

/// Reads a request and judges it. The caller sends the answer and sets the time limit.
pub(crate) async fn upgrade(io: &mut (impl AsyncRead + Unpin)) -> Result<Upgrade, Refused> {
    let mut input = Vec::with_capacity(1024);
    loop {
        let before = input.len();
        if !matches!(io.read_buf(&mut input).await, Ok(1..)) {
            return Err(Refused { reason: Failure::Closed, answer: Vec::new() });
        }
        // Whoever speaks MQTT or TLS here waits for an answer; it need not wait for the timeout.
        if !input[0].is_ascii_uppercase() {
            return Err(not_upgrade("400 Bad Request", "", "this is a WebSocket listener"));
        }
        if let Some(end) = head_end(&input, before) {
            let rest = input.split_off(end);
            return Ok(Upgrade { answer: judge(&input)?, rest });
        }
        if input.len() >= HEAD_BYTES_MAX {
            return Err(not_upgrade("431 Request Header Fields Too Large", "", "the request head is over 16 KiB"));
        }
    }
}

/// Where the empty line ends, searching only what `before` has not been searched yet.
fn head_end(input: &[u8], before: usize) -> Option<usize> {
    let from = before.saturating_sub(3);
    let ends = |i: &usize| input[..*i].ends_with(b"\r\n\r\n") || input[..*i].ends_with(b"\n\n");
    (from + 1..=input.len().min(HEAD_BYTES_MAX)).find(ends)
}

fn judge(head: &[u8]) -> Result<Vec<u8>, Refused> {
    let bad = |why| not_upgrade("400 Bad Request", "", why);
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    match request.parse(head) {
        Ok(Status::Complete(_)) => {}
        Ok(Status::Partial) | Err(_) => return Err(bad("malformed request")),
    }
    let headers: &[Header<'_>] = request.headers;

    if !tokens(headers, "upgrade").any(|token| token.eq_ignore_ascii_case("websocket")) {
        return Err(upgrade_required("this is a WebSocket listener for MQTT"));
    }
    if request.method != Some("GET") || request.version != Some(1) {
        return Err(bad("a WebSocket upgrade is a GET of HTTP/1.1"));
    }
    if !tokens(headers, "connection").any(|token| token.eq_ignore_ascii_case("upgrade")) {
        return Err(bad("the Connection header must say Upgrade"));
    }
    if tokens(headers, "sec-websocket-version").ne(["13"]) {
        return Err(upgrade_required("only WebSocket version 13 is spoken here"));
    }
    let mut keys = values(headers, "sec-websocket-key");
    let key = keys.next().filter(|key| is_key(key)).ok_or_else(|| bad("Sec-WebSocket-Key is missing or malformed"))?;
    if keys.next().is_some() {
        return Err(bad("Sec-WebSocket-Key is there twice"));
    }

    let mut answer = String::from("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n");
    answer.push_str(&format!("Sec-WebSocket-Accept: {}\r\n", derive_accept_key(key.as_bytes())));
    // The client's first choice among ours. A client that offers nothing is not told anything: it would have to fail.
    let mut offered = tokens(headers, "sec-websocket-protocol").peekable();
    if offered.peek().is_some() {
        let chosen = offered.find(|token| SUBPROTOCOLS.contains(token)).ok_or_else(|| Refused {
            reason: Failure::Subprotocol,
            answer: http_answer("400 Bad Request", "", "offer the subprotocol mqtt or mqttv3.1"),
        })?;
        answer.push_str(&format!("Sec-WebSocket-Protocol: {chosen}\r\n"));
    }
    answer.push_str("\r\n");
    Ok(answer.into_bytes())
}

/// The values of all header lines of this name that are text.
fn values<'a>(headers: &'a [Header<'a>], name: &'a str) -> impl Iterator<Item = &'a str> {
    headers
        .iter()
        .filter(move |header| header.name.eq_ignore_ascii_case(name))
        .filter_map(|header| std::str::from_utf8(header.value).ok())
        .map(str::trim)
}

/// The elements of a list that may stand in one line or in several.
fn tokens<'a>(headers: &'a [Header<'a>], name: &'a str) -> impl Iterator<Item = &'a str> {
    values(headers, name).flat_map(|value| value.split(',')).map(str::trim).filter(|token| !token.is_empty())
}

/// Sixteen bytes in base64.
fn is_key(key: &str) -> bool {
    key.len() == 24
        && key
            .strip_suffix("==")
            .is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/".contains(&b)))
}

fn upgrade_required(text: &str) -> Refused {
    not_upgrade("426 Upgrade Required", "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n", text)
}

fn not_upgrade(status: &str, headers: &str, text: &str) -> Refused {
    Refused { reason: Failure::NotUpgrade, answer: http_answer(status, headers, text) }
}

fn http_answer(status: &str, headers: &str, text: &str) -> Vec<u8> {
    let connection = if headers.contains("Upgrade:") { "close, Upgrade" } else { "close" };
    format!(
        "HTTP/1.1 {status}\r\nConnection: {connection}\r\n{headers}Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n{text}\n",
        text.len() + 1
    )
    .into_bytes()
}

#[cfg(test)]
#[path = "upgrade_tests.rs"]
mod tests;
