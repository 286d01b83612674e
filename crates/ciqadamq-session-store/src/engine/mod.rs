//! The adapter: the store behind the engine's sessions, queues and Retained Messages.
//!
//! Where it stands in the engine:
//!
//! * **The session table** is wrapped ([`shared`], [`entry`]): a message for persistent sessions is committed before it is routed, a
//!   subscription before it is acknowledged; a session is begun, resumed and ended in the store as it is in the engine. One that
//!   comes from another node is [`moved`].
//! * **Sessions** of persistent clients are wrapped ([`session`], [`received`]): they tell of PUBREC and PUBREL, of which no hook tells,
//!   and hold the engine between the two. Those that come back from the disk sleep ([`dormant`]) until their client comes; so does one
//!   whose task the engine has not begun ([`begun`]). PUBRELs that are owed have room in its window ([`window`]).
//! * **Hooks** ([`hooks`]) give deliveries their Packet Identifier, hear of acknowledgements and drops, and refuse publishes
//!   that cannot be kept. They are registered when the first persistent session appears: without one nobody pays for them.
//! * **Retained Messages** are kept by [`retained`], in the place of rmqtt-retainer.
//!
//! A message finds its way back from the engine by its *ticket*, the low half of its number, in the field `delay_interval` of the copy
//! that sessions get. That field has done its work when a message is routed, and no client sees it.

mod begun;
mod codec;
mod dormant;
mod entry;
mod hooks;
mod keeper;
mod metrics;
mod moved;
mod plugin;
mod received;
mod restore;
mod retained;
mod session;
mod shared;
mod strays;
mod window;

pub use keeper::{Cut, Elsewhere};
pub use plugin::{Deps, SessionKeeper, register};
pub use restore::{Adopt, Restored};
pub use strays::{Judge, Whose};
