//! What the user store promises, tested through its public face on a real disk.
#![allow(clippy::unwrap_used)]

mod closing;
mod concurrency;
mod disk_full;
mod durability;
mod model;
mod opening;
mod snapshots;
mod support;
