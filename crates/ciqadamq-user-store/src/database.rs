//! The sled database: opened with every check, changed by one batch at a time.
//!
//! sled recovers what it can of a damaged log and may come up with less than there was, or with nothing. So the store
//! keeps the last acknowledged revision in a file of its own (see [`Disk`]) and refuses a database that knows less.

use std::fs::{self, OpenOptions};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ciqadamq_core::Revision;
use sled::{Batch, Db, Tree};

use crate::disk::{self, Disk};
use crate::records::Users;
use crate::{OpenError, StoreConfig, codec};

/// Version of the layout of trees and keys.
const FORMAT: u32 = 2;

/// The version before: without the state of the replicated log. It is raised when that is written first.
const FORMAT_UNREPLICATED: u32 = 1;

/// Keys of sled's default tree: the format, and which tree holds the users.
const FORMAT_KEY: &[u8] = b"format";
const GENERATION_KEY: &[u8] = b"generation";

/// How long to wait for the lock: a broker that is being restarted may still be letting go of it.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// An open database.
pub(crate) struct Database {
    db: Db,
    tree: Tree,
    disk: Disk,
    /// which tree holds the users; installing a snapshot begins a new one
    generation: u64,
    replicated: bool,
}

/// What an opened database holds.
pub(crate) struct Contents {
    pub(crate) users: Users,
    /// the last applied revision
    pub(crate) last: Revision,
    /// the state of the replicated log, if there is one
    pub(crate) raft: Option<Vec<u8>>,
}

/// A write that failed.
pub(crate) struct WriteError {
    pub(crate) reason: String,
    /// The bytes did not get as far as the disk: a database opened again is what it was or what it should be. After any
    /// other error the system may show bytes that the disk does not have, and only a restart with a look at the disk
    /// helps.
    pub(crate) refused: bool,
}

impl From<sled::Error> for WriteError {
    fn from(error: sled::Error) -> Self {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        let refused =
            matches!(&error, sled::Error::Io(e) if matches!(e.kind(), StorageFull | QuotaExceeded | FileTooLarge));
        Self { reason: error.to_string(), refused }
    }
}

impl Database {
    /// Opens or makes the database, and reads all of it.
    pub(crate) fn open(config: &StoreConfig) -> Result<(Self, Contents), OpenError> {
        let path = config.path.as_path();
        let directory = |source| OpenError::Directory { path: path.to_owned(), source };
        let disk_error = |e: &dyn std::fmt::Display| OpenError::Disk { path: path.to_owned(), reason: e.to_string() };
        let corrupt = |reason: String| OpenError::Corrupt { path: path.to_owned(), reason };

        disk::prepare_directory(path).map_err(directory)?;
        let used_before = Disk::has_watermark(path);
        if used_before && fs::metadata(path.join("db")).map_or(true, |file| file.len() == 0) {
            // sled would make a new one.
            return Err(corrupt("its file `db` is missing or empty".into()));
        }
        let db = open_sled(path, config.cache_bytes)?;
        match db.get(FORMAT_KEY).map_err(|e| corrupt(e.to_string()))?.as_deref() {
            Some(bytes) => check_format(path, bytes)?,
            None if used_before => return Err(corrupt("it came up empty, though it was in use before".into())),
            None if !db.is_empty() || db.tree_names().len() > 1 => {
                return Err(OpenError::Foreign { path: path.to_owned() });
            }
            None => initialise(&db, path).map_err(|e| disk_error(&e))?,
        }
        let generation = match db.get(GENERATION_KEY).map_err(|e| corrupt(e.to_string()))?.as_deref() {
            Some(bytes) => u64::from_be_bytes(bytes.try_into().map_err(|_| corrupt("key `generation`".into()))?),
            None => return Err(corrupt("it does not say which tree holds the users".into())),
        };
        let tree = db.open_tree(tree_name(generation)).map_err(|e| disk_error(&e))?;
        let contents = read_all(&tree).map_err(corrupt)?;
        let (users, last) = (&contents.users, contents.last);

        let (mut disk, acknowledged) = Disk::open(path).map_err(directory)?;
        match acknowledged {
            Some(acknowledged) if acknowledged > last => {
                return Err(corrupt(format!("it ends at revision {last}, but {acknowledged} was acknowledged")));
            }
            None if used_before => {
                tracing::warn!(path = %path.display(), "last revision beside the user store is unreadable; made anew");
            }
            _ => {}
        }
        // Left by a snapshot whose installation did not end.
        for other in db.tree_names() {
            if other.starts_with(b"users.") && *other != *tree.name() {
                db.drop_tree(&other).map_err(|e| disk_error(&e))?;
            }
        }
        db.flush().map_err(|e| disk_error(&e))?;
        disk.sync_everything(last).map_err(|e| disk_error(&e))?;
        tracing::info!(path = %path.display(), users = users.len(), revision = last.0, "user store open");
        let replicated = contents.raft.is_some();
        Ok((Self { db, tree, disk, generation, replicated }, contents))
    }

