//! A gate on free ports, an engine that records, and clients that speak in bytes.

use std::net::SocketAddr;
use std::time::Duration;

use ciqadamq_gate::{Gate, GateConfig, GateHandle, GateListener, ProxyProtocol, Transport};
use prometheus::Registry;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A CONNECT of MQTT 3.1.1 with the client id `test`.
pub const CONNECT: &[u8] = b"\x10\x10\0\x04MQTT\x04\x02\0\x3c\0\x04test";
/// Its answer.
pub const CONNACK: &[u8] = b"\x20\x02\0\0";
/// The mask of [`frame`]. Any will do, but zero would hide a missing unmasking.
const MASK: [u8; 4] = [0x5a, 0x01, 0xc3, 0x7e];

/// Fails the test if `step` takes longer than any step of these tests should.
pub async fn soon<T>(step: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), step).await.expect("takes too long")
}

/// A gate that serves, and the engine behind it.
pub struct Site {
    pub gate: GateHandle,
    pub engine: Engine,
    pub registry: Registry,
    addrs: Vec<(&'static str, SocketAddr)>,
}

/// One listener on a free port, named after what it is.
pub fn listener(name: &'static str, transport: Transport, proxy_protocol: bool) -> GateListener {
    let proxy_protocol = if proxy_protocol { ProxyProtocol::Everybody } else { ProxyProtocol::Off };
    GateListener { name, addr: "127.0.0.1:0".parse().unwrap(), transport, proxy_protocol, tls: None }
}

/// A gate with one listener called `door`.
pub async fn site(transport: Transport, proxy_protocol: bool) -> Site {
    site_with(GateConfig::new(vec![listener("door", transport, proxy_protocol)])).await
}

pub async fn site_with(config: GateConfig) -> Site {
    let engine = Engine::start().await;
    let registry = Registry::new();
    let gate = Gate::bind(config, &registry).unwrap();
    let addrs = gate.local_addrs();
    Site { gate: gate.serve(engine.addr()), engine, registry, addrs }
}

impl Site {
    pub fn addr(&self, listener: &str) -> SocketAddr {
        self.addrs.iter().find(|(name, _)| *name == listener).unwrap().1
    }

    /// A new connection to `door`.
    pub async fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.addr("door")).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// A new connection to `door`, made a WebSocket.
    pub async fn websocket(&self) -> TcpStream {
        let mut stream = self.connect().await;
        upgrade(&mut stream).await;
        stream
    }

    /// The value of a metric, summed over the series whose labels include `labels`.
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let text = prometheus::TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap();
        let series: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')).collect();
        assert!(!series.is_empty(), "no metric {name}");
        let matches = |line: &&str| labels.iter().all(|(k, v)| line.contains(&format!("{k}=\"{v}\"")));
        series.into_iter().filter(matches).map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    pub async fn wait_for_metric(&self, name: &str, labels: &[(&str, &str)], value: f64) {
        let wait = async {
            while self.metric(name, labels) != value {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), wait).await;
        assert!(waited.is_ok(), "{name} {labels:?} is {} and not {value}", self.metric(name, labels));
    }

    pub async fn wait_for_failures(&self, reason: &str, count: f64) {
        self.wait_for_metric("ciqadamq_gate_handshake_failures_total", &[("reason", reason)], count).await;
    }

    pub async fn wait_for_open(&self, count: f64) {
        self.wait_for_metric("ciqadamq_gate_connections", &[], count).await;
    }
}

/// Accepts as the engine's internal listener does.
pub struct Engine(TcpListener);

/// One connection, its PROXY header taken off.
pub struct EngineSide {
    pub stream: TcpStream,
    /// The client's address according to the header.
    pub source: SocketAddr,
    pub header: Vec<u8>,
    /// The gate's end.
    pub peer: SocketAddr,
}

impl Engine {
    async fn start() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub fn addr(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    /// The next connection, whose header must be there with the first bytes.
    pub async fn accept(&self) -> EngineSide {
        let (mut stream, peer) = soon(self.0.accept()).await.unwrap();
        let mut seen = [0; 1024];
        let n = soon(stream.peek(&mut seen)).await.unwrap();
        let len = match seen[13] {
            0x11 => 28,
            0x21 => 52,
            other => panic!("unexpected family {other:#x}"),
        };
        assert!(n >= len, "the header came in pieces");
        assert_eq!(&seen[..13], b"\r\n\r\n\0\r\nQUIT\n\x21");
        let mut header = vec![0; len];
        stream.read_exact(&mut header).await.unwrap();
        let port = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let source = if len == 28 {
            SocketAddr::new(<[u8; 4]>::try_from(&header[16..20]).unwrap().into(), port(24))
        } else {
            SocketAddr::new(<[u8; 16]>::try_from(&header[16..32]).unwrap().into(), port(48))
        };
        EngineSide { stream, source, header, peer }
    }

    /// The next connection, whose first packet must be [`CONNECT`].
    pub async fn accept_client(&self) -> EngineSide {
        let mut side = self.accept().await;
        assert_eq!(read(&mut side.stream, CONNECT.len()).await, CONNECT);
        side
    }

    /// Whether nobody has connected.
    pub async fn is_unbothered(&self) -> bool {
        tokio::time::timeout(Duration::from_millis(20), self.0.accept()).await.is_err()
    }
}

/// Reads exactly `len` bytes.
pub async fn read(stream: &mut (impl AsyncRead + Unpin), len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    soon(stream.read_exact(&mut bytes)).await.unwrap();
    bytes
}

/// Reads until the other side ends, by whatever means.
pub async fn read_to_end(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset is an end too.
    let _ = soon(stream.read_to_end(&mut bytes)).await;
    bytes
}

pub fn upgrade_request(headers: &str) -> String {
    format!(
        "GET /mqtt HTTP/1.1\r\nHost: gate\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    )
}

/// Sends an HTTP request and reads the head of the answer.
pub async fn http(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(soon(stream.read_u8()).await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

pub async fn upgrade(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    let answer = http(stream, &upgrade_request("Sec-WebSocket-Protocol: mqtt\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
}

/// A client's frame; `first` has the final bit and the opcode.
pub fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
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

/// The next frame from the gate: first byte and payload.
pub async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> (u8, Vec<u8>) {
    let head = read(stream, 2).await;
    let len = match head[1] {
        126 => usize::from(soon(stream.read_u16()).await.unwrap()),
        n @ 0..126 => usize::from(n),
        n => panic!("unexpected length byte {n}"),
    };
    (head[0], read(stream, len).await)
}

/// The code of the close frame that must come next, and the end that must follow it.
pub async fn read_close(stream: &mut (impl AsyncRead + Unpin)) -> u16 {
    let (first, payload) = read_frame(stream).await;
    assert_eq!(first, 0x88, "no close frame but {}", payload.escape_ascii());
    assert_eq!(read_to_end(stream).await, b"");
    u16::from_be_bytes([payload[0], payload[1]])
}
