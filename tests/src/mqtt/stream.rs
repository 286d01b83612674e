//! The transports: TCP, and WebSocket down to its frames.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use base64::Engine as _;

/// How to reach the broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    /// plain
    Tcp,
    /// WebSocket
    Ws {
        /// of the request
        path: String,
        /// the header `Sec-WebSocket-Protocol`
        protocol: Option<String>,
    },
}

impl Link {
    /// WebSocket as most clients speak it.
    pub fn ws() -> Self {
        Self::Ws { path: "/mqtt".into(), protocol: Some("mqtt".into()) }
    }

    /// Both transports.
    pub fn both() -> [Self; 2] {
        [Self::Tcp, Self::ws()]
    }
}

/// Frame types of WebSocket.
#[allow(missing_docs)] // the names are those of RFC 6455
pub mod opcode {
    pub const CONTINUATION: u8 = 0;
    pub const TEXT: u8 = 1;
    pub const BINARY: u8 = 2;
    pub const CLOSE: u8 = 8;
    pub const PING: u8 = 9;
    pub const PONG: u8 = 10;
}

/// A control frame that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// see [`opcode`]
    pub opcode: u8,
    /// payload
    pub payload: Vec<u8>,
}

/// The server did not upgrade; its answer's head.
#[derive(Debug)]
pub struct WebSocketError(pub String);

/// What reading gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// more bytes
    Data,
    /// nothing until the deadline
    Timeout,
    /// the peer closed or reset the connection, or sent a close frame
    Closed,
}

/// An open connection.
#[derive(Debug)]
pub struct Stream {
    socket: TcpStream,
    ws: Option<WebSocket>,
}