    /// Raises the format before the first state of the replicated log is written: a version that knows nothing of it
    /// must not change users behind its back.
    pub(crate) fn begin_replication(&mut self) -> Result<(), WriteError> {
        if !self.replicated {
            self.db.insert(FORMAT_KEY, &FORMAT.to_be_bytes())?;
            self.sync()?;
            self.replicated = true;
        }
        Ok(())
    }

    /// Applies a batch, as a whole, and makes it durable.
    pub(crate) fn commit(&mut self, batch: Batch, last: Revision) -> Result<(), WriteError> {
        self.tree.apply_batch(batch)?;
        self.sync()?;
        self.note(last);
        Ok(())
    }

    /// Makes durable what was written.
    pub(crate) fn sync(&self) -> Result<(), WriteError> {
        self.db.flush()?;
        self.disk.sync().map_err(|e| WriteError { reason: format!("fsync: {e}"), refused: false })
    }

    /// An empty tree for the users of the next generation.
    pub(crate) fn begin_generation(&self) -> Result<Tree, WriteError> {
        let name = tree_name(self.generation + 1);
        // What an interrupted attempt left.
        self.db.drop_tree(&name)?;
        Ok(self.db.open_tree(&name)?)
    }

    /// Makes the filled tree of the next generation the current one, durably, and drops the old one.
    pub(crate) fn finish_generation(&mut self, tree: Tree, last: Revision) -> Result<(), WriteError> {
        // First the content, then what points to it.
        self.sync()?;
        self.db.insert(GENERATION_KEY, &(self.generation + 1).to_be_bytes())?;
        self.sync()?;
        self.note(last);
        self.generation += 1;
        let old = std::mem::replace(&mut self.tree, tree);
        // Nothing points to it any more: if this is cut short, the next start drops it.
        self.db.drop_tree(old.name())?;
        Ok(())
    }

    fn note(&mut self, last: Revision) {
        // Only a later check for lost data is weaker without it.
        if let Err(error) = self.disk.acknowledge(last) {
            tracing::warn!(%error, "last revision not noted beside the user store");
        }
    }
}

fn tree_name(generation: u64) -> String {
    format!("users.{generation}")
}

/// Opens sled's files in a directory; waits for an owner that is just ending.
pub(crate) fn open_sled(path: &Path, cache_bytes: u64) -> Result<Db, OpenError> {
    // No flushes by time: each commit is flushed before it is acknowledged, and sled cleans up as it writes.
    let settings = sled::Config::default().path(path).cache_capacity(cache_bytes).flush_every_ms(None);
    let began = Instant::now();
    loop {
        // sled has assertions where it reads its own files.
        let error = match catch_unwind(AssertUnwindSafe(|| settings.open())) {
            Ok(Ok(db)) => return Ok(db),
            Ok(Err(error)) => error,
            Err(_) => {
                let reason = "the database panicked while it was reading its files, see the log".into();
                return Err(OpenError::Corrupt { path: path.to_owned(), reason });
            }
        };
        return Err(match error {
            sled::Error::Io(e) if e.to_string().contains("could not acquire lock") => {
                if began.elapsed() < LOCK_WAIT {
                    thread::sleep(Duration::from_millis(20));
                    continue;
                }
                OpenError::Locked { path: path.to_owned() }
            }
            sled::Error::Io(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                OpenError::Directory { path: path.to_owned(), source: e }
            }
            sled::Error::Io(e) if !matches!(e.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData) => {
                OpenError::Disk { path: path.to_owned(), reason: e.to_string() }
            }
            other => OpenError::Corrupt { path: path.to_owned(), reason: other.to_string() },
        });
    }
}

fn check_format(path: &Path, bytes: &[u8]) -> Result<(), OpenError> {
    match bytes.try_into().map(u32::from_be_bytes) {
        Ok(FORMAT | FORMAT_UNREPLICATED) => Ok(()),
        Ok(found) => Err(OpenError::Version { path: path.to_owned(), found, supported: FORMAT }),
        Err(_) => Err(OpenError::Foreign { path: path.to_owned() }),
    }
}

fn initialise(db: &Db, path: &Path) -> sled::Result<()> {
    let mut batch = Batch::default();
    batch.insert(FORMAT_KEY, &FORMAT_UNREPLICATED.to_be_bytes());
    batch.insert(GENERATION_KEY, &0u64.to_be_bytes());
    db.apply_batch(batch)?;
    db.flush()?;
    // Before the watermark exists: it says that a database without a format is a damaged one.
    OpenOptions::new().write(true).open(path.join("db"))?.sync_all()?;
    Ok(())
}

fn read_all(tree: &Tree) -> Result<Contents, String> {
    let (mut users, mut last, mut raft) = (Users::new(), Revision(0), None);
    for entry in tree.iter() {
        let (key, value) = entry.map_err(|e| e.to_string())?;
        // Its key comes before those of all records.
        if &*key == codec::APPLIED {
            last = codec::decode_revision(&value)?;
            continue;
        }
        if &*key == codec::RAFT {
            raft = Some(value.to_vec());
            continue;
        }
        let user = codec::decode(codec::username_in(&key)?, &value)?;
        if user.revision > last {
            return Err(format!("record of `{}` is newer than the last revision, {last}", user.username));
        }
        users.insert(user.username.clone(), Arc::new(user));
    }
    Ok(Contents { users, last, raft })
}
