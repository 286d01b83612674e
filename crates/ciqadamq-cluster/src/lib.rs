//! One broker of several nodes.
//!
//! Where messages go and which node has which session is replicated by the official plugin `rmqtt-cluster-raft`, in
//! memory. It leaves open what happens when nodes come and go; that is filled in here, from the outside:
//!
//! - [`formation`]: the plugin is started only by members of the user directory, and only when it is certain whether this node joins
//!   a cluster or starts one.
//! - [`liveness`]: the nodes ask each other whether they are alive, and how far they are.
//! - [`watch`]: whether the cluster works, for `/ready`; and when only a new process helps, which the launcher then makes.
//! - [`failover`], [`router`], [`hooks`]: in front of the engine's table of sessions and routes. What the plugin refuses
//!   without a leader waits for one; a session is handed over by its node or it is known that it is dead; and the node that
//!   has a session decides whether who wants it may have it.
//! - [`link`]: what is published here for sessions of other nodes, in order.
//! - [`arrival`], [`onward`], [`heirs`]: a publisher hears that its message was taken when it is where it stays, although a session may
//!   be moving and a node may die meanwhile.
//! - [`stale`]: nobody gets what a route has for a session that was there before.
//! - [`retained`]: a node that was away has the Retained Messages of the others before it lets clients in.
//! - [`sweep`]: routes and sessions that do not fit together any more.
//! - [`unrouted`]: what the routing cluster does not know of for a while, the nodes tell each other directly.
//! - [`nodelay`]: what its nodes answer each other leaves at once.
//! - [`voters`]: a node that is no member any more votes no longer.
//! - [`sessions`]: the sessions of all nodes, for the API.
//!
//! The nodes speak through the internal service `routes` ([`wire`]), and through the engine's own calls.

mod arrival;
mod cluster;
mod config;
mod failover;
mod formation;
mod heirs;
mod hooks;
mod link;
mod liveness;
mod metrics;
mod moves;
mod nodelay;
mod onward;
mod part;
mod plugin;
mod retained;
mod router;
mod sessions;
mod stale;
mod sweep;
mod takeover;
mod unrouted;
mod voters;
mod watch;
mod wire;

pub use cluster::{Cluster, ClusterDeps, GiveStray};
pub use config::{ClusterConfig, RaftSettings};
pub use metrics::ClusterMetrics;
pub use part::{PART, RoutesPart};
pub use plugin::register;
pub use sessions::AllSessions;
pub use wire::SERVICE;
