//! Why a store did not open. Each text names the directory and the remedy.

use std::path::PathBuf;

use thiserror::Error;

/// Why a [`UserStore`](crate::UserStore) did not open. Nothing on the disk was emptied or replaced.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A setting is out of its range.
    #[error("user store: {0}")]
    Config(String),
    /// The directory cannot be made or used.
    #[error("user store {path:?}: the directory cannot be used: {source}; check its owner and permissions")]
    Directory {
        /// of the database
        path: PathBuf,
        /// what the system says
        source: std::io::Error,
    },
    /// Another process has it open, or this one does twice.
    #[error(
        "user store {path:?}: it is open in another process; stop that process, or use another directory for this one"
    )]
    Locked {
        /// of the database
        path: PathBuf,
    },
    /// What is there cannot be trusted.
    #[error(
        "user store {path:?}: it is damaged: {reason}; move the directory aside and restore it from a backup \
         (without one, start on an empty directory and provision the users again)"
    )]
    Corrupt {
        /// of the database
        path: PathBuf,
        /// what does not fit
        reason: String,
    },
    /// A sled database of somebody else.
    #[error(
        "user store {path:?}: this database was not made by this broker's user store; use another directory, and bring \
         users of an older broker over through the REST API"
    )]
    Foreign {
        /// of the database
        path: PathBuf,
    },
    /// Written by another version of the store.
    #[error(
        "user store {path:?}: its format is {found}, this version reads {supported}; start the version that wrote it"
    )]
    Version {
        /// of the database
        path: PathBuf,
        /// on disk
        found: u32,
        /// by this code
        supported: u32,
    },
    /// The disk does not do what is asked.
    #[error("user store {path:?}: {reason}; check the disk's free space and health")]
    Disk {
        /// of the database
        path: PathBuf,
        /// what the database says
        reason: String,
    },
    /// No thread for the writer.
    #[error("user store: the writer thread cannot be started: {0}; raise the limit of threads")]
    Thread(#[source] std::io::Error),
}
