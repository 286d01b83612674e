//! Binding, accepting, and stopping.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tracing::{error, info, warn};

use crate::config::{GateConfig, GateListener};
use crate::connection::{Door, Shared, serve};
use crate::engine::Engine;
use crate::metrics::Metrics;
use crate::peers::EnginePeers;
use crate::pending::Pending;

/// Pause after an accept that failed for want of files or memory, which a retry at once would not find either.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// For tasks to notice that they are ended.
const ABORT_GRACE: Duration = Duration::from_secs(1);

/// Why the gate cannot open.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GateError {
    /// Somebody else listens there.
    #[error(
        "listener `{listener}`: address {addr} is already in use; stop the other process or choose another address"
    )]
    AddressInUse {
        /// The listener's name.
        listener: &'static str,
        /// The address asked for.
        addr: SocketAddr,
    },
    /// The address cannot be listened on.
    #[error("listener `{listener}`: cannot listen on {addr}: {source}")]
    Bind {
        /// The listener's name.
        listener: &'static str,
        /// The address asked for.
        addr: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// A TLS listener without certificate.
    #[error("listener `{listener}` needs a certificate and a key")]
    NoTls {
        /// The listener's name.
        listener: &'static str,
    },
    /// Two listeners share a name.
    #[error("two listeners are called `{listener}`; names must be unique")]
    DuplicateName {
        /// The name.
        listener: &'static str,
    },
    /// The registry has metrics of these names already.
    #[error("the gate's metrics cannot be registered: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// How far the gate is on its way to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Open,
    /// Nobody new.
    Closed,
    /// Connections end by themselves.
    Drain,
    /// Connections are ended.
    Abort,
}

/// Waits for a stage, or for the drop of the last handle, which is the last stage too.
pub(crate) async fn reached(receiver: &mut watch::Receiver<Stage>, wanted: Stage) {
    // The only error is that the sender is gone.
    let _ = receiver.wait_for(|stage| *stage >= wanted).await;
}

/// A gate whose listeners are bound: clients may connect, but nobody is served until [`Gate::serve`].
pub struct Gate {
    config: GateConfig,
    listeners: Vec<(TcpListener, Arc<Door>)>,
    metrics: Metrics,
    peers: EnginePeers,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("listeners", &self.local_addrs()).finish_non_exhaustive()
    }
}

impl Gate {
    /// Binds all listeners, or none. To be called within a tokio runtime.
    ///
    /// # Errors
    /// The first listener that cannot be bound, with its address; a TLS listener without certificate.
    pub fn bind(config: GateConfig, registry: &Registry) -> Result<Self, GateError> {
        let mut listeners: Vec<(TcpListener, GateListener)> = Vec::with_capacity(config.listeners.len());
        for wanted in &config.listeners {
            let listener = wanted.name;
            if wanted.transport.is_tls() && wanted.tls.is_none() {
                return Err(GateError::NoTls { listener });
            }
            if listeners.iter().any(|(_, other)| other.name == listener) {
                return Err(GateError::DuplicateName { listener });
            }
            let bound = listen(wanted.addr, config.backlog).map_err(|source| match source.kind() {
                io::ErrorKind::AddrInUse => GateError::AddressInUse { listener, addr: wanted.addr },
                _ => GateError::Bind { listener, addr: wanted.addr, source },
            })?;
            listeners.push((bound, wanted.clone()));
        }
        let metrics = Metrics::register(registry)?;
        let listeners = listeners
            .into_iter()
            .map(|(bound, wanted)| {
                let door = Door {
                    name: wanted.name,
                    transport: wanted.transport,
                    proxy_protocol: wanted.proxy_protocol,
                    tls: wanted.tls.filter(|_| wanted.transport.is_tls()).map(TlsAcceptor::from),
                    metrics: metrics.listener(wanted.name),
                };
                (bound, Arc::new(door))
            })
            .collect();
        Ok(Self { config, listeners, metrics, peers: EnginePeers::default() })
    }

    /// The names of the listeners and the addresses they have, with the port that was chosen where 0 was asked for.
    pub fn local_addrs(&self) -> Vec<(&'static str, SocketAddr)> {
        self.listeners
            .iter()
            // A bound socket has an address.
            .filter_map(|(listener, door)| Some((door.name, listener.local_addr().ok()?)))
            .collect()
    }

    /// The table behind [`GateHandle::engine_peer`], for those who are set up before the gate serves.
    pub fn engine_peers(&self) -> EnginePeers {
        self.peers.clone()
    }

