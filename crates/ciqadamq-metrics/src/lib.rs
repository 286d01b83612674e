//! What an operator wants to see of the engine, as Prometheus metrics.
//!
//! The official `rmqtt-counter` counts everything with a hook for everything, which a busy broker feels. Here gauges
//! are read when somebody asks for them, and hooks count only what goes wrong. Messages in and out are counted in
//! `ciqadamq-auth`, whose guard of the session table has each of them in hand anyway: a hook for every delivery made a
//! fan-out cost a seventh more.

mod gauges;
mod hooks;
mod plugin;

pub use hooks::PRIORITY;
pub use plugin::register;
