//! sled, which keeps what lives longer than the log.
//!
//! A checkpoint writes what has changed since the last one, and then notes from which offset the log has to be read. sled
//! alone would do without the log, at a price: a commit of 64 messages costs it twice the time, and most messages are
//! acknowledged before a checkpoint ever sees them.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use sled::{Batch, Db};

use crate::journal::sync_dir;
use crate::records::{Heard, MessageId, Millis, SessionState};
use crate::state::{Key, Place, State, Stored};
use crate::wire::{Put, Take};

/// Version of keys and values.
const FORMAT: u32 = 2;
const META: &[u8] = b"meta";

/// What sled notes about the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meta {
    /// tells this store's log from another one's
    pub(crate) store: u64,
    /// the log's offset from which on sled may lack changes
    pub(crate) replay_from: u64,
    /// there is a segment of the log there: if it is not, that is damage, and not the first start
    pub(crate) has_log: bool,
    /// the next numbers to give out
    pub(crate) next_session: u64,
    pub(crate) next_message: u64,
}

/// What could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BaseError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Corrupt(String),
    #[error("it is open in another process")]
    Locked,
    #[error("its format is {0}, this version reads {FORMAT}")]
    Version(u32),
}

impl From<sled::Error> for BaseError {
    fn from(error: sled::Error) -> Self {
        match error {
            sled::Error::Io(e) if e.to_string().contains("could not acquire lock") => Self::Locked,
            sled::Error::Io(e) if !matches!(e.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData) => {
                Self::Io(e)
            }
            other => Self::Corrupt(other.to_string()),
        }
    }
}

/// An open sled.
pub(crate) struct Base {
    db: Db,
    path: PathBuf,
    /// names of the files in `blobs` that are durable: they are written once, and removed
    synced: Mutex<HashSet<OsString>>,
}

