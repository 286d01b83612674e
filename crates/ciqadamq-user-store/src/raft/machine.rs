//! Entries of the log into the user store.
//!
//! The users and how far the log was applied are written as one sled batch, so they are always of one moment, whatever
//! is killed when. Whoever waits for a batch of this node, or for an index, is told here.

use std::collections::HashMap;
use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ciqadamq_core::NodeId;
use openraft::storage::RaftStateMachine;
use openraft::{
    AnyError, EntryPayload, ErrorSubject, ErrorVerb, LogId, OptionalSend, RaftSnapshotBuilder, Snapshot, SnapshotMeta,
    StorageError, StorageIOError, StoredMembership,
};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{oneshot, watch};

use super::snapshot;
use super::types::{Applied, BatchId, Entry, Member, Outcome, Reign, Types};
use crate::UserStore;

/// What others can see and wait for.
pub(crate) struct Progress {
    store: Arc<UserStore>,
    applied: watch::Sender<Option<LogId<NodeId>>>,
    waiting: Mutex<HashMap<BatchId, oneshot::Sender<(u64, Outcome)>>>,
    /// snapshots that were installed: entries were skipped, and what they did cannot be told
    jumps: AtomicU64,
    current: RwLock<Option<Kept>>,
}

/// The last snapshot.
#[derive(Clone)]
struct Kept {
    meta: SnapshotMeta<NodeId, Member>,
    bytes: Arc<Vec<u8>>,
}

impl Progress {
    /// As far as the store has come.
    pub(crate) fn new(store: Arc<UserStore>) -> Result<Arc<Self>, String> {
        let last = Self::read(&store)?.last;
        Ok(Arc::new(Self {
            store,
            applied: watch::Sender::new(last),
            waiting: Mutex::default(),
            jumps: AtomicU64::new(0),
            current: RwLock::new(None),
        }))
    }

    fn read(store: &UserStore) -> Result<Applied, String> {
        store.raft_state().map_or_else(|| Ok(Applied::default()), |bytes| Applied::decode(&bytes))
    }

    /// What the store holds.
    pub(crate) fn state(&self) -> Result<Applied, String> {
        Self::read(&self.store)
    }

    /// The last entry that took effect here.
    pub(crate) fn applied(&self) -> watch::Receiver<Option<LogId<NodeId>>> {
        self.applied.subscribe()
    }

    /// Will hear of a batch when this node applies it: index and outcome. Bounded by the batches under way.
    pub(crate) fn expect(&self, id: BatchId) -> oneshot::Receiver<(u64, Outcome)> {
        let (told, hears) = oneshot::channel();
        self.waiting.lock().insert(id, told);
        hears
    }

    /// Nobody waits for it any more.
    pub(crate) fn forget(&self, id: &BatchId) {
        self.waiting.lock().remove(id);
    }

    /// How often entries were skipped.
    pub(crate) fn jumps(&self) -> u64 {
        self.jumps.load(Ordering::Acquire)
    }
}

/// The state machine as openraft wants it.
pub(crate) struct Machine {
    progress: Arc<Progress>,
}

impl Machine {
    pub(crate) fn new(progress: Arc<Progress>) -> Self {
        Self { progress }
    }
}

/// Reads all users of one moment.
pub(crate) struct Builder {
    progress: Arc<Progress>,
    begun: Result<(crate::Snapshot, Applied), String>,
}

fn failure(subject: ErrorSubject<NodeId>, verb: ErrorVerb, reason: impl ToString) -> StorageError<NodeId> {
    StorageIOError::new(subject, verb, AnyError::error(reason.to_string())).into()
}

fn unreadable(reason: impl ToString) -> StorageError<NodeId> {
    failure(ErrorSubject::StateMachine, ErrorVerb::Read, reason)
}