    /// Begins to accept, and pipes to the engine's listener at `upstream`, which must have proxy protocol switched on. To be
    /// called within a tokio runtime.
    pub fn serve(self, upstream: SocketAddr) -> GateHandle {
        let (stage, _) = watch::channel(Stage::Open);
        let shared = Arc::new(Shared {
            connect_timeout: self.config.connect_timeout,
            nodelay: self.config.nodelay,
            stall_timeout: self.config.stall_timeout,
            max_packet_size: self.config.max_packet_size,
            pending: Pending::new(self.config.max_pending, self.config.max_pending_per_ip),
            peers: self.peers.clone(),
            metrics: self.metrics,
            engine: Engine::new(upstream),
        });
        for (listener, door) in self.listeners {
            // The task ends with the stage, or with the last handle, whose drop closes the channel.
            tokio::spawn(accept(listener, door, shared.clone(), stage.subscribe()));
        }
        GateHandle { stage: Arc::new(stage), peers: self.peers }
    }
}

/// A gate that serves. All clones are one gate; when the last is dropped, the gate and its connections end at once.
#[derive(Debug, Clone)]
#[must_use = "the gate ends when its last handle is dropped"]
pub struct GateHandle {
    stage: Arc<watch::Sender<Stage>>,
    peers: EnginePeers,
}

impl GateHandle {
    /// Closes the listeners; connections go on.
    pub fn stop_accepting(&self) {
        self.advance(Stage::Closed);
    }

    /// Closes the listeners and ends all connections: what the engine has sent already is delivered, WebSockets get a close
    /// frame with 1001, and what is left after `deadline` is cut. Returns when all are gone.
    pub async fn shutdown(&self, deadline: Duration) {
        self.advance(Stage::Drain);
        // Every task of the gate holds a receiver until it ends.
        if timeout(deadline, self.stage.closed()).await.is_ok() {
            return;
        }
        self.advance(Stage::Abort);
        if timeout(ABORT_GRACE, self.stage.closed()).await.is_err() {
            warn!(tasks = self.stage.receiver_count(), "gate has tasks that do not end");
        }
    }

    /// The local address of the gate's loopback socket towards the engine for the connection whose client address is
    /// `client`, see [`EnginePeers::engine_peer`].
    pub fn engine_peer(&self, client: SocketAddr) -> Option<SocketAddr> {
        self.peers.engine_peer(client)
    }

    fn advance(&self, to: Stage) {
        self.stage.send_if_modified(|stage| {
            let forward = *stage < to;
            *stage = (*stage).max(to);
            forward
        });
    }
}

fn listen(addr: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Without it a restart has to wait for old connections in TIME_WAIT. On Windows it would let two processes share.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    socket.listen(u32::try_from(backlog).unwrap_or(0).max(1))
}

/// Accepts until the gate closes, then keeps the listener's connections until they have ended.
async fn accept(listener: TcpListener, door: Arc<Door>, shared: Arc<Shared>, mut stage: watch::Receiver<Stage>) {
    let mut tasks = JoinSet::new();
    info!(listener = door.name, transport = ?door.transport, proxy_protocol = ?door.proxy_protocol, "gate open");
    let connections = stage.clone();
    loop {
        tokio::select! {
            () = reached(&mut stage, Stage::Closed) => break,
            Some(ended) = tasks.join_next(), if !tasks.is_empty() => note_panic(&door, ended),
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    door.metrics.accepted.inc();
                    // Behind a load balancer the address is not known yet: all connections would count as one client's.
                    match shared.pending.admit((!door.proxy_protocol.expects(peer.ip())).then_some(peer.ip())) {
                        Ok(permit) => {
                            tasks.spawn(serve(shared.clone(), door.clone(), stream, peer, permit, connections.clone()));
                        }
                        Err(refusal) => shared.metrics.refused(door.name, refusal),
                    }
                }
                Err(e) if is_the_clients(&e) => {}
                Err(e) => {
                    warn!(listener = door.name, error = %e, "accept failed");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop((listener, connections));
    info!(listener = door.name, connections = tasks.len(), "gate closed");
    loop {
        tokio::select! {
            ended = tasks.join_next() => match ended {
                Some(ended) => note_panic(&door, ended),
                None => break,
            },
            () = reached(&mut stage, Stage::Abort) => break,
        }
    }
    tasks.shutdown().await;
}

fn note_panic(door: &Door, ended: Result<(), tokio::task::JoinError>) {
    if let Err(e) = ended
        && e.is_panic()
    {
        error!(listener = door.name, error = %e, "a connection's task panicked; its client is disconnected");
    }
}

/// Whether an accept failed because the client was gone again.
fn is_the_clients(e: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(e.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}