#[derive(Debug, Default)]
struct WebSocket {
    raw: Vec<u8>,
    control: VecDeque<Frame>,
    subprotocol: Option<String>,
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

impl Stream {
    /// Connects; for WebSocket with the upgrade.
    ///
    /// # Errors
    /// Of the socket; a refused upgrade is [`ErrorKind::ConnectionRefused`] around a [`WebSocketError`].
    pub fn open(link: &Link, addr: SocketAddr) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(&addr, CONNECT_TIMEOUT)?;
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(Duration::from_secs(30)))?;
        let mut stream = Self { socket, ws: None };
        if let Link::Ws { path, protocol } = link {
            stream.upgrade(addr, path, protocol.as_deref())?;
        }
        Ok(stream)
    }

    /// Sends bytes of MQTT; over WebSocket as one binary frame.
    ///
    /// # Errors
    /// Of the socket.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.ws.is_some() { self.send_frame(opcode::BINARY, true, bytes) } else { self.socket.write_all(bytes) }
    }

    /// Sends one frame, masked as a client has to.
    ///
    /// # Errors
    /// Of the socket.
    pub fn send_frame(&mut self, opcode: u8, fin: bool, payload: &[u8]) -> io::Result<()> {
        let mask = [0x5a, 0xa5, 0x3c, 0xc3];
        let mut frame = vec![(u8::from(fin) << 7) | opcode];
        match payload.len() {
            n @ 0..126 => frame.push(0x80 | n as u8),
            n @ 126..65536 => {
                frame.push(0x80 | 126);
                frame.extend((n as u16).to_be_bytes());
            }
            n => {
                frame.push(0x80 | 127);
                frame.extend((n as u64).to_be_bytes());
            }
        }
        frame.extend(mask);
        frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        self.socket.write_all(&frame)
    }

    /// Sends bytes as they are, below WebSocket.
    ///
    /// # Errors
    /// Of the socket.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes)
    }

    /// The subprotocol the server chose.
    pub fn subprotocol(&self) -> Option<&str> {
        self.ws.as_ref()?.subprotocol.as_deref()
    }

    /// The oldest control frame that arrived and was not asked for yet.
    pub fn control_frame(&mut self) -> Option<Frame> {
        self.ws.as_mut()?.control.pop_front()
    }

    /// Another handle of the socket, to send from another thread.
    ///
    /// # Errors
    /// Of the socket.
    pub fn socket(&self) -> io::Result<TcpStream> {
        self.socket.try_clone()
    }

    /// Ends the connection as a crash does: a reset is not made, but nothing is said either.
    pub fn cut(&self) {
        // It may be closed already, which is what is wanted.
        self.socket.shutdown(Shutdown::Both).ok();
    }

    /// Ends the connection with a reset; what the broker still writes fails.
    #[cfg(unix)]
    pub fn reset(self) {
        rustix::net::sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO)).ok();
    }

    /// Ends the sending direction.
    pub fn cut_write(&self) {
        // As above.
        self.socket.shutdown(Shutdown::Write).ok();
    }

    /// Waits for more bytes of MQTT and adds them to `buffer`.
    ///
    /// # Errors
    /// Those of the socket that do not mean "closed".
    pub fn fill(&mut self, buffer: &mut Vec<u8>, deadline: Instant) -> io::Result<Fill> {
        loop {
            if let Some(fill) = self.unframe(buffer)? {
                return Ok(fill);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Fill::Timeout);
            }
            self.socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            let mut chunk = [0; 16 * 1024];
            let read = match self.socket.read(&mut chunk) {
                Ok(0) => return Ok(Fill::Closed),
                Ok(read) => &chunk[..read],
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => return Ok(Fill::Timeout),
                    ErrorKind::Interrupted => continue,
                    ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => {
                        return Ok(Fill::Closed);
                    }
                    _ => return Err(error),
                },
            };
            match &mut self.ws {
                Some(ws) => ws.raw.extend(read),
                None => {
                    buffer.extend(read);
                    return Ok(Fill::Data);
                }
            }
        }
    }

    /// Takes what is complete out of the WebSocket's bytes.
    fn unframe(&mut self, buffer: &mut Vec<u8>) -> io::Result<Option<Fill>> {
        let Some(ws) = &mut self.ws else { return Ok(None) };
        let mut fill = None;
        let mut pongs = Vec::new();
        while let Some((opcode, payload, len)) = frame(&ws.raw) {
            ws.raw.drain(..len);
            match opcode {
                opcode::BINARY | opcode::CONTINUATION | opcode::TEXT => {
                    buffer.extend(payload);
                    fill = Some(Fill::Data);
                }
                opcode::PING => pongs.push(payload),
                opcode::CLOSE => {
                    ws.control.push_back(Frame { opcode, payload });
                    fill = fill.or(Some(Fill::Closed));
                    break;
                }
                _ => ws.control.push_back(Frame { opcode, payload }),
            }
        }
        for payload in pongs {
            self.send_frame(opcode::PONG, true, &payload)?;
        }
        Ok(fill)
    }

    fn upgrade(&mut self, addr: SocketAddr, path: &str, protocol: Option<&str>) -> io::Result<()> {
        let key = base64::engine::general_purpose::STANDARD.encode(b"sixteen bytes ok");
        let protocol = protocol.map(|p| format!("Sec-WebSocket-Protocol: {p}\r\n")).unwrap_or_default();
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {addr}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n{protocol}\r\n"
        );
        self.socket.write_all(request.as_bytes())?;
        self.socket.set_read_timeout(Some(CONNECT_TIMEOUT))?;
        let mut raw = Vec::new();
        let end = loop {
            if let Some(at) = raw.windows(4).position(|w| w == b"\r\n\r\n") {
                break at + 4;
            }
            let mut chunk = [0; 1024];
            match self.socket.read(&mut chunk)? {
                0 => return Err(refused(&raw)),
                read => raw.extend(&chunk[..read]),
            }
        };
        let head = String::from_utf8_lossy(&raw[..end]).into_owned();
        if head.split_whitespace().nth(1) != Some("101") {
            return Err(refused(&raw));
        }
        let subprotocol = head
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-protocol"))
            .map(|(_, value)| value.trim().to_owned());
        self.ws = Some(WebSocket { raw: raw[end..].to_vec(), control: VecDeque::new(), subprotocol });
        Ok(())
    }
}

fn refused(answer: &[u8]) -> io::Error {
    let text = String::from_utf8_lossy(answer).into_owned();
    io::Error::new(ErrorKind::ConnectionRefused, WebSocketError(text))
}

impl std::fmt::Display for WebSocketError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the upgrade was refused: {}", self.0)
    }
}

impl std::error::Error for WebSocketError {}

/// The first whole frame of a server: its type, its payload, and its length altogether.
fn frame(raw: &[u8]) -> Option<(u8, Vec<u8>, usize)> {
    let (first, second) = (*raw.first()?, *raw.get(1)?);
    let (len, head) = match second & 0x7f {
        126 => (usize::from(u16::from_be_bytes(raw.get(2..4)?.try_into().ok()?)), 4),
        127 => (usize::try_from(u64::from_be_bytes(raw.get(2..10)?.try_into().ok()?)).ok()?, 10),
        n => (usize::from(n), 2),
    };
    assert_eq!(second & 0x80, 0, "a server does not mask");
    Some((first & 0x0f, raw.get(head..head + len)?.to_vec(), head + len))
}