fn unwritable(reason: impl ToString) -> StorageError<NodeId> {
    failure(ErrorSubject::StateMachine, ErrorVerb::Write, reason)
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Builder;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId<NodeId>>, StoredMembership<NodeId, Member>), StorageError<NodeId>> {
        let state = self.progress.state().map_err(unreadable)?;
        Ok((state.last, state.membership))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Outcome>, StorageError<NodeId>>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut state = self.progress.state().map_err(unreadable)?;
        let (mut commands, mut slots, mut indexes) = (Vec::new(), Vec::new(), Vec::new());
        for entry in entries {
            let reign = Reign::of(&entry.log_id);
            state.last = Some(entry.log_id);
            indexes.push(entry.log_id.index);
            slots.push(match entry.payload {
                EntryPayload::Blank => Slot::Settled(None, Outcome::Nothing),
                EntryPayload::Membership(membership) => {
                    state.membership = StoredMembership::new(Some(entry.log_id), membership);
                    Slot::Settled(None, Outcome::Nothing)
                }
                EntryPayload::Normal(batch) if batch.reign != reign => {
                    Slot::Settled(Some(batch.id), Outcome::Superseded)
                }
                EntryPayload::Normal(batch) => {
                    let count = batch.commands.len();
                    commands.extend(batch.commands);
                    Slot::Commands(batch.id, count)
                }
            });
        }
        let last = state.last;
        let results = self
            .progress
            .store
            .apply_agreed(commands, state.encode().map_err(unwritable)?)
            .await
            .map_err(unwritable)?;
        let mut results = results.into_iter().map(|result| result.map(|applied| applied.revision));
        let outcomes = slots.into_iter().map(|slot| match slot {
            Slot::Settled(id, outcome) => (id, outcome),
            Slot::Commands(id, count) => (Some(id), Outcome::Done(results.by_ref().take(count).collect())),
        });
        let outcomes: Vec<_> = outcomes.collect();
        let mut waiting = self.progress.waiting.lock();
        let tell = |((id, outcome), index): ((Option<BatchId>, Outcome), u64)| {
            if let Some(told) = id.and_then(|id| waiting.remove(&id)) {
                // Whoever waited may have given up.
                let _ = told.send((index, outcome.clone()));
            }
            outcome
        };
        let outcomes = outcomes.into_iter().zip(indexes).map(tell).collect();
        drop(waiting);
        // Afterwards: whoever sees an entry of a later reign here has heard of all before it.
        self.progress.applied.send_replace(last);
        Ok(outcomes)
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        // No entry is applied meanwhile, so the two belong together.
        let begun = self.progress.state().and_then(|state| {
            let users = self.progress.store.snapshot().map_err(|e| e.reason)?;
            Ok((users, state))
        });
        Builder { progress: self.progress.clone(), begun }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>, StorageError<NodeId>> {
        Ok(Box::new(Cursor::new(Vec::new())))
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<NodeId, Member>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), StorageError<NodeId>> {
        let bytes = snapshot.into_inner();
        let state = Applied { last: meta.last_log_id, membership: meta.last_membership.clone() };
        let (revision, records) = snapshot::decode(bytes.clone()).map_err(unwritable)?;
        self.progress
            .store
            .install_agreed(revision, records, state.encode().map_err(unwritable)?)
            .await
            .map_err(unwritable)?;
        *self.progress.current.write() = Some(Kept { meta: meta.clone(), bytes: Arc::new(bytes) });
        self.progress.jumps.fetch_add(1, Ordering::AcqRel);
        self.progress.applied.send_replace(meta.last_log_id);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, StorageError<NodeId>> {
        let kept = self.progress.current.read().clone();
        Ok(kept.map(|kept| Snapshot { meta: kept.meta, snapshot: Box::new(Cursor::new(kept.bytes.to_vec())) }))
    }
}

/// What an entry will have done.
enum Slot {
    Settled(Option<BatchId>, Outcome),
    Commands(BatchId, usize),
}

impl RaftSnapshotBuilder<Types> for Builder {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageError<NodeId>> {
        let unreadable = |reason: String| failure(ErrorSubject::Snapshot(None), ErrorVerb::Read, reason);
        let begun = std::mem::replace(&mut self.begun, Err("it was read before".into()));
        let (users, state) = begun.map_err(unreadable)?;
        // Many users take a while; other tasks go on.
        let bytes = tokio::task::spawn_blocking(move || snapshot::encode(users)).await;
        let bytes = bytes.unwrap_or_else(|_| Err("reading the users panicked".into())).map_err(unreadable)?;
        let position = state.last.map_or_else(|| "none".into(), |id| format!("{}-{}", id.leader_id, id.index));
        let meta = SnapshotMeta {
            last_log_id: state.last,
            last_membership: state.membership,
            snapshot_id: format!("{position}-{:08x}", rand::random::<u32>()),
        };
        *self.progress.current.write() = Some(Kept { meta: meta.clone(), bytes: Arc::new(bytes.clone()) });
        Ok(Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) })
    }
}
