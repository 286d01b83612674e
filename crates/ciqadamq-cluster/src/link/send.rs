//! The sending side of a connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ciqadamq_core::NodeId;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tracing::{debug, info, warn};

use super::GREETING;
use super::handshake::{self, Ends};
use super::queue::Queue;
use crate::cluster::Cluster;

/// Between two tries to connect.
const RETRY: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// How long messages are kept for a node that is dead: one that was only stopped has its sessions still.
const KEEP_FOR_DEAD: Duration = Duration::from_secs(60);
/// Between two lines that say the same.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// Keeps a connection to a node, for ever.
pub(crate) async fn keep_sending(cluster: Arc<Cluster>, node: NodeId, addr: String, queue: Arc<Queue>) {
    let mut pause = RETRY;
    let mut said: Option<(String, Instant)> = None;
    let mut came = None;
    loop {
        if let Some(dead_for) = cluster.liveness.dead_for(node) {
            if dead_for > KEEP_FOR_DEAD {
                let gone = queue.clear();
                cluster.metrics.dropped.inc_by(gone as u64);
            }
            pause = RETRY;
            tokio::time::sleep(pause).await;
            continue;
        }
        match connect(&cluster, node, &addr).await {
            Ok((_, None)) => debug!(node, "node takes no messages yet: it is putting its sessions back"),
            Ok((socket, Some(has))) => {
                info!(node, "connected to node");
                (pause, said) = (RETRY, None);
                queue.begin(has);
                if came != cluster.liveness.came(node) {
                    came = cluster.liveness.came(node);
                    let cluster = cluster.clone();
                    tokio::spawn(async move { cluster.catch_up_patiently(node).await });
                }
                let error = tokio::select! {
                    error = transfer(socket, &queue) => error,
                    () = cluster.liveness.died(node) => anyhow::anyhow!("it is dead"),
                };
                debug!(node, error = format!("{error:#}"), "connection to node ended");
            }
            Err(error) => {
                let error = format!("{error:#}");
                let is_known = said.as_ref().is_some_and(|(text, at)| *text == error && at.elapsed() < SAY_EVERY);
                if is_known {
                    debug!(node, error, "node cannot be connected to");
                } else {
                    warn!(node, error, "node cannot be connected to");
                    said = Some((error, Instant::now()));
                }
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}

/// The connection, and up to which number the node has everything; `None` if it takes nothing yet.
async fn connect(cluster: &Cluster, node: NodeId, addr: &str) -> anyhow::Result<(TcpStream, Option<u64>)> {
    let own = cluster.liveness.own();
    let credentials = (cluster.deps.credentials)();
    let credential = credentials.first().context("what nodes show each other is not known here yet")?;
    let greet = async {
        let mut socket = TcpStream::connect(addr).await?;
        // Small messages must not wait for an acknowledgement.
        socket.set_nodelay(true)?;
        let ends = Ends { caller: own.node, called: node };
        let has = handshake::call(&mut socket, ends, own.boot, credential).await?;
        Ok::<_, anyhow::Error>((socket, has))
    };
    tokio::time::timeout(GREETING, greet).await.context("no answer in time")?
}

/// Sends until something breaks.
async fn transfer(socket: TcpStream, queue: &Queue) -> anyhow::Error {
    let (mut from, mut to) = socket.into_split();
    let sending = async {
        let mut buffer = Vec::new();
        loop {
            queue.next(&mut buffer).await;
            if let Err(error) = to.write_all(&buffer).await {
                return error;
            }
            // A long message must not keep its memory for ever.
            if buffer.capacity() > 1 << 20 {
                buffer = Vec::new();
            }
        }
    };
    let hearing = async {
        loop {
            match from.read_u64().await {
                Ok(has) => queue.acknowledge(has),
                Err(error) => return error,
            }
        }
    };
    let error = tokio::select! { error = sending => error, error = hearing => error };
    error.into()
}
