//! The port for the other nodes: the engine's calls and our connections share it.
//!
//! The engine listens on a loopback port of its own, and gets what begins as HTTP/2 does.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tracing::{debug, warn};

use super::{GREETING, MAGIC, receive};
use crate::cluster::Cluster;

/// How HTTP/2 begins.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n";
/// Connections at once: each node has a handful.
const CONNECTIONS: usize = 1024;
/// How long the engine may take to listen.
const ENGINE: Duration = Duration::from_secs(5);
/// When no connection can be accepted, such as for too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Opens the port, starts the engine's server behind it, and serves both for ever.
pub(crate) async fn open(cluster: &Arc<Cluster>, addr: SocketAddr) -> anyhow::Result<()> {
    let listener = bind("cluster.grpc_laddr", addr)?;
    let engine = start_engine(cluster).await?;
    tokio::spawn(accept(cluster.clone(), listener, engine));
    Ok(())
}

/// A listener there. `key` is the setting that has the address.
pub(crate) fn bind(key: &str, addr: SocketAddr) -> anyhow::Result<TcpListener> {
    let listen = || {
        let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        // A node that was killed must be able to come back at once.
        socket.set_reuseaddr(true)?;
        socket.bind(addr)?;
        socket.listen(1024)
    };
    listen().with_context(|| format!("{key}: {addr} cannot be opened"))
}

/// The engine takes the port for granted as given, so a free one must be known before.
async fn start_engine(cluster: &Arc<Cluster>) -> anyhow::Result<SocketAddr> {
    let addr = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|probe| probe.local_addr())?;
    cluster.scx.node.start_grpc_server(cluster.scx.clone(), addr, true, false);
    let since = Instant::now();
    while TcpStream::connect(addr).await.is_err() {
        if since.elapsed() > ENGINE {
            bail!("the engine does not listen for other nodes");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(addr)
}

async fn accept(cluster: Arc<Cluster>, listener: TcpListener, engine: SocketAddr) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((socket, peer)) => {
                let cluster = cluster.clone();
                tokio::spawn(async move {
                    if let Err(error) = serve(&cluster, socket, peer, engine).await {
                        debug!(%peer, error = format!("{error:#}"), "a node's connection ended");
                    }
                    drop(slot);
                });
            }
            Err(error) => {
                warn!(%error, "no connection of a node can be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn serve(
    cluster: &Arc<Cluster>,
    mut socket: TcpStream,
    peer: SocketAddr,
    engine: SocketAddr,
) -> anyhow::Result<()> {
    socket.set_nodelay(true)?;
    let mut first = [0; MAGIC.len()];
    tokio::time::timeout(GREETING, socket.read_exact(&mut first)).await.context("it says nothing")??;
    if &first == MAGIC {
        return receive::receive(cluster, socket, peer).await;
    }
    if first != *HTTP2 {
        cluster.receivers.refused(peer, None, &anyhow!("it speaks something else"));
        return Ok(());
    }
    let mut engine = TcpStream::connect(engine).await?;
    engine.set_nodelay(true)?;
    engine.write_all(&first).await?;
    tokio::io::copy_bidirectional(&mut socket, &mut engine).await?;
    Ok(())
}
