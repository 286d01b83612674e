//! Where the store lives and how much it may hold at once.

use std::path::PathBuf;

use crate::OpenError;

/// Smallest page cache, in bytes. Below it sled reads the same pages from the disk again and again.
const CACHE_BYTES_MIN: u64 = 1024 * 1024;

/// Most waiting commands that may be configured: each holds a user record in memory.
const QUEUE_MAX: usize = 1 << 20;

/// Most commands in one commit. Keeps one commit well below the free space that is asked for before it.
const BATCH_MAX: usize = 4096;

/// Settings of a [`UserStore`](crate::UserStore).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// Directory of the database, made with mode 0700 (parents as usual) if it does not exist.
    pub path: PathBuf,
    /// Commands that may wait for the writer; one more is refused as busy. 1 to 1,048,576.
    pub queue: usize,
    /// Most commands that share one commit, so one fsync. 1 to 4,096.
    pub batch: usize,
    /// Memory for pages of the database, in bytes. At least 1 MiB; sled lowers it to a cgroup's limit. Only writing uses
    /// them: what is read comes from records in memory, about 600 bytes a user with all that belongs to
    /// it, which are not counted here.
    pub cache_bytes: u64,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self { path: "data/users".into(), queue: 1024, batch: 256, cache_bytes: 16 * 1024 * 1024 }
    }
}

impl StoreConfig {
    /// The defaults, in this directory.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), ..Self::default() }
    }

    /// All that is wrong with the values, in one error.
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let mut problems = Vec::new();
        if self.path.as_os_str().is_empty() {
            problems.push("path is empty; name a directory".to_owned());
        }
        if !(1..=QUEUE_MAX).contains(&self.queue) {
            problems.push(format!("queue is {}; use 1 to {QUEUE_MAX}", self.queue));
        }
        if !(1..=BATCH_MAX).contains(&self.batch) {
            problems.push(format!("batch is {}; use 1 to {BATCH_MAX}", self.batch));
        }
        if self.cache_bytes < CACHE_BYTES_MIN {
            problems.push(format!("cache_bytes is {}; use at least {CACHE_BYTES_MIN}", self.cache_bytes));
        }
        if problems.is_empty() { Ok(()) } else { Err(OpenError::Config(problems.join(", "))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bad_value_is_named_at_once() {
        let config = StoreConfig { path: PathBuf::new(), queue: 0, batch: 0, cache_bytes: 0 };
        let text = config.check().expect_err("nothing in it is valid").to_string();
        for key in ["path", "queue", "batch", "cache_bytes"] {
            assert!(text.contains(key), "{text}");
        }
        assert!(StoreConfig::default().check().is_ok());
    }
}
