//! One connection from accept to its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus::IntGauge;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use crate::config::{ProxyProtocol, Transport};
use crate::engine::Engine;
use crate::first_packet::{self, FirstBytes, NoConnect};
use crate::gate::{Stage, reached};
use crate::io::ClientIo;
use crate::metrics::{Failure, ListenerMetrics, Metrics};
use crate::peers::{EnginePeers, PeerGuard, canonical};
use crate::pending::{Pending, Permit};
use crate::proxy::{self, Announced};
use crate::pump::Pump;
use crate::ws::{self, Decoder};

/// A WebSocket message may hold many packets, so a small packet limit does not make for small messages.
const MESSAGE_BYTES_MIN: u64 = 64 * 1024;
/// An MQTT packet's type and length, which come on top of the size that is limited.
const PACKET_HEADER_BYTES: u64 = 5;

/// What all connections of the gate share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) connect_timeout: Duration,
    pub(crate) nodelay: bool,
    pub(crate) stall_timeout: Duration,
    pub(crate) max_packet_size: u32,
    pub(crate) pending: Arc<Pending>,
    pub(crate) peers: EnginePeers,
    pub(crate) metrics: Metrics,
    pub(crate) engine: Engine,
}

/// What all connections of one listener share.
pub(crate) struct Door {
    pub(crate) name: &'static str,
    pub(crate) transport: Transport,
    pub(crate) proxy_protocol: ProxyProtocol,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) metrics: ListenerMetrics,
}

/// Serves one connection. `peer` is the other end of `stream`, which behind a load balancer is not the client.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    door: Arc<Door>,
    stream: TcpStream,
    peer: SocketAddr,
    permit: Permit,
    stage: watch::Receiver<Stage>,
) {
    let _open = OpenGuard::new(&door.metrics.connections);
    let limits = Limits { deadline: Instant::now() + shared.connect_timeout, stage: stage.clone() };
    // Boxed, and gone before the pump runs: it is much larger than what a connection needs afterwards.
    match Box::pin(establish(&shared, &door, stream, peer, permit, limits)).await {
        Ok((pump, _entry)) => {
            pump.run(stage).await;
            debug!(listener = door.name, %peer, "connection ended");
        }
        Err(reason) => {
            shared.metrics.failed(door.name, reason);
            debug!(listener = door.name, %peer, %reason, "connection ended before the engine had it");
        }
    }
}

/// Everything before the pump: PROXY header, TLS, upgrade, CONNECT, and the connection to the engine.
async fn establish(
    shared: &Shared,
    door: &Door,
    mut stream: TcpStream,
    peer: SocketAddr,
    mut permit: Permit,
    mut limits: Limits,
) -> Result<(Pump, PeerGuard), Failure> {
    // A socket that refuses the option is closed already, and that shows next.
    let _ = stream.set_nodelay(shared.nodelay);
    let (source, destination) = limits.keep(addresses(door, &mut stream, peer)).await??;
    permit.assign(source.ip()).map_err(Failure::Refused)?;

    let mut io = match &door.tls {
        Some(acceptor) => limits.keep(secure(acceptor, stream)).await??,
        None => ClientIo::Plain(stream),
    };
    let (mut frames, rest) = if door.transport.is_websocket() {
        let rest = upgrade(&mut io, &mut limits).await?;
        let bytes_max = (u64::from(shared.max_packet_size) + PACKET_HEADER_BYTES).max(MESSAGE_BYTES_MIN);
        (Some(Decoder::new(bytes_max)), rest)
    } else {
        (None, Vec::new())
    };

    let websocket = frames.is_some();
    let collecting = first_packet::collect(&mut io, frames.as_mut(), rest, shared.max_packet_size, &mut permit);
    let first = match limits.keep(collecting).await {
        Ok(Ok(first)) => first,
        Ok(Err(NoConnect { reason, answer })) => return Err(give_up(&mut io, reason, &answer).await),
        Err(reason) => {
            return Err(give_up(&mut io, reason, &first_packet::answer(reason, websocket)).await);
        }
    };

    match limits.keep(hand_over(shared, source, destination, &first)).await.and_then(|result| result) {
        Ok((engine, entry)) => {
            debug!(listener = door.name, %peer, client = %source, "connection handed to the engine");
            let mut pump = Pump::new(io, frames, engine, shared.stall_timeout);
            if let Some(end) = first.end {
                pump.client_ended(end);
            }
            Ok((pump, entry))
        }
        Err(reason) => Err(give_up(&mut io, reason, &first_packet::answer(reason, websocket)).await),
    }
}

