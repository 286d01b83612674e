//! Whose Retained Messages there are: how many a user may leave behind, and what becomes of them.
//!
//! A Retained Message outlives its publisher's session, which makes it the one thing a device can leave in the broker
//! without an end. The engine's store does not ask who it is from. Here a [`ledger`] remembers that for every message of
//! a user that is no superuser; the store in front of the engine's keeps it up to date.

mod keeper;
mod ledger;
mod plugin;

pub use keeper::Keeper;
pub use plugin::register;
