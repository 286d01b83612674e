//! Why a store did not open, and why it does not take a message.

use std::path::PathBuf;

use thiserror::Error;

/// Why a [`Store`](crate::Store) did not open. Nothing on the disk was emptied or replaced.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A setting is out of its range.
    #[error("session store: {0}")]
    Config(String),
    /// The directory or the disk cannot be used.
    #[error("session store {path:?}: {source}; check its owner, its permissions and the disk")]
    Io {
        /// of the store
        path: PathBuf,
        /// what the system says
        source: std::io::Error,
    },
    /// Another process has it open.
    #[error("session store {path:?}: it is open in another process; stop that process, or use another directory")]
    Locked {
        /// of the store
        path: PathBuf,
    },
    /// What is there cannot be trusted.
    #[error("session store {path:?}: it is damaged: {reason}; move the directory aside or restore it from a backup")]
    Corrupt {
        /// of the store
        path: PathBuf,
        /// what does not fit
        reason: String,
    },
    /// Written by another version of the store.
    #[error("session store {path:?}: {reason}; start the version that wrote it, or move the directory aside")]
    Version {
        /// of the store
        path: PathBuf,
        /// what was found
        reason: String,
    },
    /// No thread for the writer.
    #[error("session store: the writer thread cannot be started: {0}; raise the limit of threads")]
    Thread(#[source] std::io::Error),
}

/// Why a message is not taken. Nothing of it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// `max_bytes` or `max_messages` is reached.
    #[error("the session store is full: {0}")]
    Full(&'static str),
    /// The disk has no room.
    #[error("the disk of the session store is full: {0}")]
    DiskFull(String),
    /// The disk does not take writes for another reason.
    #[error("the session store cannot write: {0}")]
    Broken(String),
    /// The store was closed.
    #[error("the session store is closed")]
    Closed,
}
