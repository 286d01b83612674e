//! The store as its users see it. No call here waits for the disk: what has to be waited for is a [`Commit`].

use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::base::Base;
use crate::command::Command;
use crate::core::{Core, now};
use crate::journal::{Journal, Segments};
use crate::records::{
    Heard, Inbound, MessageId, Millis, Owed, PACKET_IDS, Seq, SessionNo, SessionRecord, SessionState, Stage,
};
use crate::state::{Key, Place};
use crate::{Durability, OpenError, Refusal, StoreConfig, open, writer};

/// A session that is to get a message.
#[derive(Debug, Clone)]
pub struct Recipient {
    /// which
    pub session: SessionNo,
    /// as it is delivered, 1 or 2
    pub qos: u8,
    /// as it is delivered
    pub retain: bool,
    /// Subscription Identifiers
    pub subscription_ids: Option<Box<[u32]>>,
}

/// Where a message of another node comes from.
#[derive(Debug, Clone, Copy)]
pub struct Arrived {
    /// which node
    pub node: u64,
    /// which of its processes
    pub boot: u64,
    /// its number on the way
    pub number: u64,
    /// the low half of its number in that node's store
    pub origin: Option<u32>,
}

/// What is noted together with a message.
#[derive(Debug, Clone, Copy, Default)]
pub struct Notes {
    /// the publisher's session has sent it at QoS 2
    pub inbound: Option<(SessionNo, Inbound)>,
    /// it is the Will of a session, which is published herewith
    pub will_of: Option<SessionNo>,
    /// it came from another node
    pub heard: Option<Arrived>,
}

/// A change on its way to the disk.
#[must_use = "what is not waited for is not promised"]
pub struct Commit(Option<oneshot::Receiver<Result<(), Refusal>>>);

impl Commit {
    fn refused(refusal: Refusal) -> Self {
        let (tx, rx) = oneshot::channel();
        // The other end is here.
        let _ = tx.send(Err(refusal));
        Self(Some(rx))
    }

    /// Waits until the change is as durable as [`StoreConfig::durability`] promises.
    pub async fn done(self) -> Result<(), Refusal> {
        match self.0 {
            None => Ok(()),
            Some(answer) => answer.await.unwrap_or(Err(Refusal::Closed)),
        }
    }

    /// The same, for a thread that may block.
    pub fn wait(self) -> Result<(), Refusal> {
        match self.0 {
            None => Ok(()),
            Some(answer) => answer.blocking_recv().unwrap_or(Err(Refusal::Closed)),
        }
    }
}

/// Facts for metrics and health.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// sessions kept
    pub sessions: u64,
    /// messages kept, each once
    pub messages: u64,
    /// messages owed, over all sessions
    pub owed: u64,
    /// Retained Messages
    pub retained: u64,
    /// bytes of messages and Retained Messages
    pub bytes: u64,
    /// bytes on disk
    pub disk_bytes: u64,
    /// why no message is taken now, for want of a disk
    pub fault: Option<Refusal>,
    /// commits so far
    pub commits: u64,
    /// messages in them
    pub stored: u64,
    /// messages that were refused
    pub refused: u64,
    /// messages that were not kept for one of their sessions, because it is owed as many as there are Packet Identifiers
    pub unkept: u64,
    /// messages that left their queue because they had expired
    pub expired: u64,
    /// checkpoints so far
    pub checkpoints: u64,
}

#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) commits: AtomicU64,
    pub(crate) stored: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) unkept: AtomicU64,
    pub(crate) expired: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

pub(crate) struct Inner {
    pub(crate) config: StoreConfig,
    pub(crate) core: Mutex<Core>,
    /// there is something to write, or to end
    pub(crate) wake: Condvar,
    /// `None` under [`Durability::Memory`]
    pub(crate) disk: Option<Disk>,
    /// there is a fault, or the disk is short of space
    pub(crate) faulted: AtomicBool,
    pub(crate) checkpoint_wanted: AtomicBool,
    /// a checkpoint is wanted, or the store is to end
    pub(crate) fold: Condvar,
    /// held by who makes a checkpoint
    pub(crate) folding: Mutex<()>,
    pub(crate) tally: Tally,
}

