//! Who may subscribe and publish what.
//!
//! The rule itself is [`ciqadamq_core::AccessRules`]: this crate asks it at the three places where the engine asks a
//! plugin, and turns the verdict into the engine's words.
//!
//! * **SUBSCRIBE**, per filter: refused with 0x87 (v5) or 0x80, the other filters of the packet are not touched.
//! * **PUBLISH**: refused as `acl.on_deny` says.
//! * **Will**, when it fires: the right may have gone since the CONNECT, where the Will was judged first.
//!
//! A verdict is computed on every publish, from the principal in memory, without allocation. That is cheaper than a
//! cache would be, and a change of a user's rights takes effect with the next packet by construction.
//!
//! A verdict needs to know who acts. A session without a principal (let in by another authentication plugin) is refused
//! here, but the chain goes on, so that an access plugin the operator enabled for such users has the last word. For
//! users of ours a refusal ends the chain; an allowance does not, so that `rmqtt-acl` may narrow it.

mod auto;
mod hooks;
mod metrics;
mod plugin;

pub use hooks::PRIORITY;
pub use plugin::{AclConfig, Limits, OnDeny, register};
