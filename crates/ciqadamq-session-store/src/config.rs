//! Where the store lives, what it promises, and how much it may hold.

use std::path::PathBuf;
use std::time::Duration;

use crate::OpenError;

/// What an acknowledgement promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// on the disk: it survives a power cut
    #[default]
    Fsync,
    /// with the operating system: it survives the end of the process; what the last `flush_every` brought does not survive a
    /// power cut
    Interval,
    /// in memory, nothing on the disk: it survives neither
    Memory,
}

/// Settings of a [`Store`](crate::Store).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// Directory of the store, made with mode 0700 if it does not exist.
    pub path: PathBuf,
    /// What an acknowledgement promises.
    pub durability: Durability,
    /// Longest time between two fsyncs while there is something to sync: all there is under [`Durability::Interval`], and
    /// what nobody waits for under [`Durability::Fsync`].
    pub flush_every: Duration,
    /// Bytes of messages and Retained Messages kept at most; 0 = no limit. One more message is refused.
    pub max_bytes: u64,
    /// Messages kept at most; 0 = no limit. One more is refused.
    pub max_messages: u64,
    /// Size of one file of the log. 64 KiB to 1 GiB.
    pub segment_bytes: u64,
    /// The log is folded into sled when it has grown by so much. At least one segment.
    pub checkpoint_bytes: u64,
    /// sled's page cache. At least 1 MiB.
    pub cache_bytes: u64,
    /// Free space of the disk below which no message is taken. It is for all else, which goes on being written.
    pub reserve_bytes: u64,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            path: "data/sessions".into(),
            durability: Durability::Fsync,
            flush_every: Duration::from_secs(1),
            max_bytes: 0,
            max_messages: 0,
            segment_bytes: 16 << 20,
            checkpoint_bytes: 64 << 20,
            cache_bytes: 32 << 20,
            reserve_bytes: 64 << 20,
        }
    }
}

impl StoreConfig {
    /// The defaults, in this directory.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), ..Self::default() }
    }

    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let mut problems = Vec::new();
        if self.path.as_os_str().is_empty() {
            problems.push("path is empty; name a directory".to_owned());
        }
        if !(64 << 10..=1 << 30).contains(&self.segment_bytes) {
            problems.push(format!("segment_bytes is {}; use 64 KiB to 1 GiB", self.segment_bytes));
        }
        if self.checkpoint_bytes < self.segment_bytes {
            problems.push(format!("checkpoint_bytes is {}; use at least segment_bytes", self.checkpoint_bytes));
        }
        if self.cache_bytes < 1 << 20 {
            problems.push(format!("cache_bytes is {}; use at least 1 MiB", self.cache_bytes));
        }
        if self.flush_every.is_zero() {
            problems.push("flush_every is 0; use durability fsync".to_owned());
        }
        if problems.is_empty() { Ok(()) } else { Err(OpenError::Config(problems.join(", "))) }
    }
}
