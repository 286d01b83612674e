//! Who may connect, with which client id; and the end of sessions whose user lost the right to them.
//!
//! A CONNECT is judged once, in [`login`]: credentials, Will, client id. What comes out is a
//! [`ciqadamq_core::Principal`], which waits for the engine to make the session and then stands behind its client id
//! until the session ends. A wrapper around the engine's session table ([`guard`]) asks about ownership a second time
//! under the engine's lock, because two CONNECTs with one client id may be judged at the same moment.
//!
//! Every change of a user passes through here before it is acknowledged: a principal whose login is too old is
//! withdrawn at once, which refuses everything its session still tries; the session is then ended in the background,
//! online or offline, without its Will.

mod asked;
mod brake;
mod config;
mod connection;
mod farewell;
mod fast;
mod gone;
mod guard;
mod handover;
mod hooks;
mod host;
mod laggards;
mod login;
mod metrics;
mod orphans;
mod ownership;
mod passing;
mod phc;
mod plugin;
mod pool;
mod sessions;
mod silent;
mod sockets;

pub use config::AuthConfig;
pub use hooks::PRIORITY;
pub use login::Refusal;
pub use phc::HashParams;
pub use plugin::{Auth, AuthDeps, register, register_disabled};
pub use pool::HashPool;
pub use sessions::{EnginePeer, Sessions};
pub use silent::Silent;
