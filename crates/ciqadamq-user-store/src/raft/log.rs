//! Log, vote and incarnation on sled.
//!
//! | tree | key | value |
//! | --- | --- | --- |
//! | default | `format` | 1, 4 bytes big endian |
//! | default | `incarnation` | 8 random bytes, made with the directory |
//! | default | `writes` | number of commits so far, 8 bytes big endian |
//! | default | `vote` | the last vote |
//! | default | `purged` | the last entry that was dropped because a snapshot has it |
//! | `log` | index, 8 bytes big endian | the entry |
//!
//! Every commit is one sled transaction in effect: a batch per tree, one flush, one fsync, and the number of commits is
//! noted in a file beside it. A log that knows of fewer commits than the note has lost some: it is refused, because a
//! node that forgets its votes or entries must not count as the member it was.

use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ciqadamq_core::{NodeId, Revision};
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{
    AnyError, ErrorSubject, ErrorVerb, LogId, LogState, OptionalSend, RaftLogReader, RaftTypeConfig, StorageError,
    StorageIOError, Vote,
};
use parking_lot::Mutex;
use sled::{Batch, Db, Tree};

use super::types::{Entry, Incarnation, Types, decode, encode};
use super::wire;
use crate::OpenError;
use crate::database::{WriteError, open_sled};
use crate::disk::{self, Disk};

const FORMAT: u32 = 1;
const CACHE_BYTES: u64 = 4 * 1024 * 1024;

/// Entries read at once for another node; with the bound on a batch this stays below the bound on a call.
const READ_MAX: usize = 32;

/// The log of this node. Clones are the same log.
#[derive(Clone)]
pub(crate) struct LogStore {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    incarnation: Incarnation,
    db: Db,
    log: Tree,
    /// taken for each write
    writer: Mutex<Writer>,
}

struct Writer {
    disk: Disk,
    writes: u64,
    purged: Option<LogId<NodeId>>,
    last: Option<LogId<NodeId>>,
    /// after a failed write nothing is known of what is on the disk: no other one is tried
    broken: Option<Broken>,
}

struct Broken {
    reason: String,
    /// opening it again may help, because the disk refused the bytes; after any other error only a look at the disk does
    may_reopen: bool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.writer.lock().broken.as_ref().is_some_and(|broken| !broken.may_reopen) {
            // sled syncs when it is dropped, and panics if that fails: it is never dropped then.
            std::mem::forget((self.db.clone(), self.log.clone()));
        }
    }
}

impl LogStore {
    /// Opens the log in this directory, or makes it.
    pub(crate) fn open(path: &Path) -> Result<Self, OpenError> {
        let directory = |source| OpenError::Directory { path: path.to_owned(), source };
        let corrupt = |reason: String| OpenError::Corrupt { path: path.to_owned(), reason };
        let disk_error = |e: &dyn std::fmt::Display| OpenError::Disk { path: path.to_owned(), reason: e.to_string() };
        disk::prepare_directory(path).map_err(directory)?;
        let used_before = Disk::has_watermark(path);
        if used_before && std::fs::metadata(path.join("db")).map_or(true, |file| file.len() == 0) {
            return Err(corrupt("its file `db` is missing or empty".into()));
        }
        let db = open_sled(path, CACHE_BYTES)?;
        let number = |key: &str| -> Result<Option<u64>, OpenError> {
            match db.get(key).map_err(|e| corrupt(e.to_string()))? {
                None => Ok(None),
                Some(bytes) => {
                    let bytes = (&*bytes).try_into().map_err(|_| corrupt(format!("key `{key}`")))?;
                    Ok(Some(u64::from_be_bytes(bytes)))
                }
            }
        };
        match db.get("format").map_err(|e| corrupt(e.to_string()))? {
            Some(bytes) if *bytes == FORMAT.to_be_bytes() => {}
            Some(bytes) => {
                let found = (&*bytes).try_into().map_or(0, u32::from_be_bytes);
                return Err(OpenError::Version { path: path.to_owned(), found, supported: FORMAT });
            }
            None if used_before || !db.is_empty() => {
                return Err(corrupt("it came up without a format, though it was in use before".into()));
            }
            None => {
                let mut batch = Batch::default();
                batch.insert("format", &FORMAT.to_be_bytes());
                batch.insert("incarnation", &rand::random::<u64>().to_be_bytes());
                batch.insert("writes", &0u64.to_be_bytes());
                db.apply_batch(batch).and_then(|()| db.flush().map(drop)).map_err(|e| disk_error(&e))?;
            }
        }
        let incarnation = number("incarnation")?.ok_or_else(|| corrupt("it has no incarnation".into()))?;
        let writes = number("writes")?.ok_or_else(|| corrupt("it does not count its writes".into()))?;
        let log = db.open_tree("log").map_err(|e| disk_error(&e))?;
        db.flush().map_err(|e| disk_error(&e))?;
        let (mut disk, noted) = Disk::open(path).map_err(directory)?;
        if let Some(noted) = noted.filter(|noted| noted.0 > writes) {
            return Err(corrupt(format!("it holds {writes} writes, {} were acknowledged", noted.0)));
        }
        disk.sync_everything(Revision(writes)).map_err(|e| disk_error(&e))?;
        let purged = match db.get("purged").map_err(|e| corrupt(e.to_string()))? {
            Some(bytes) => {
                Some(decode::<wire::Position>(&bytes).map_err(|e| corrupt(format!("key `purged` {e}")))?.into())
            }
            None => None,
        };
        let last = match log.last().map_err(|e| corrupt(e.to_string()))? {
            Some((_, bytes)) => Some(read_entry(&bytes).map_err(|e| corrupt(format!("the last entry {e}")))?.log_id),
            None => purged,
        };
        let writer = Mutex::new(Writer { disk, writes, purged, last, broken: None });
        let incarnation = Incarnation(incarnation);
        Ok(Self { inner: Arc::new(Inner { path: path.to_owned(), incarnation, db, log, writer }) })
    }

