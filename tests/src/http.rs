//! HTTP by hand: enough for the API, and for bodies that no library would send.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// The peer did not answer in HTTP.
pub type HttpError = io::Error;

/// An answer.
#[derive(Debug, Clone)]
pub struct Response {
    /// status code
    pub status: u16,
    /// names in lower case
    pub headers: Vec<(String, String)>,
    /// body
    pub body: Vec<u8>,
}

impl Response {
    /// The first header with that name (in lower case).
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// If it is none.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{}: no JSON: {e}: {}", self.status, self.text()))
    }
}

/// One request on a connection of its own.
///
/// # Errors
/// Of the socket, or an answer that is no HTTP.
pub fn request(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Option<&[u8]>,
) -> Result<Response, HttpError> {
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    if let Some(body) = body {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    head += "\r\n";
    exchange(addr, &[head.as_bytes(), body.unwrap_or_default()])
}

/// Sends bytes and reads the answer. A server that answers before it has read everything is not a fault.
///
/// # Errors
/// Of the socket, or an answer that is no HTTP.
pub fn exchange(addr: SocketAddr, parts: &[&[u8]]) -> Result<Response, HttpError> {
    let mut socket = TcpStream::connect_timeout(&addr, Duration::from_secs(10))?;
    socket.set_read_timeout(Some(Duration::from_secs(30)))?;
    socket.set_write_timeout(Some(Duration::from_secs(30)))?;
    for part in parts {
        // It may have answered and closed already: the answer tells.
        if socket.write_all(part).is_err() {
            break;
        }
    }
    let mut raw = Vec::new();
    loop {
        let mut chunk = [0; 16 * 1024];
        match socket.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => raw.extend(&chunk[..read]),
            // A reset after the answer: the server did not want the rest of the body.
            Err(_) if complete(&raw) => break,
            Err(error) => return Err(error),
        }
        if complete(&raw) {
            break;
        }
    }
    parse(&raw).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("no HTTP: {:?}", String::from_utf8_lossy(&raw)))
    })
}

/// The head of an answer, and where its body begins.
fn head(raw: &[u8]) -> Option<(Response, usize)> {
    let end = raw.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&raw[..end]);
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    let headers = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
    Some((Response { status, headers, body: Vec::new() }, end + 4))
}

/// Whether the answer has all the bytes it announced.
fn complete(raw: &[u8]) -> bool {
    let Some((head, at)) = head(raw) else { return false };
    head.header("content-length").and_then(|length| length.parse::<usize>().ok()).is_some_and(|n| raw.len() >= at + n)
}

fn parse(raw: &[u8]) -> Option<Response> {
    let (head, at) = head(raw)?;
    let chunked = head.header("transfer-encoding").is_some_and(|value| value.contains("chunked"));
    let body = if chunked { unchunk(&raw[at..])? } else { raw[at..].to_vec() };
    Some(Response { body, ..head })
}

fn unchunk(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|w| w == b"\r\n")?;
        let size = String::from_utf8_lossy(&rest[..end]);
        let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
        rest = &rest[end + 2..];
        if size == 0 {
            return Some(body);
        }
        body.extend(rest.get(..size)?);
        rest = rest.get(size + 2..)?;
    }
}