impl Base {
    /// Opens or makes it.
    pub(crate) fn open(path: &Path, cache_bytes: u64) -> Result<Self, BaseError> {
        let settings = sled::Config::default()
            .path(path)
            .cache_capacity(cache_bytes)
            .flush_every_ms(None)
            .mode(sled::Mode::LowSpace);
        // sled has assertions where it reads its own files.
        let opened = catch_unwind(AssertUnwindSafe(|| settings.open()));
        let db = opened.map_err(|_| BaseError::Corrupt("sled panicked while it was reading its files".into()))??;
        Ok(Self { db, path: path.to_owned(), synced: Mutex::default() })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The note about the whole; `None` in a new one.
    pub(crate) fn meta(&self) -> Result<Option<Meta>, BaseError> {
        let Some(bytes) = self.db.get(META)? else { return Ok(None) };
        let mut from = Take::new(&bytes);
        let malformed = |_| BaseError::Corrupt("its note about the whole is malformed".into());
        match from.u32().map_err(malformed)? {
            FORMAT => {}
            other => return Err(BaseError::Version(other)),
        }
        let mut number = || from.u64().map_err(malformed);
        let (store, replay_from, next_session, next_message) = (number()?, number()?, number()?, number()?);
        // Notes of earlier builds end here; but a checkpoint begins a segment before it notes where.
        let has_log = from.u8().map_or(replay_from > 0, |has_log| has_log != 0);
        Ok(Some(Meta { store, replay_from, has_log, next_session, next_message }))
    }

    /// Nothing in it, not even a note.
    pub(crate) fn is_empty(&self) -> bool {
        self.db.is_empty()
    }

    /// Reads everything into a state. Messages stay where they are, only their sizes are taken down.
    pub(crate) fn load(&self, state: &mut State) -> Result<(), BaseError> {
        let malformed = |key: &[u8]| BaseError::Corrupt(format!("the record {key:?} is malformed"));
        for entry in self.db.iter() {
            let (key, value) = entry?;
            match decode_key(&key) {
                Some(Key::Session(no)) => {
                    let session = SessionState::decode(&value).map_err(|_| malformed(&key))?;
                    state.next_session = state.next_session.max(no + 1);
                    state.sessions.insert(no, session);
                }
                Some(Key::Message(id)) => {
                    state.next_message = state.next_message.max(id + 1);
                    state.messages.insert(id, stored(&value).ok_or_else(|| malformed(&key))?);
                }
                Some(Key::Retained(topic)) => {
                    state.retained.insert(topic, stored(&value).ok_or_else(|| malformed(&key))?);
                }
                Some(Key::Heard(node)) => {
                    state.heard.insert(node, Heard::decode(&value).map_err(|_| malformed(&key))?);
                }
                None if *key == *META => {}
                None => return Err(malformed(&key)),
            }
        }
        Ok(())
    }

    /// The bytes of a message or Retained Message.
    pub(crate) fn message(&self, key: &Key) -> Result<Vec<u8>, BaseError> {
        let value = self.db.get(encode_key(key))?.ok_or_else(|| BaseError::Corrupt(format!("it lacks {key:?}")))?;
        Ok(value.get(8..).unwrap_or_default().to_vec())
    }

    /// Writes values; nothing is durable before [`finish`](Self::finish).
    pub(crate) fn write(&self, values: Vec<(Key, Option<Vec<u8>>)>) -> Result<(), BaseError> {
        #[cfg(test)]
        crate::trial::step(&self.path)?;
        let mut batch = Batch::default();
        for (key, value) in values {
            match value {
                Some(value) => batch.insert(encode_key(&key), value),
                None => batch.remove(encode_key(&key)),
            }
        }
        Ok(self.db.apply_batch(batch)?)
    }

    /// Makes what was written durable, and then, durably too, that the log counts from `meta.replay_from` on.
    pub(crate) fn finish(&self, meta: Meta) -> Result<(), BaseError> {
        self.sync()?;
        let mut note = Vec::new();
        note.u32(FORMAT);
        [meta.store, meta.replay_from, meta.next_session, meta.next_message].iter().for_each(|n| note.u64(*n));
        note.u8(meta.has_log.into());
        self.db.insert(META, note)?;
        self.sync()
    }

    /// sled's flush leaves out the files for large values; and on Linux it ends in `sync_file_range`, which neither commits the
    /// file's new size nor empties the drive's cache.
    fn sync(&self) -> Result<(), BaseError> {
        #[cfg(test)]
        crate::trial::step(&self.path)?;
        // Before what refers to them; and should flushing make more of them, before its end.
        self.sync_blobs()?;
        self.db.flush()?;
        self.sync_blobs()?;
        if cfg!(target_os = "linux") {
            OpenOptions::new().read(true).write(true).open(self.path.join("db"))?.sync_data()?;
        }
        Ok(())
    }

    /// sled writes what is larger than a quarter of its segments to a file of its own, and syncs neither that nor its name.
    fn sync_blobs(&self) -> io::Result<()> {
        let dir = self.path.join("blobs");
        let mut synced = self.synced.lock();
        let (mut there, mut is_new) = (HashSet::new(), false);
        for entry in fs::read_dir(&dir)? {
            let name = entry?.file_name();
            if !synced.contains(&name) {
                match OpenOptions::new().read(true).write(true).open(dir.join(&name)) {
                    Ok(file) => file.sync_all()?,
                    // Removed in between, as those are whose page was written again.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                }
                is_new = true;
            }
            there.insert(name);
        }
        if is_new {
            sync_dir(&dir)?;
        }
        *synced = there;
        Ok(())
    }

    /// Bytes on disk.
    pub(crate) fn bytes(&self) -> u64 {
        self.db.size_on_disk().unwrap_or(0)
    }
}

/// The value of a message: when it expires, and its bytes.
pub(crate) fn value(expires_at: Millis, message: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(8 + message.len());
    value.i64(expires_at);
    value.extend_from_slice(message);
    value
}

fn stored(value: &[u8]) -> Option<Stored> {
    let expires_at = Take::new(value).i64().ok()?;
    Some(Stored { place: Place::Base, len: (value.len() - 8) as u32, owed: 0, expires_at, in_base: true })
}

fn encode_key(key: &Key) -> Vec<u8> {
    let mut out = Vec::with_capacity(9);
    match key {
        Key::Session(no) => {
            out.push(b's');
            out.extend_from_slice(&no.to_be_bytes());
        }
        Key::Message(id) => {
            out.push(b'm');
            // In their order, so that those of one time lie side by side.
            out.extend_from_slice(&MessageId::to_be_bytes(*id));
        }
        Key::Retained(topic) => {
            out.push(b'r');
            out.extend_from_slice(topic.as_bytes());
        }
        Key::Heard(node) => {
            out.push(b'h');
            out.extend_from_slice(&node.to_be_bytes());
        }
    }
    out
}

fn decode_key(key: &[u8]) -> Option<Key> {
    let (kind, rest) = key.split_first()?;
    let number = || Some(u64::from_be_bytes(rest.try_into().ok()?));
    match kind {
        b's' => number().map(Key::Session),
        b'h' => number().map(Key::Heard),
        // The note's key begins with the same letter and is shorter.
        b'm' => number().map(Key::Message),
        b'r' => Some(Key::Retained(String::from_utf8(rest.to_vec()).ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
