//! The receiving side of a connection.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use ciqadamq_core::{Arrival, LogBudget, NodeId};
use rmqtt::grpc::Message;
use rmqtt::types::{From, MsgID, Publish, SubRelations};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinHandle;
use tracing::{debug, warn};

use super::handshake::{self, Caller};
use super::{FRAME_MAX, GREETING, HEAD};
use crate::cluster::Cluster;
use crate::onward;

/// Read in one go.
const CHUNK: usize = 256 * 1024;
/// Delivered side by side. So few that they are polled in order.
const AT_ONCE: usize = 30;
/// Acknowledged at the latest.
const ACKNOWLEDGE_AFTER: u64 = 256;

/// Lines about connections that were refused, a minute.
const REFUSALS_SAID: u32 = 5;

/// What came from each other node.
pub(crate) struct Receivers {
    nodes: BTreeMap<NodeId, Receiver>,
    refusals: LogBudget,
}

#[derive(Default)]
struct Receiver {
    /// Held by the connection that is read from.
    had: Mutex<Had>,
    /// Counts connections: the one before the last is of no use any more.
    connection: AtomicU64,
    newer: Notify,
}

/// Up to which number everything came, from which process of the node.
#[derive(Default)]
struct Had {
    boot: u64,
    number: u64,
    /// Those that were sent on to a third node, which has not said yet that it has them: their numbers, in order.
    onward: VecDeque<(u64, JoinHandle<()>)>,
}

impl Had {
    /// Up to which number everything is where it stays. The other node keeps what is behind.
    fn settled(&self) -> u64 {
        self.onward.front().map_or(self.number, |(number, _)| number - 1)
    }

    /// Waits until the first of those that were sent on has arrived, or is given up.
    async fn settles(&mut self) {
        match self.onward.front_mut() {
            // Nobody stops the task.
            Some((_, arrival)) => drop(arrival.await),
            None => std::future::pending().await,
        }
        self.onward.pop_front();
    }
}

impl Receivers {
    pub(crate) fn new(others: impl Iterator<Item = NodeId>) -> Self {
        Self {
            nodes: others.map(|node| (node, Receiver::default())).collect(),
            refusals: LogBudget::new(REFUSALS_SAID, Duration::from_secs(60)),
        }
    }

    /// Says that somebody was refused who calls himself a node, or whom nobody knows.
    pub(super) fn refused(&self, peer: SocketAddr, node: Option<NodeId>, error: &anyhow::Error) {
        if let Some(suppressed) = self.refusals.spend() {
            let reason = format!("{error:#}");
            warn!(%peer, node, reason, suppressed, "connection of a node refused");
        }
    }
}

/// Reads a connection whose magic was read, to its end.
pub(super) async fn receive(cluster: &Arc<Cluster>, mut socket: TcpStream, peer: SocketAddr) -> anyhow::Result<()> {
    let caller =
        tokio::time::timeout(GREETING, handshake::hello(&mut socket)).await.context("no greeting in time")??;
    let receiver = match greet(cluster, &mut socket, &caller).await {
        Ok(receiver) => receiver,
        Err(error) => {
            cluster.receivers.refused(peer, Some(caller.node), &error);
            return Ok(());
        }
    };
    // The other side keeps what it has, and calls again.
    ensure!(cluster.serves(), "the sessions of this node are not all there yet");
    let connection = receiver.connection.fetch_add(1, Ordering::AcqRel) + 1;
    receiver.newer.notify_waiters();
    let mut had = receiver.had.lock().await;
    if had.boot != caller.boot {
        *had = Had { boot: caller.boot, ..Had::default() };
    }
    socket.write_u64(had.settled()).await?;
    read(cluster, socket, receiver, caller.node, connection, &mut had).await
}

async fn greet<'a>(cluster: &'a Cluster, socket: &mut TcpStream, caller: &Caller) -> anyhow::Result<&'a Receiver> {
    let Some(receiver) = cluster.receivers.nodes.get(&caller.node) else { bail!("node {} is not known", caller.node) };
    let credentials = (cluster.deps.credentials)();
    let answer = handshake::answer(socket, caller, cluster.config.node, &credentials);
    tokio::time::timeout(GREETING, answer).await.context("no proof in time")??;
    Ok(receiver)
}

