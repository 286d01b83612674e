//! What an operator wants to see of the engine, as Prometheus metrics.
//!
//! The official `rmqtt-counter` counts everything with a hook for everything, which a busy broker feels. Here gauges
//! are read when somebody asks for them, and counters sit where the engine has a message in hand anyway.

mod gauges;
mod hooks;
mod plugin;

pub use hooks::PRIORITY;
pub use plugin::register;
