//! What several nodes are to their clients, against a cluster that somebody else started: `cargo xtask e2e [--compose]`.
//!
//! Without `CIQADAMQ_NODES` there is no cluster and nothing is tried. The stories share it, so they take turns; each makes
//! users of its own and deletes them.
//!
//! | variable | |
//! | --- | --- |
//! | `CIQADAMQ_NODES` | three or more nodes, separated by spaces: each `MQTT,WebSocket,API` as `IP:PORT` |
//! | `CIQADAMQ_FRONT` | HAProxy: `MQTT,WebSocket`; not set: the stories about it are left out |
//! | `CIQADAMQ_FRONT_IP` | where its connections to the nodes come from |
//! | `CIQADAMQ_TOKEN` | the management token |
//! | `CIQADAMQ_KILL`, `CIQADAMQ_START` | shell commands that kill a node and start it, with its number in the place of `{}` |
#![allow(clippy::unwrap_used, missing_docs)]

mod load;
mod nodes;
mod site;
mod take_away;
