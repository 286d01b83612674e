//! What waits for a session while it passes from one connection to the next.
//!
//! The engine takes a session over in three steps: it removes the old one, sets the new one, and then gives it the old
//! one's messages. Two things go wrong in between. A message that is routed after the first step finds no session and is
//! lost. And one that is routed after the second overtakes everything that was waiting (MQTT-4.6.0-6 wants it in order).
//! Before the first step, what comes into a session's channel behind the request to stop is lost, too.
//!
//! So the guard diverts the channel first, and lets those arrive that had looked it up before ([`crate::passing`]). It keeps what
//! was waiting, and what arrives meanwhile, and puts both into the new session's channel before anybody else can reach it.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use dashmap::DashMap;
use parking_lot::Mutex;
use rmqtt::inflight::{MomentStatus, OutInflightMessage};
use rmqtt::session::{OfflineInfo, Session};
use rmqtt::types::{ClientId, From, Message, Publish, Rx, SessionTx, Tx};
use tracing::warn;

/// Messages that may arrive during one takeover, which takes milliseconds. Further ones are dropped as if there were no
/// session.
const ARRIVING_MAX: usize = 10_000;

/// The takeovers under way, by client id.
#[derive(Default)]
pub(crate) struct Handovers {
    open: DashMap<ClientId, Arc<Handover>>,
}

/// One takeover.
pub(crate) struct Handover(Mutex<State>);

enum State {
    Arriving(Vec<(From, Publish)>),
    /// The new session's channel: whoever comes late goes there directly.
    Taken(Tx),
}

impl Handovers {
    /// Begins to keep what arrives for a client id, until the returned value is dropped.
    pub(crate) fn open(self: &Arc<Self>, client_id: ClientId) -> OpenHandover {
        let handover = Arc::new(Handover(Mutex::new(State::Arriving(Vec::new()))));
        self.open.insert(client_id.clone(), handover.clone());
        OpenHandover { all: self.clone(), client_id, handover }
    }

    /// Keeps a message that found no session, if one is being taken over; gives it back otherwise.
    pub(crate) fn keep(&self, client_id: &ClientId, from: From, publish: Publish) -> Result<(), (From, Publish)> {
        let Some(handover) = self.open.get(client_id).map(|h| h.value().clone()) else { return Err((from, publish)) };
        match &mut *handover.0.lock() {
            State::Arriving(messages) if messages.len() < ARRIVING_MAX => {
                messages.push((from, publish));
                Ok(())
            }
            State::Arriving(_) => Err((from, publish)),
            State::Taken(tx) => forward(tx, from, publish),
        }
    }
}

/// A takeover that has begun. Dropping it ends it.
pub(crate) struct OpenHandover {
    all: Arc<Handovers>,
    client_id: ClientId,
    handover: Arc<Handover>,
}

impl OpenHandover {
    /// Takes what was diverted, and closes the diversion: from then on messages find no session and are kept here. Under
    /// the lock, so that a publisher's later message does not come before its earlier one.
    pub(crate) fn absorb(&self, diversion: &mut Rx) {
        let mut state = self.handover.0.lock();
        diversion.close();
        loop {
            match (diversion.try_recv(), &mut *state) {
                (Ok(Message::Forward(from, publish)), State::Arriving(messages)) => messages.push((from, publish)),
                // A question to the session that goes; whoever asked hears that nobody answers.
                (Ok(_), _) => {}
                (Err(closed), _) if closed.is_closed() => break,
                // Somebody was let in before the diversion closed and has not put its message down yet, a moment's work.
                (Err(_), _) => std::thread::yield_now(),
            }
        }
    }

    /// Leaves out of what arrived what is known to have waited. The session store's messages have a number each.
    pub(crate) fn leave_out(&self, waiting: &VecDeque<(From, Publish)>) {
        if let State::Arriving(messages) = &mut *self.handover.0.lock()
            && !messages.is_empty()
        {
            let known: HashSet<u32> = waiting.iter().filter_map(|(_, publish)| publish.delay_interval).collect();
            messages.retain(|(_, publish)| publish.delay_interval.is_none_or(|number| !known.contains(&number)));
        }
    }

    /// Takes what arrived, for a session that is made on another node.
    pub(crate) fn arrived(&self) -> Vec<(From, Publish)> {
        match &mut *self.handover.0.lock() {
            State::Arriving(messages) => std::mem::take(messages),
            State::Taken(_) => Vec::new(),
        }
    }

    /// Puts what arrived into the new session's channel, and whatever still arrives too.
    pub(crate) fn take(&self, tx: &Tx) {
        let mut state = self.handover.0.lock();
        if let State::Arriving(messages) = std::mem::replace(&mut *state, State::Taken(tx.clone())) {
            for (from, publish) in messages {
                // The session's task has not begun; its channel cannot be closed.
                drop(forward(tx, from, publish));
            }
        }
    }
}

impl Drop for OpenHandover {
    fn drop(&mut self) {
        self.all.open.remove_if(&self.client_id, |_, open| Arc::ptr_eq(open, &self.handover));
        if let State::Arriving(messages) = &*self.handover.0.lock()
            && !messages.is_empty()
        {
            warn!(
                client_id = &*self.client_id,
                lost = messages.len(),
                "a takeover failed; what arrived meanwhile is lost"
            );
        }
    }
}

/// A channel to put in the place of a session's own.
pub(crate) fn divert() -> (Tx, Rx) {
    let (tx, rx) = futures::channel::mpsc::unbounded();
    (SessionTx::new(tx), rx)
}

pub(crate) fn forward(tx: &Tx, from: From, publish: Publish) -> Result<(), (From, Publish)> {
    tx.unbounded_send(Message::Forward(from, publish)).map_err(|refused| match refused.into_inner() {
        Message::Forward(from, publish) => (from, publish),
        _ => unreachable!("a channel gives back what was put in"),
    })
}

/// What waited in the old session.
pub(crate) struct Waiting {
    inflight: Vec<OutInflightMessage>,
    queued: VecDeque<(From, Publish)>,
}

impl Waiting {
    /// Takes the messages out of what the engine is about to transfer.
    pub(crate) fn take_out(info: &mut OfflineInfo) -> Self {
        Self {
            inflight: std::mem::take(&mut info.inflight_messages),
            queued: std::mem::take(&mut info.offline_messages),
        }
    }

    /// Puts them into the new session's channel: first what was sent and not acknowledged, in its order and with its
    /// packet ids, then what was queued.
    pub(crate) async fn put_into(self, session: &Session, tx: &Tx) {
        let last = self.inflight.iter().filter_map(|m| m.publish.packet_id).max();
        if let Some(last) = last {
            session.out_inflight().write().await.advance_next_id(last.get());
        }
        for mut message in self.inflight {
            let message = match message.status {
                MomentStatus::UnAck | MomentStatus::UnReceived => {
                    message.publish.dup = true;
                    Message::Forward(message.from, message.publish)
                }
                MomentStatus::UnComplete => Message::SendRerelease(message),
            };
            // As above: the channel is new.
            drop(tx.unbounded_send(message));
        }
        for (from, publish) in self.queued {
            drop(forward(tx, from, publish));
        }
    }
}
