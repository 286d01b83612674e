//! Sessions that came back from the disk, until their client does.
//!
//! What waits for them is in the store, and stays there: a session's messages in memory would be a multiple of all else about
//! it, and its task in the engine another one. So a small task stands in for it. It takes what is routed to the session (the store
//! has it, if it has a ticket), keeps the limit of the queue, and ends the session when its time is over. When the client comes the
//! messages are read, and handed over as if the engine had kept them ([`super::entry`]).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use rmqtt::codec::types::QoS;
use rmqtt::session::{Session, SessionState as EngineSession};
use rmqtt::types::{From, Message, MessageQueueType, Publish, Reason, Rx, SessionTx, Tx};
use tracing::warn;

use super::codec::Decoder;
use super::keeper::{Keeper, Kept};
use super::restore;
use crate::{MessageId, Owed, Store};

/// Which of the messages in the store are with a session that sleeps. The others are still on their way to it.
#[derive(Debug)]
pub(super) struct Dormant {
    /// all that the store had when the session came back
    before: MessageId,
    /// and those that came since: their tickets
    since: HashSet<u32>,
}

impl Dormant {
    /// All that the store has now.
    pub(super) fn new(store: &Store) -> Self {
        Self { before: store.next_message(), since: HashSet::new() }
    }

    pub(super) fn has(&self, owed: &Owed) -> bool {
        owed.message < self.before || self.since.contains(&(owed.message as u32))
    }

    fn came(&mut self, ticket: u32, keeper: &Keeper, kept: &Kept, limit: usize) {
        self.since.insert(ticket);
        // What left the queue meanwhile is forgotten now and then.
        if self.since.len() > 2 * limit
            && let Some(state) = keeper.store.session(kept.no)
        {
            let owed: HashSet<u32> = state.queue.iter().map(|owed| owed.message as u32).collect();
            self.since.retain(|ticket| owed.contains(ticket));
        }
    }
}

/// Lets a task stand in for a session, for so long; gives its channel.
pub(super) fn stand_in(keeper: Arc<Keeper>, kept: Kept, session: &Session, left: Duration) -> Tx {
    let (tx, rx) = futures::channel::mpsc::unbounded();
    tokio::spawn(run(Sleeper { keeper, kept, queue: session.deliver_queue().clone() }, rx, left));
    SessionTx::new(tx)
}

struct Sleeper {
    keeper: Arc<Keeper>,
    kept: Kept,
    /// the engine's, for what the store does not keep
    queue: MessageQueueType,
}

async fn run(sleeper: Sleeper, mut rx: Rx, left: Duration) {
    let end = tokio::time::sleep(left);
    tokio::pin!(end);
    loop {
        let message = tokio::select! {
            message = rx.next() => message,
            () = &mut end => return sleeper.expire().await,
        };
        match message {
            Some(Message::Forward(from, publish)) => sleeper.take(from, publish).await,
            Some(Message::Kick(answer, ..)) if !answer.is_closed() => {
                // What is behind it was routed before.
                while let Ok(Message::Forward(from, publish)) = rx.try_recv() {
                    sleeper.take(from, publish).await;
                }
                // Whoever asked may have gone; then the session is removed without a word.
                let _ = answer.send(());
                return;
            }
            Some(_) => {}
            None => return,
        }
    }
}

impl Sleeper {
    async fn take(&self, from: From, publish: Publish) {
        match publish.delay_interval {
            Some(ticket) if publish.qos != QoS::AtMostOnce => {
                let limit = self.queue.capacity();
                if let Some(dormant) = &mut *self.kept.live.dormant.lock() {
                    dormant.came(ticket, &self.keeper, &self.kept, limit);
                }
                if self.keeper.store.is_longer(self.kept.no, limit) {
                    self.drop_oldest().await;
                }
            }
            _ => {
                let Err((from, publish)) = self.queue.push((from, publish)) else { return };
                let gone = match publish.qos {
                    QoS::AtMostOnce => Some((from, publish)),
                    _ => {
                        let oldest = self.queue.pop();
                        // There is room now.
                        drop(self.queue.push((from, publish)));
                        oldest
                    }
                };
                if let Some((from, publish)) = gone {
                    self.dropped(from, publish, Reason::MessageQueueFull).await;
                }
            }
        }
    }

    /// The queue is full: the oldest message goes.
    async fn drop_oldest(&self) {
        let store = &self.keeper.store;
        let Some(oldest) = store.oldest_queued(self.kept.no) else { return };
        match restore::queued(store, &mut Decoder::default(), &oldest) {
            // The hook takes it out of the store, too.
            Some((from, publish)) => self.dropped(from, publish, Reason::MessageQueueFull).await,
            None => store.drop_queued(self.kept.no, oldest.message as u32),
        }
    }

    async fn dropped(&self, from: From, publish: Publish, reason: Reason) {
        let hooks = self.keeper.scx.extends.hook_mgr();
        hooks.message_dropped(Some(self.kept.id.clone()), from, publish, reason).await;
    }

    /// The engine ends it as it ends its own, at once.
    async fn expire(&self) {
        let id = &self.kept.id;
        let session = { self.keeper.scx.extends.shared().await.entry(id.clone()).session() };
        let Some(session) = session.filter(|session| session.id == *id) else { return };
        if let Err(error) = EngineSession::offline_restart(session, Duration::ZERO).await {
            warn!(client_id = &*id.client_id, %error, "session that expired was not ended");
        }
    }
}
