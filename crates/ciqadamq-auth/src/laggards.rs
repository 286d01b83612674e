//! Closing connections whose client is too far behind.
//!
//! A session's queue is bounded, but the engine's channel before it is not: a client that takes its messages more slowly
//! than they come lets them pile up there, for as long as every single write succeeds in time. So while there is traffic,
//! every online session is asked, through that same channel, to subscribe to nothing. The answer comes when everything
//! before it is worked off. Who has not answered after `limits.lag_secs` is cut off: the session goes offline, where its
//! queue keeps the newest `mqtt.max_mqueue_len` messages, or ends with its connection.
//!
//! Costs nothing on the way of a message, and nothing while there are few.

use std::collections::{HashMap, HashSet};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ciqadamq_core::{AUDIT, LogBudget};
use rmqtt::context::ServerContext;
use rmqtt::types::{Id, Message, SubscribeReturn};
use tokio::sync::oneshot::{self, Receiver, error::TryRecvError};
use tracing::warn;

use crate::farewell::Connection;
use crate::metrics::AuthMetrics;
use crate::sessions::Sessions;
use crate::sockets::each_socket;

/// Copies delivered since everybody was asked, below which nobody is asked again: not enough to pile up.
const TRAFFIC_MIN: u64 = 1000;

/// One for each subscription, and there are none.
type Answers = Vec<rmqtt::Result<SubscribeReturn>>;

pub(crate) struct Laggards {
    lag_max: Duration,
    /// Questions that are not answered yet. Bounded by the number of sessions.
    asked: HashMap<Id, (Instant, Receiver<Answers>)>,
    delivered: u64,
    log: LogBudget,
}

impl Laggards {
    pub(crate) fn new(lag_max: Duration) -> Self {
        Self { lag_max, asked: HashMap::new(), delivered: 0, log: LogBudget::default() }
    }

    /// Looks and closes, for ever.
    pub(crate) async fn watch(mut self, scx: ServerContext, sessions: Arc<Sessions>, metrics: Arc<AuthMetrics>) {
        let interval = (self.lag_max / 4).clamp(Duration::from_millis(250), Duration::from_secs(5));
        loop {
            tokio::time::sleep(interval).await;
            let late = self.late();
            if !late.is_empty() {
                let connections: HashSet<Connection> = late.iter().filter_map(|id| sessions.connection(id)).collect();
                let closed = tokio::task::spawn_blocking(move || cut(&connections)).await.unwrap_or(0);
                metrics.laggards.inc_by(closed as u64);
                for id in late {
                    self.report(&id);
                }
            }
            let delivered = metrics.delivered.get();
            if delivered.wrapping_sub(self.delivered) >= TRAFFIC_MIN {
                self.delivered = delivered;
                self.ask(&scx).await;
            }
        }
    }

    /// Who has not answered in time. Those who have are forgotten, and so are those whose connection or session ended.
    fn late(&mut self) -> Vec<Id> {
        let lag_max = self.lag_max;
        let mut late = Vec::new();
        self.asked.retain(|id, (since, answer)| match answer.try_recv() {
            Err(TryRecvError::Empty) if since.elapsed() >= lag_max => {
                late.push(id.clone());
                false
            }
            Err(TryRecvError::Empty) => true,
            Ok(_) | Err(TryRecvError::Closed) => false,
        });
        late
    }

    /// All ids first: looking sessions up while the engine's map is being iterated can deadlock with a writer.
    async fn ask(&mut self, scx: &ServerContext) {
        let ids: Vec<Id> = { scx.extends.shared().await.iter().map(|entry| entry.id()).collect() };
        for id in ids.into_iter().filter(|id| !self.asked.contains_key(id)).collect::<Vec<_>>() {
            let Some(tx) = ({ scx.extends.shared().await.entry(id.clone()).tx() }) else { continue };
            let (answer, answered) = oneshot::channel();
            // A session that is offline drops the question, which counts as answered.
            if tx.unbounded_send(Message::Subscribes(Vec::new(), Some(answer))).is_ok() {
                self.asked.insert(id, (Instant::now(), answered));
            }
        }
    }

    fn report(&self, id: &Id) {
        if let Some(suppressed) = self.log.spend() {
            warn!(
                target: AUDIT,
                event = "client_too_slow",
                username = id.username_ref(),
                client_id = &*id.client_id,
                address = id.remote_addr.map(tracing::field::display),
                suppressed,
                "connection closed: its client takes its messages too slowly"
            );
        }
    }
}

/// Shuts the connections down; the engine's next write fails.
fn cut(connections: &HashSet<Connection>) -> usize {
    let peers: HashSet<_> = connections.iter().map(|c| c.peer).collect();
    each_socket(
        |peer| peers.contains(peer),
        |socket| {
            let (Ok(local), Ok(peer)) = (socket.local_addr(), socket.peer_addr()) else { return false };
            connections.contains(&Connection { local_port: local.port(), peer })
                && socket.shutdown(Shutdown::Both).is_ok()
        },
    )
}