/// The client's address, and the one it connected to.
async fn addresses(door: &Door, stream: &mut TcpStream, peer: SocketAddr) -> Result<(SocketAddr, SocketAddr), Failure> {
    let announced = match door.proxy_protocol.expects(peer.ip()) {
        true => proxy::read_header(stream).await?,
        false => Announced::Own,
    };
    let (source, destination) = match announced {
        Announced::Proxied { source, destination } => (source, destination),
        Announced::Own => (peer, stream.local_addr().map_err(|_| Failure::Closed)?),
    };
    Ok((canonical(source), canonical(destination)))
}

async fn secure(acceptor: &TlsAcceptor, stream: TcpStream) -> Result<ClientIo, Failure> {
    match acceptor.accept(stream).await {
        Ok(tls) => Ok(ClientIo::Tls(Box::new(tls))),
        Err(e) => {
            debug!(error = %e, "TLS handshake failed");
            Err(Failure::Tls)
        }
    }
}

/// Makes it a WebSocket, and returns the first bytes that came after the request.
async fn upgrade(io: &mut ClientIo, limits: &mut Limits) -> Result<Vec<u8>, Failure> {
    match limits.keep(ws::upgrade(io)).await? {
        Ok(granted) => {
            let answer = async {
                io.write_all(&granted.answer).await?;
                io.flush().await
            };
            limits.keep(answer).await?.map_err(|_| Failure::Closed)?;
            Ok(granted.rest)
        }
        Err(refused) => Err(give_up(io, refused.reason, &refused.answer).await),
    }
}

/// Connects to the engine and gives it the client's address and first bytes.
async fn hand_over(
    shared: &Shared,
    source: SocketAddr,
    destination: SocketAddr,
    first: &FirstBytes,
) -> Result<(TcpStream, PeerGuard), Failure> {
    let unreachable = |e: std::io::Error| {
        debug!(error = %e, "the engine does not take a connection");
        Failure::Engine
    };
    let mut engine = shared.engine.connect().await.map_err(unreachable)?;
    // Before the engine can know the client: whoever hears of it there finds it here.
    let entry = shared.peers.enter(source, engine.local_addr().map_err(unreachable)?);
    // One write, since the engine looks for the whole header in what it gets first.
    let mut bytes = proxy::encode_v2(source, destination);
    bytes.extend_from_slice(&first.bytes);
    engine.write_all(&bytes).await.map_err(unreachable)?;
    Ok((engine, entry))
}

async fn give_up(io: &mut ClientIo, reason: Failure, answer: &[u8]) -> Failure {
    if !answer.is_empty() {
        io.finish(answer).await;
    }
    reason
}

/// The time limit before CONNECT, and the end of the gate.
struct Limits {
    deadline: Instant,
    stage: watch::Receiver<Stage>,
}

impl Limits {
    async fn keep<T>(&mut self, step: impl Future<Output = T>) -> Result<T, Failure> {
        tokio::select! {
            biased;
            result = timeout_at(self.deadline, step) => result.map_err(|_| Failure::Timeout),
            () = reached(&mut self.stage, Stage::Drain) => Err(Failure::Shutdown),
        }
    }
}

/// Counts an open connection while it lives.
struct OpenGuard(IntGauge);

impl OpenGuard {
    fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.dec();
    }
}