pub(crate) struct Disk {
    pub(crate) store: u64,
    pub(crate) segments: Segments,
    pub(crate) journal: Mutex<Journal>,
    pub(crate) base: Mutex<Arc<Base>>,
}

/// Durable sessions, queues and Retained Messages.
pub struct Store {
    pub(crate) inner: Arc<Inner>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Store {
    /// Opens or makes the store, and reads it. Blocks.
    pub fn open(config: StoreConfig) -> Result<Self, OpenError> {
        config.check()?;
        let inner = Arc::new(open::open(config)?);
        let threads = if inner.disk.is_some() { writer::start(&inner)? } else { Vec::new() };
        Ok(Self { inner, threads: Mutex::new(threads) })
    }

    /// As [`open`](Self::open); a damaged store is moved aside and a new one made. The second value then says where it is
    /// and what is wrong with it.
    pub fn open_or_set_aside(config: StoreConfig) -> Result<(Self, Option<(PathBuf, String)>), OpenError> {
        match Self::open(config.clone()) {
            Err(OpenError::Corrupt { path, reason }) => {
                let aside = aside(&path);
                std::fs::rename(&path, &aside).map_err(|source| OpenError::Io { path: path.clone(), source })?;
                Ok((Self::open(config)?, Some((aside, reason))))
            }
            other => Ok((other?, None)),
        }
    }

    /// Writes what waits, and ends. Reads go on; changes are not kept any more.
    pub fn close(&self) {
        {
            let mut core = self.inner.core.lock();
            core.closed = true;
        }
        self.inner.wake.notify_all();
        self.inner.fold.notify_all();
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the session store panicked");
            }
        }
    }

    /// The session of a Client Identifier.
    pub fn find(&self, client_id: &str) -> Option<SessionNo> {
        self.inner.core.lock().state.by_client.get(client_id).copied()
    }

    /// All about a session.
    pub fn session(&self, no: SessionNo) -> Option<SessionState> {
        self.inner.core.lock().state.sessions.get(&no).cloned()
    }

    /// The number of the next message.
    pub fn next_message(&self) -> MessageId {
        self.inner.core.lock().state.next_message
    }

    /// How many messages wait in a session, and how many it was sent and has not acknowledged.
    pub fn owes(&self, no: SessionNo) -> (usize, usize) {
        let core = self.inner.core.lock();
        core.state
            .sessions
            .get(&no)
            .map_or((0, 0), |session| (session.queue.len() - under_way(session), under_way(session)))
    }

    /// Whether more than `limit` messages wait in a session.
    pub fn is_longer(&self, no: SessionNo, limit: usize) -> bool {
        let core = self.inner.core.lock();
        let Some(session) = core.state.sessions.get(&no) else { return false };
        // Most often that is all there is to see.
        session.queue.len() > limit && session.queue.len() - under_way(session) > limit
    }

    /// The oldest message that waits in a session.
    pub fn oldest_queued(&self, no: SessionNo) -> Option<Owed> {
        let core = self.inner.core.lock();
        core.state.sessions.get(&no)?.queue.iter().find(|owed| owed.stage == Stage::Queued).cloned()
    }

    /// How many messages a session was sent and has not acknowledged.
    pub fn under_way(&self, no: SessionNo) -> usize {
        let core = self.inner.core.lock();
        core.state.sessions.get(&no).map_or(0, under_way)
    }

    /// The numbers of all sessions, in the order in which they began.
    pub fn sessions(&self) -> Vec<SessionNo> {
        let mut all: Vec<_> = self.inner.core.lock().state.sessions.keys().copied().collect();
        all.sort_unstable();
        all
    }

    /// Begins a session. One with the same Client Identifier ends.
    pub fn begin(&self, record: SessionRecord) -> SessionNo {
        let mut core = self.inner.core.lock();
        let no = core.state.next_session;
        core.push(Command::Session { no, record });
        self.notify(core);
        no
    }

    /// Everything so far, to be waited for: what is written and not durable yet, too. Fails while nothing can be written.
    pub fn so_far(&self) -> Commit {
        let mut core = self.inner.core.lock();
        let refusal = (core.closed && !core.volatile).then_some(Refusal::Closed);
        match refusal.map_or_else(|| core.wait_for_all(), Err) {
            Ok(answer) => {
                self.notify(core);
                Commit(answer)
            }
            Err(refusal) => Commit::refused(refusal),
        }
    }

    /// Changes a session's facts. Does nothing if it has ended.
    pub fn change(&self, no: SessionNo, f: impl FnOnce(&mut SessionRecord)) {
        let mut core = self.inner.core.lock();
        let Some(session) = core.state.sessions.get(&no) else { return };
        let mut record = session.record.clone();
        f(&mut record);
        if record != session.record {
            core.push(Command::Session { no, record });
            self.notify(core);
        }
    }

    /// Ends a session, with all it is owed.
    pub fn end(&self, no: SessionNo) {
        self.command(no, |no| Command::End { no });
    }

    /// Adds or replaces a subscription.
    pub fn subscribe(&self, no: SessionNo, filter: &str, options: &[u8]) -> Commit {
        self.commit(no, |no| Command::Subscribe { no, filter, options })
    }

    /// Removes one. Refused while nothing can be written: it stays.
    pub fn unsubscribe(&self, no: SessionNo, filter: &str) -> Commit {
        let core = self.inner.core.lock();
        match &core.fault {
            Some(fault) => Commit::refused(fault.clone()),
            None => self.commit_in(core, no, |no| Command::Unsubscribe { no, filter }),
        }
    }

    /// Why nothing can be written now, be it a message or not.
    pub fn fault(&self) -> Option<Refusal> {
        // As in `refusal`.
        if !self.inner.faulted.load(Ordering::Acquire) {
            return None;
        }
        self.inner.core.lock().fault.clone()
    }

    /// Why a message would be refused now, if it would.
    pub fn refusal(&self) -> Option<Refusal> {
        // Asked on every publish: no lock while all is well and there are no limits.
        if !self.inner.faulted.load(Ordering::Acquire)
            && self.inner.config.max_bytes == 0
            && self.inner.config.max_messages == 0
        {
            return None;
        }
        let core = self.inner.core.lock();
        core.refusal().or_else(|| self.full(&core, 0))
    }

    fn full(&self, core: &Core, more: u64) -> Option<Refusal> {
        let config = &self.inner.config;
        if config.max_bytes > 0 && core.state.bytes + more > config.max_bytes {
            return Some(Refusal::Full("max_bytes"));
        }
        let messages = (core.state.messages.len() + core.state.retained.len()) as u64;
        if config.max_messages > 0 && messages >= config.max_messages {
            return Some(Refusal::Full("max_messages"));
        }
        None
    }

    /// Keeps a message for its recipients, and notes that the publisher's session has sent it, if it is QoS 2.
    ///
    /// Recipients that have ended meanwhile are left out; so are those that are owed as much as can be, and counted. The message
    /// may be delivered, and acknowledged to its publisher, once the commit is done; if that fails, nothing of it is kept.
    pub fn publish(
        &self,
        message: &[u8],
        expires_at: Millis,
        recipients: &[Recipient],
        inbound: Option<(SessionNo, Inbound)>,
    ) -> Result<(MessageId, Commit), Refusal> {
        self.publish_with(message, expires_at, recipients, Notes { inbound, ..Notes::default() })
    }

    /// As [`publish`](Self::publish), with more to be noted.
    pub fn publish_with(
        &self,
        message: &[u8],
        expires_at: Millis,
        recipients: &[Recipient],
        notes: Notes,
    ) -> Result<(MessageId, Commit), Refusal> {
        let Notes { inbound, will_of, heard } = notes;
        let mut core = self.inner.core.lock();
        // What nobody is owed takes no room: all there is to note is that it was sent.
        let message: &[u8] = if recipients.is_empty() {
            self.check_writable(&core)?;
            &[]
        } else {
            self.check(&core, message)?;
            message
        };
        let id = core.state.next_message;
        let mut owed: Vec<(SessionNo, Owed)> = Vec::with_capacity(recipients.len());
        for recipient in recipients {
            let no = recipient.session;
            let Some(seq) = core.state.reserve_seq(no) else {
                self.count_unkept(&core, no);
                continue;
            };
            let (qos, retain) = (recipient.qos, recipient.retain);
            let subscription_ids = recipient.subscription_ids.clone();
            owed.push((no, Owed { message: id, seq, stage: Stage::Queued, qos, retain, subscription_ids }));
        }
        let inbound = inbound.map(|(no, inbound)| (no, Inbound { message: id, ..inbound }));
        if let Some(Arrived { node, boot, number, origin }) = heard {
            core.push(Command::Heard { node, boot, number, origin });
        }
        count(&self.inner.tally.stored, (!owed.is_empty()).into());
        core.push(Command::Publish { id, expires_at, recipients: owed, inbound, message });
        let will = will_of.and_then(|no| Some((no, core.state.sessions.get(&no)?.record.clone())));
        if let Some((no, record)) = will {
            core.push(Command::Session { no, record: SessionRecord { will_pending: false, ..record } });
        }
        let answer = core.wait();
        self.notify(core);
        Ok((id, Commit(answer)))
    }

    /// Whether a message of another node was stored, by the node, its process, and the message's number. The last thousand
    /// of the last process are known.
    pub fn has_heard(&self, node: u64, boot: u64, number: u64) -> bool {
        let core = self.inner.core.lock();
        core.state.heard.get(&node).is_some_and(|heard| heard.boot == boot && heard.numbers.contains(&number))
    }

    /// Whether a message of another node was stored, by the low half of its number in that node's store. The last thousand are known.
    pub fn has_origin(&self, node: u64, origin: u32) -> bool {
        self.inner.core.lock().state.heard.get(&node).is_some_and(|heard| heard.origins.contains(&origin))
    }

    /// What each node has sent.
    #[doc(hidden)]
    pub fn heard(&self) -> std::collections::BTreeMap<u64, Heard> {
        self.inner.core.lock().state.heard.clone()
    }

    /// Keeps a message that another store has kept for the same session, with how far its delivery has come there, and under the
    /// Packet Identifier under which it was `sent`. Not waited for.
    ///
    /// `None` if there is no place for it: the session has ended, is owed too much, or the identifier is none of this store's.
    pub fn inherit(
        &self,
        message: &[u8],
        expires_at: Millis,
        recipient: Recipient,
        sent: Option<u16>,
        stage: Stage,
    ) -> Result<Option<MessageId>, Refusal> {
        let mut core = self.inner.core.lock();
        self.check(&core, message)?;
        let Recipient { session: no, qos, retain, subscription_ids } = recipient;
        let seq = match sent {
            Some(packet_id) => core.state.reserve_seq_of(no, packet_id),
            None => core.state.reserve_seq(no),
        };
        let Some(seq) = seq else {
            self.count_unkept(&core, no);
            return Ok(None);
        };
        let id = core.state.next_message;
        let owed = Owed { message: id, seq, stage: Stage::Queued, qos, retain, subscription_ids };
        core.push(Command::Publish { id, expires_at, recipients: vec![(no, owed)], inbound: None, message });
        match stage {
            Stage::Queued => {}
            Stage::Sent => core.push(Command::Sent { no, seq }),
            Stage::Received => core.push(Command::Received { no, seq }),
        }
        count(&self.inner.tally.stored, 1);
        self.notify(core);
        Ok(Some(id))
    }

    /// Whether a message is taken now.
    fn check(&self, core: &Core, message: &[u8]) -> Result<(), Refusal> {
        self.check_writable(core)?;
        self.taken_unless(core.short.clone().or_else(|| self.full(core, message.len() as u64)))
    }

    /// Whether what is waited for can be written now.
    fn check_writable(&self, core: &Core) -> Result<(), Refusal> {
        self.taken_unless(core.fault.clone().or_else(|| core.closed.then_some(Refusal::Closed)))
    }

    fn taken_unless(&self, refusal: Option<Refusal>) -> Result<(), Refusal> {
        let Some(refusal) = refusal else { return Ok(()) };
        count(&self.inner.tally.refused, 1);
        Err(refusal)
    }

    /// There is no place for a message in the queue of a session, unless that has just ended.
    fn count_unkept(&self, core: &Core, no: SessionNo) {
        count(&self.inner.tally.unkept, core.state.sessions.contains_key(&no).into());
    }

    /// A message is about to be sent: its Packet Identifier. `None` if the session is not owed it any more.
    ///
    /// `ticket` is the message's number, or the low half of it.
    pub fn deliver(&self, no: SessionNo, ticket: u32) -> Option<u16> {
        let mut core = self.inner.core.lock();
        let message = core.state.message_of(ticket);
        let owed = first(core.state.sessions.get(&no)?, message, |stage| stage == Stage::Queued)?;
        let (seq, packet_id) = (owed.seq, owed.packet_id());
        core.push(Command::Sent { no, seq });
        self.notify(core);
        Some(packet_id)
    }

    /// A message left the queue unsent.
    pub fn drop_queued(&self, no: SessionNo, ticket: u32) {
        let mut core = self.inner.core.lock();
        let message = core.state.message_of(ticket);
        let found = core.state.sessions.get(&no).and_then(|session| {
            first(session, message, |stage| stage == Stage::Queued).or_else(|| first(session, message, |_| true))
        });
        let Some(seq) = found.map(|owed| owed.seq) else { return };
        core.push(Command::Done { no, seq });
        self.notify(core);
    }

    /// The client has it (PUBREC).
    pub fn received(&self, no: SessionNo, packet_id: u16) -> Commit {
        let mut core = self.inner.core.lock();
        let Some(seq) = core.state.sessions.get(&no).and_then(|s| by_packet_id(s, packet_id)) else {
            return Commit(None);
        };
        core.push(Command::Received { no, seq });
        core.frame.urgent = true;
        let answer = core.wait();
        self.notify(core);
        Commit(answer)
    }

    /// The client has acknowledged it (PUBACK or PUBCOMP).
    pub fn acknowledged(&self, no: SessionNo, packet_id: u16) {
        let mut core = self.inner.core.lock();
        let Some(seq) = core.state.sessions.get(&no).and_then(|s| by_packet_id(s, packet_id)) else { return };
        core.push(Command::Done { no, seq });
        core.frame.urgent = true;
        self.notify(core);
    }

    /// A QoS 2 message that the session's client has sent and not released, under this Packet Identifier.
    pub fn inbound(&self, no: SessionNo, packet_id: u16) -> Option<Inbound> {
        let core = self.inner.core.lock();
        core.state.sessions.get(&no)?.inbound.iter().find(|inbound| inbound.packet_id == packet_id).copied()
    }

    /// The oldest of them whose Packet Identifier is `among` some.
    pub fn oldest_inbound(&self, no: SessionNo, among: impl Fn(u16) -> bool) -> Option<Inbound> {
        let core = self.inner.core.lock();
        core.state.sessions.get(&no)?.inbound.iter().find(|inbound| among(inbound.packet_id)).copied()
    }

    /// The Packet Identifiers of all of them, the oldest first.
    pub fn inbound_ids(&self, no: SessionNo) -> Vec<u16> {
        let core = self.inner.core.lock();
        let all = core.state.sessions.get(&no).into_iter().flat_map(|session| &session.inbound);
        all.map(|inbound| inbound.packet_id).collect()
    }

    /// The client has released it (PUBREL).
    pub fn released(&self, no: SessionNo, packet_id: u16) {
        self.command(no, |no| Command::Released { no, packet_id });
    }

    /// Sets the Retained Message of a topic.
    pub fn retain(&self, topic: &str, expires_at: Millis, message: &[u8]) -> Result<Commit, Refusal> {
        let mut core = self.inner.core.lock();
        self.check(&core, message)?;
        core.push(Command::Retain { topic, expires_at, message });
        let answer = core.wait();
        self.notify(core);
        Ok(Commit(answer))
    }

    /// Removes it. While nothing can be written it goes all the same, for another node may have cleared it; but who waits is told
    /// that a restart may bring it back.
    pub fn clear(&self, topic: &str) -> Commit {
        let mut core = self.inner.core.lock();
        let fault = core.fault.clone();
        if !core.state.retained.contains_key(topic) {
            drop(core);
            // Another one that clears it may be on its way, and may fail.
            return if fault.is_some() { Commit(None) } else { self.so_far() };
        }
        core.push(Command::Clear { topic });
        let answer = core.wait();
        self.notify(core);
        fault.map_or(Commit(answer), Commit::refused)
    }

    /// Topics with a Retained Message, and when each expires.
    pub fn retained(&self) -> Vec<(String, Millis)> {
        let core = self.inner.core.lock();
        core.state.retained.iter().map(|(topic, stored)| (topic.clone(), stored.expires_at)).collect()
    }

    /// The same, for those topics that come behind `after`, in order; not more than a few thousand.
    pub fn retained_after(&self, after: &str) -> Vec<(String, Millis)> {
        const MANY: usize = 4_096;
        let core = self.inner.core.lock();
        let behind = core.state.retained.range::<str, _>((Bound::Excluded(after), Bound::Unbounded));
        behind.take(MANY).map(|(topic, stored)| (topic.clone(), stored.expires_at)).collect()
    }

    /// When the Retained Message of a topic expires, if there is one.
    pub fn retained_until(&self, topic: &str) -> Option<Millis> {
        self.inner.core.lock().state.retained.get(topic).map(|stored| stored.expires_at)
    }

    /// The bytes of a Retained Message. Reads from the disk.
    pub fn retained_message(&self, topic: &str) -> Option<Vec<u8>> {
        self.read(Key::Retained(topic.to_owned()))
    }

    /// The bytes of a message. Reads from the disk.
    pub fn message(&self, id: MessageId) -> Option<Vec<u8>> {
        self.read(Key::Message(id))
    }

    fn read(&self, key: Key) -> Option<Vec<u8>> {
        let disk = self.inner.disk.as_ref()?;
        let mut waited = false;
        loop {
            let (stored, frame_at) = {
                let core = self.inner.core.lock();
                let stored = match &key {
                    Key::Message(id) => core.state.messages.get(id).copied(),
                    Key::Retained(topic) => core.state.retained.get(topic).copied(),
                    Key::Session(_) | Key::Heard(_) => None,
                }?;
                (stored, core.frame_at)
            };
            let read = match stored.place {
                Place::Base => disk.base.lock().clone().message(&key).map_err(|e| e.to_string()),
                // It is in the frame that is being filled or written.
                Place::Log(at) if !waited && (at >= frame_at || at >= disk.segments.end()) => {
                    self.flush().ok()?;
                    waited = true;
                    continue;
                }
                Place::Log(at) => disk.segments.read(at, stored.len as usize).map_err(|e| e.to_string()),
            };
            match read {
                Ok(bytes) => return Some(bytes),
                // A checkpoint may have moved it in between: then it is found at its new place.
                Err(_) if !waited => waited = true,
                Err(reason) => {
                    tracing::error!(?key, reason, "stored message cannot be read");
                    return None;
                }
            }
        }
    }

    /// Waits until everything so far is written, and durable where that is promised.
    pub fn flush(&self) -> Result<(), Refusal> {
        writer::flush(&self.inner)
    }

    /// Folds the log into sled now. Blocks.
    pub fn checkpoint(&self) -> Result<(), Refusal> {
        crate::checkpoint::run(&self.inner)
    }

    /// Lets go of what expired before `now`: messages that wait, and Retained Messages. What was sent stays until it is
    /// acknowledged. If most of the disk's space is for nothing then, it is given back soon. Returns the topics of the Retained Messages.
    pub fn sweep(&self, now: Millis) -> Vec<String> {
        for no in self.sessions() {
            // One session at a time: nobody waits for the lock for long.
            let mut core = self.inner.core.lock();
            let state = &core.state;
            let Some(session) = state.sessions.get(&no) else { continue };
            let expired = |owed: &&Owed| {
                owed.stage == Stage::Queued
                    && state.messages.get(&owed.message).is_some_and(|stored| stored.expires_at <= now)
            };
            let expired: Vec<Seq> = session.queue.iter().filter(expired).map(|owed| owed.seq).collect();
            if expired.is_empty() {
                continue;
            }
            count(&self.inner.tally.expired, expired.len() as u64);
            expired.into_iter().for_each(|seq| core.push(Command::Done { no, seq }));
            self.notify(core);
        }
        let mut core = self.inner.core.lock();
        let topics: Vec<String> =
            core.state.retained.iter().filter(|(_, s)| s.expires_at <= now).map(|(topic, _)| topic.clone()).collect();
        topics.iter().for_each(|topic| core.push(Command::Clear { topic }));
        core.state.shrink();
        self.notify(core);
        crate::checkpoint::want_if_garbage(&self.inner);
        topics
    }

    /// Notes that the store is alive: the age of a session that was online when the process died counts from its last sign.
    pub fn beat(&self) {
        let mut core = self.inner.core.lock();
        let Some((no, record)) = core.state.sessions.iter().next().map(|(no, s)| (*no, s.record.clone())) else {
            return;
        };
        // Any command will do: its frame carries the time.
        core.push(Command::Session { no, record });
        self.notify(core);
    }

    /// Where the log ends: tests cut it behind this.
    #[doc(hidden)]
    pub fn log_end(&self) -> u64 {
        self.inner.disk.as_ref().map_or(0, |disk| disk.journal.lock().end())
    }

    /// Up to where the log is durable: a power cut may take any pages behind this.
    #[doc(hidden)]
    pub fn log_durable(&self) -> u64 {
        self.inner.disk.as_ref().map_or(0, |disk| disk.journal.lock().durable())
    }

    /// Facts for metrics and health.
    pub fn status(&self) -> Status {
        let tally = &self.inner.tally;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let disk_bytes = self.inner.disk.as_ref().map_or(0, |disk| {
            let journal = disk.journal.lock().bytes();
            journal + disk.base.lock().bytes()
        });
        let core = self.inner.core.lock();
        Status {
            sessions: core.state.sessions.len() as u64,
            messages: core.state.messages.len() as u64,
            owed: core.state.owed,
            retained: core.state.retained.len() as u64,
            bytes: core.state.bytes,
            disk_bytes,
            fault: core.refusal(),
            commits: get(&tally.commits),
            stored: get(&tally.stored),
            refused: get(&tally.refused),
            unkept: get(&tally.unkept),
            expired: get(&tally.expired),
            checkpoints: get(&tally.checkpoints),
        }
    }

    /// A message was refused before it got here.
    pub fn count_refused(&self) {
        count(&self.inner.tally.refused, 1);
    }

    /// What the store promises.
    pub fn durability(&self) -> Durability {
        self.inner.config.durability
    }

    fn command(&self, no: SessionNo, command: impl FnOnce(SessionNo) -> Command<'static>) {
        let mut core = self.inner.core.lock();
        if core.state.sessions.contains_key(&no) {
            core.push(command(no));
            self.notify(core);
        }
    }

    fn commit<'a>(&self, no: SessionNo, command: impl FnOnce(SessionNo) -> Command<'a>) -> Commit {
        self.commit_in(self.inner.core.lock(), no, command)
    }

    fn commit_in<'a>(
        &self,
        mut core: MutexGuard<'_, Core>,
        no: SessionNo,
        command: impl FnOnce(SessionNo) -> Command<'a>,
    ) -> Commit {
        if !core.state.sessions.contains_key(&no) {
            return Commit(None);
        }
        core.push(command(no));
        let answer = core.wait();
        self.notify(core);
        Commit(answer)
    }

    /// Wakes the writer, if there is something for it to do.
    pub(crate) fn notify(&self, core: MutexGuard<'_, Core>) {
        let wakes = !core.frame.bytes.is_empty() && core.frame.waiters.len() >= core.enough;
        drop(core);
        if wakes {
            self.inner.wake.notify_one();
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
    }
}

fn under_way(session: &SessionState) -> usize {
    session.queue.iter().filter(|owed| owed.stage != Stage::Queued).count()
}

/// The first place of a message in a queue; a session may have it twice. Queues are in the order of messages.
fn first(session: &SessionState, message: MessageId, stage: impl Fn(Stage) -> bool) -> Option<&Owed> {
    let at = session.queue.partition_point(|owed| owed.message < message);
    session.queue.range(at..).take_while(|owed| owed.message == message).find(|owed| stage(owed.stage))
}

/// The place of what was sent under a Packet Identifier. The identifier says all but how often the numbers went round.
fn by_packet_id(session: &SessionState, packet_id: u16) -> Option<Seq> {
    let front = session.queue.front()?.seq;
    // What is above was not given out here: it would be taken for one of the next round.
    let wanted = u64::from(packet_id).checked_sub(1).filter(|wanted| *wanted < PACKET_IDS)?;
    let mut seq = front - front % PACKET_IDS + wanted;
    while seq < session.next_seq {
        if seq >= front && session.position(seq).is_some() {
            return Some(seq);
        }
        seq += PACKET_IDS;
    }
    None
}

fn aside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".corrupt-{}", now() / 1000));
    path.with_file_name(name)
}
