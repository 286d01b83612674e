//! The sending side of a connection.

use std::io;
use std::sync::Arc;
use std::time::Duration;

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

/// Keeps a connection to a node, for ever.
pub(crate) async fn keep_sending(cluster: Arc<Cluster>, node: NodeId, addr: String, queue: Arc<Queue>) {
    let mut pause = RETRY;
    let mut said = false;
    loop {
        match connect(&cluster, node, &addr).await {
            Ok((socket, has)) => {
                info!(node, "connected to node");
                (pause, said) = (RETRY, false);
                queue.begin(has);
                let error = tokio::select! {
                    error = transfer(socket, &queue) => error,
                    () = cluster.liveness.died(node) => anyhow::anyhow!("it is dead"),
                };
                debug!(node, error = format!("{error:#}"), "connection to node ended");
            }
            Err(error) if cluster.liveness.is_dead(node) || is_not_serving(&error) => {
                debug!(node, error = format!("{error:#}"), "node cannot be connected to");
            }
            Err(error) => {
                if !said {
                    warn!(node, error = format!("{error:#}"), "node cannot be connected to");
                    said = true;
                }
            }
        }
        if cluster.liveness.dead_for(node).is_some_and(|dead_for| dead_for > KEEP_FOR_DEAD) {
            let gone = queue.clear();
            cluster.metrics.dropped.inc_by(gone as u64);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}

/// A node that is still putting its sessions back hangs up after the greeting.
fn is_not_serving(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::UnexpectedEof)
}

async fn connect(cluster: &Cluster, node: NodeId, addr: &str) -> anyhow::Result<(TcpStream, u64)> {
    let own = cluster.liveness.own();
    let greet = async {
        let mut socket = TcpStream::connect(addr).await?;
        // Small messages must not wait for an acknowledgement.
        socket.set_nodelay(true)?;
        let ends = Ends { caller: own.node, called: node };
        let has = handshake::call(&mut socket, ends, own.boot, &(cluster.deps.credential)()).await?;
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