    /// Which data directory this is.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.inner.incarnation
    }

    /// The last entry.
    pub(crate) fn last(&self) -> Option<LogId<NodeId>> {
        self.inner.writer.lock().last
    }

    /// The last entry that was dropped.
    pub(crate) fn purged(&self) -> Option<LogId<NodeId>> {
        self.inner.writer.lock().purged
    }

    /// The last vote.
    pub(crate) fn vote(&self) -> Result<Option<Vote<NodeId>>, String> {
        match self.inner.db.get("vote").map_err(|e| e.to_string())? {
            Some(bytes) => decode::<wire::Ballot>(&bytes).map(|ballot| Some(ballot.into())),
            None => Ok(None),
        }
    }

    /// Whether a write failed in a way that opening it again cannot mend.
    pub(crate) fn is_lost(&self) -> bool {
        self.inner.writer.lock().broken.as_ref().is_some_and(|broken| !broken.may_reopen)
    }

    /// All entries after `index`. For the start; they are few, because a snapshot is made every so many.
    pub(crate) fn entries_after(&self, index: Option<u64>) -> Result<Vec<Entry>, String> {
        self.read((index.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded), usize::MAX)
    }

    /// Why nothing may be added, if the disk is nearly full.
    pub(crate) fn space_problem(&self) -> Option<String> {
        disk::space_problem(&self.inner.path)
    }

    /// Adds entries, durably. Blocks.
    pub(crate) fn add(&self, entries: &[Entry]) -> Result<(), String> {
        let mut batch = Batch::default();
        for entry in entries {
            batch.insert(&entry.log_id.index.to_be_bytes(), encode(&wire::Entry::from(entry.clone()))?);
        }
        let last = entries.last().map(|entry| entry.log_id);
        self.write(Batch::default(), Some(batch), |writer| writer.last = last.or(writer.last))
    }

    /// Notes a vote, durably. Blocks.
    pub(crate) fn save_vote_blocking(&self, vote: &Vote<NodeId>) -> Result<(), String> {
        let mut batch = Batch::default();
        batch.insert("vote", encode(&wire::Ballot::from(*vote))?);
        self.write(batch, None, |_| {})
    }

    /// Drops the entries from `from` on: another leader's history won.
    fn cut(&self, from: &LogId<NodeId>) -> Result<(), String> {
        let mut batch = Batch::default();
        for key in self.inner.log.range(from.index.to_be_bytes()..).keys() {
            batch.remove(key.map_err(|e| e.to_string())?);
        }
        let before = match from.index.checked_sub(1) {
            Some(index) => self.inner.log.get(index.to_be_bytes()).map_err(|e| e.to_string())?,
            None => None,
        };
        let last = match before {
            Some(bytes) => Some(read_entry(&bytes)?.log_id),
            None => None,
        };
        self.write(Batch::default(), Some(batch), |writer| writer.last = last.or(writer.purged))
    }

    /// Drops the entries up to `to`: a snapshot has them.
    fn drop_until(&self, to: &LogId<NodeId>) -> Result<(), String> {
        let (mut default, mut batch) = (Batch::default(), Batch::default());
        default.insert("purged", encode(&wire::Position::from(*to))?);
        for key in self.inner.log.range(..=to.index.to_be_bytes()).keys() {
            batch.remove(key.map_err(|e| e.to_string())?);
        }
        // If only the first of the two batches gets to the disk, entries are left over that nobody asks for.
        self.write(default, Some(batch), |writer| {
            writer.purged = Some(*to);
            writer.last = writer.last.max(Some(*to));
        })
    }

    fn read(&self, range: impl RangeBounds<u64>, max: usize) -> Result<Vec<Entry>, String> {
        let bound = |bound: Bound<&u64>| match bound {
            Bound::Included(index) => Bound::Included(index.to_be_bytes()),
            Bound::Excluded(index) => Bound::Excluded(index.to_be_bytes()),
            Bound::Unbounded => Bound::Unbounded,
        };
        let range = (bound(range.start_bound()), bound(range.end_bound()));
        let entries = self.inner.log.range::<[u8; 8], _>(range).values().take(max);
        entries.map(|bytes| read_entry(&bytes.map_err(|e| e.to_string())?)).collect()
    }

    fn write(&self, mut default: Batch, log: Option<Batch>, then: impl FnOnce(&mut Writer)) -> Result<(), String> {
        let mut writer = self.inner.writer.lock();
        if let Some(broken) = &writer.broken {
            return Err(broken.reason.clone());
        }
        let writes = writer.writes + 1;
        default.insert("writes", &writes.to_be_bytes());
        let written = (|| {
            // The entries first: a count without them would be a lie, they without it are only more than was promised.
            if let Some(batch) = log {
                self.inner.log.apply_batch(batch)?;
            }
            self.inner.db.apply_batch(default)?;
            self.inner.db.flush()?;
            writer.disk.sync().map_err(sled::Error::Io)
        })();
        if let Err(error) = written {
            let WriteError { reason, refused } = error.into();
            let remedy = if refused { "free some space" } else { "check the disk, then restart the broker" };
            let reason = format!("the replicated log cannot be written ({reason}); {remedy}");
            tracing::error!(path = %self.inner.path.display(), %reason, "replicated log takes no writes");
            writer.broken = Some(Broken { reason: reason.clone(), may_reopen: refused });
            return Err(reason);
        }
        writer.writes = writes;
        if let Err(error) = writer.disk.acknowledge(Revision(writes)) {
            tracing::warn!(%error, "number of writes not noted beside the replicated log");
        }
        then(&mut writer);
        Ok(())
    }

    /// Runs something that writes on a thread that may wait for the disk.
    async fn blocking(
        &self,
        what: ErrorVerb,
        f: impl FnOnce(&Self) -> Result<(), String> + Send + 'static,
    ) -> Result<(), StorageError<NodeId>> {
        let this = self.clone();
        let done = tokio::task::spawn_blocking(move || f(&this)).await;
        done.unwrap_or_else(|_| Err("the write panicked".into())).map_err(|e| failure(what, e))
    }
}