async fn read(
    cluster: &Arc<Cluster>,
    socket: TcpStream,
    receiver: &Receiver,
    node: NodeId,
    connection: u64,
    had: &mut Had,
) -> anyhow::Result<()> {
    let (from, mut to) = socket.into_split();
    let mut from = BufReader::with_capacity(CHUNK, from);
    let mut acknowledged = had.settled();
    loop {
        let settled = had.settled();
        if settled > acknowledged && (from.buffer().is_empty() || settled - acknowledged >= ACKNOWLEDGE_AFTER) {
            to.write_u64(settled).await?;
            acknowledged = settled;
        }
        let mut newer = std::pin::pin!(receiver.newer.notified());
        if receiver.connection.load(Ordering::Acquire) != connection {
            return Ok(());
        }
        let first = {
            let mut frame = std::pin::pin!(next(&mut from));
            loop {
                // Only the wait is cut short, not a delivery.
                tokio::select! {
                    frame = &mut frame => break frame?,
                    () = &mut newer => return Ok(()),
                    () = had.settles() => {
                        acknowledged = had.settled();
                        to.write_u64(acknowledged).await?;
                    }
                }
            }
        };
        if had.number > 0 && first.0 > had.number + 1 {
            // It gave up what was between, for it held this node for dead; this one need not have noticed.
            let cluster = cluster.clone();
            tokio::spawn(async move { cluster.catch_up_patiently(node).await });
        }
        let mut frames = vec![first];
        while frames.len() < AT_ONCE && is_whole(from.buffer()) {
            frames.push(next(&mut from).await?);
        }
        // Those that go to the disk share an fsync. They are begun in order, and the disk finishes them in order.
        let new = frames.iter().filter(|(number, _)| *number > had.number);
        let boot = had.boot;
        let deliveries = new.map(|(number, message)| async move {
            let arrival = Arrival { node, boot, number: *number, origin: None, is_again: false };
            (*number, onward::collect(deliver(cluster, message, arrival)).await)
        });
        for (number, sent_on) in futures::future::join_all(deliveries).await {
            if !sent_on.is_empty() {
                let cluster = cluster.clone();
                had.onward.push_back((number, tokio::spawn(async move { cluster.all_arrived(sent_on).await })));
            }
        }
        had.number = frames.iter().map(|(number, _)| *number).fold(had.number, u64::max);
    }
}

/// Whether a buffer begins with a whole message.
fn is_whole(buffer: &[u8]) -> bool {
    let len = buffer.first_chunk().map(|len| u32::from_be_bytes(*len) as usize);
    len.is_some_and(|len| buffer.len() >= HEAD + len)
}

/// Reads a message and its number.
async fn next(from: &mut BufReader<OwnedReadHalf>) -> anyhow::Result<(u64, Vec<u8>)> {
    let (len, number) = (from.read_u32().await? as usize, from.read_u64().await?);
    ensure!(len <= FRAME_MAX, "a message of {len} bytes");
    let mut message = vec![0; len];
    from.read_exact(&mut message).await?;
    Ok((number, message))
}

/// Hands a message to the sessions of this node.
async fn deliver(cluster: &Arc<Cluster>, message: &[u8], arrival: Arrival) {
    let (from, publish, relations, msg_id) = match Message::decode(message) {
        Ok((_, Message::ForwardsTo(from, publish, relations, msg_id))) => (from, publish, relations, msg_id),
        Ok((_, Message::SetRetain(topic, retain, expiry))) => {
            let set = async {
                let set = { cluster.scx.extends.retain().await.set(&topic, retain, expiry).await };
                if let Err(error) = set {
                    warn!(%error, "a retained message of another node could not be stored");
                }
            };
            match cluster.retained.get() {
                Some(retained) => retained.later_wins(Box::pin(set)).await,
                None => set.await,
            }
            return;
        }
        Ok(_) => return debug!("another node sent something that is no message"),
        Err(error) => {
            return warn!(%error, "a message of another node is not understood; do both run the same version?");
        }
    };
    let arrival = Arrival { origin: publish.delay_interval, is_again: publish.dup, ..arrival };
    if cluster.arrivals.get().is_some_and(|arrivals| arrivals.has(arrival)) {
        debug!(?arrival, "a message of another node is here already");
        // But perhaps not at those that had left, if this node ended before they had it.
        return cluster.send_after(&from, &publish, relations, msg_id).await;
    }
    cluster.take(arrival, from, publish, relations, msg_id).await;
}

impl Cluster {
    async fn take(
        &self,
        arrival: Arrival,
        from: From,
        mut publish: Publish,
        relations: SubRelations,
        msg_id: Option<MsgID>,
    ) {
        let relations = match publish.target_clientid {
            Some(_) => relations,
            None => {
                let relations = self.heirs.without_known(arrival, &from, &publish, relations);
                let (fresh, stale) = self.without_stale(&publish.topic, relations).await;
                self.send_after(&from, &publish, stale, msg_id).await;
                fresh
            }
        };
        let arrivals = self.arrivals.get();
        let ticket = arrivals.map(|arrivals| arrivals.begin(arrival));
        publish.delay_interval = ticket;
        self.hand_out(from, &publish, relations, msg_id).await;
        if let (Some(arrivals), Some(ticket)) = (arrivals, ticket) {
            arrivals.end(ticket);
        }
    }

    /// Gives a message to sessions of this node.
    pub(crate) async fn hand_out(&self, from: From, publish: &Publish, relations: SubRelations, msg_id: Option<MsgID>) {
        let result = { self.scx.extends.shared().await.forwards_to(from, publish, relations, msg_id).await };
        if let Err((_, lost)) = result {
            for (to, from, publish, reason) in lost {
                self.scx.extends.hook_mgr().message_dropped(Some(to), from, publish, reason).await;
            }
        }
    }
}
