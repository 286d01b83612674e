//! Durable sessions, their queues, and Retained Messages.
//!
//! The README is the design. In short: every change is a command. Commands are applied to a state in memory and written to
//! a log, in groups that share an fsync; whoever publishes waits for the group that holds the message. From time to time the
//! log is folded into sled, and what is acknowledged before that never gets there.
//!
//! [`engine`] puts it behind the engine's sessions; everything else here knows neither MQTT packets nor the engine.

mod base;
mod checkpoint;
mod command;
mod config;
mod core;
pub mod engine;
mod error;
mod journal;
mod moves;
mod open;
mod records;
mod state;
mod store;
#[cfg(test)]
mod trial;
mod wire;
mod writer;

pub use config::{Durability, StoreConfig};
pub use error::{OpenError, Refusal};
pub use records::{
    Heard, Inbound, Leaving, MessageId, Millis, Owed, Owner, PACKET_IDS, Seq, SessionNo, SessionRecord, SessionState,
    Stage,
};
pub use store::{Arrived, Commit, Notes, Recipient, Status, Store};