fn read_entry(bytes: &[u8]) -> Result<Entry, String> {
    decode::<wire::Entry>(bytes).map(Into::into)
}

fn failure(verb: ErrorVerb, reason: String) -> StorageError<NodeId> {
    let source = AnyError::error(reason);
    StorageIOError::new(ErrorSubject::Store, verb, source).into()
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, StorageError<NodeId>> {
        self.read(range, usize::MAX).map_err(|e| failure(ErrorVerb::Read, e))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, StorageError<NodeId>> {
        self.read(start..end, READ_MAX).map_err(|e| failure(ErrorVerb::Read, e))
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError<NodeId>> {
        let writer = self.inner.writer.lock();
        Ok(LogState { last_purged_log_id: writer.purged, last_log_id: writer.last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<NodeId>) -> Result<(), StorageError<NodeId>> {
        let vote = *vote;
        self.blocking(ErrorVerb::Write, move |this| this.save_vote_blocking(&vote)).await
    }

    /// As one that no quorum has given yet: a leader that is started again must ask once more.
    ///
    /// It would go on where it was otherwise, without knowing up to where its quorum has had the log: that is not on the disk. Asked
    /// what was acknowledged, it would name an earlier entry, and who asked would miss a user that exists, or let in one that does not.
    async fn read_vote(&mut self) -> Result<Option<Vote<NodeId>>, StorageError<NodeId>> {
        let vote = self.vote().map_err(|e| failure(ErrorVerb::Read, e))?;
        Ok(vote.map(|vote| Vote { committed: false, ..vote }))
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Result<(), StorageError<NodeId>>
    where
        I: IntoIterator<Item = <Types as RaftTypeConfig>::Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<Entry> = entries.into_iter().collect();
        self.blocking(ErrorVerb::Write, move |this| this.add(&entries)).await?;
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId<NodeId>) -> Result<(), StorageError<NodeId>> {
        self.blocking(ErrorVerb::Delete, move |this| this.cut(&log_id)).await
    }

    async fn purge(&mut self, log_id: LogId<NodeId>) -> Result<(), StorageError<NodeId>> {
        self.blocking(ErrorVerb::Delete, move |this| this.drop_until(&log_id)).await
    }
}
