//! The user directory on sled: one ordered history of changes, durable before it is acknowledged.
//!
//! **The model.** Users change through [`Command`](ciqadamq_core::Command)s alone. They stand in one queue, one thread
//! takes them from it in batches, and a state machine that is a pure function of its history
//! ([`decide`](ciqadamq_core::decide)) applies them. The place in the history is the revision. In the broker a replicated
//! log makes the history ([`ReplicatedUsers`], module `raft`), the same on all nodes; a [`UserStore`] by itself, as tests
//! have it, makes its own until a log takes it over.
//!
//! **What holds**
//! - `Ok` means: on the disk, fsynced, every observer told. A process or a machine that dies afterwards loses nothing.
//! - Records are read from memory: a login never waits for the disk, and goes on when the disk has failed.
//! - A reader sees durable states only, each batch as a whole, and each page of a listing as one moment.
//! - A write that fails changes nothing for any reader.
//! - A damaged database is refused, never emptied. So is one that lost changes which were acknowledged.
//! - The writer thread owns the one `StateMachine`; there is no second way to write.
//!
//! **Where things are**
//!
//! | file | idea |
//! | --- | --- |
//! | `store.rs` | [`UserStore`], the `UserDirectory` of the broker |
//! | `writer.rs` | the thread: batch, commit, tell, answer |
//! | `state_machine.rs` | commands and snapshots into records |
//! | `records.rs` | what readers see |
//! | `snapshot.rs` | all records as of one revision |
//! | `database.rs`, `disk.rs` | sled, opened with all its checks; directory, fsync, free space |
//! | `codec.rs` | bytes on disk |
//! | `raft/` | the replicated log, on openraft |
//! | `plugin.rs` | the entry in rmqtt's list of plugins |

mod codec;
mod config;
mod database;
mod disk;
mod error;
mod metrics;
mod plugin;
mod raft;
mod records;
mod snapshot;
mod state_machine;
mod store;
mod writer;

pub use config::StoreConfig;
pub use error::OpenError;
pub use plugin::{NAME, register};
pub use raft::{RaftConfig, ReplicatedUsers, StartError, Timing};
pub use snapshot::Snapshot;
pub use store::{Counters, UserStore};
