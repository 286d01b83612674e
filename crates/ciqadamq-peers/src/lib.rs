//! Calls to the other nodes of a cluster, over their REST APIs.
//!
//! **The model.** A node is a number and a base URL. A call is bytes to a named service there and bytes back, within one
//! timeout. Its failure says whether something may have been done: that decides what a caller may try again. What the
//! last call said of the way to a node is remembered for everybody.
//!
//! **Bounds.** 64 calls to one node at once, and 32 more for what is vital, which so never waits for the others; 8 MiB an
//! answer; every wait is within the caller's timeout.

mod book;
mod client;

pub use client::{HttpPeers, PeersConfig, PeersError};
