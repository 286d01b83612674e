//! The replicated log that makes the history of users, on openraft.
//!
//! **The model.** A change is an entry of a log that a quorum of the members has on disk. Every member applies the same
//! entries in the same order to its [`UserStore`](crate::UserStore). A node alone is a log with one voter: there is one
//! way for a change, whatever the number of nodes.
//!
//! **A change's way.** [`ReplicatedUsers::execute`](directory::ReplicatedUsers) puts it in a bounded queue; `proposer`
//! takes what waits as one batch and gives it to the leader, wherever that is; there it becomes one entry, one fsync on
//! each member. Its outcome is what the entry did *here*, when this node applied it. Then the other members that can be
//! reached are waited for, so that whoever gets the answer can log in anywhere.
//!
//! **Whether a change happened** is never guessed. An entry carries the reign (term and leader) it was proposed in, and
//! has no effect in any other. So once this node has applied an entry of a later reign, a change of the earlier one that
//! did not show up never will, and can be proposed again. Where that cannot be known in time, the caller is told so.
//!
//! **Who is who.** Every data directory has a random incarnation, which is part of the membership. A node that comes
//! back with an empty directory is not the member it was: it has forgotten its votes, so nobody lets it vote until it
//! has been taken out and in again.
//!
//! | file | idea |
//! | --- | --- |
//! | `types.rs`, `wire.rs` | entries, members, and what nodes say to each other; openraft's types as bytes |
//! | `log.rs` | log, vote and incarnation on sled |
//! | `machine.rs`, `snapshot.rs` | entries into the user store; all users as bytes |
//! | `network.rs`, `service.rs` | calls out, calls in |
//! | `node.rs` | the raft of this node: started, watched, started again |
//! | `formation.rs` | how a cluster begins, and how a node learns that it has caught up |
//! | `proposer.rs`, `proposed.rs` | from a change to its outcome; what a leader was asked to put into the log |
//! | `members.rs` | nodes taken in and out |
//! | `directory.rs` | the `UserDirectory` of the broker |

mod directory;
mod formation;
mod log;
mod machine;
mod members;
mod metrics;
mod network;
mod node;
mod proposed;
mod proposer;
mod service;
mod snapshot;
mod types;
mod wire;

pub use directory::{ReplicatedUsers, StartError};
pub(crate) use metrics::RaftGauges;
pub use node::{RaftConfig, Timing};
