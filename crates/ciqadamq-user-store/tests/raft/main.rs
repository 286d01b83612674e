//! The replicated user directory: several nodes in one process, with a network that tests can cut.
#![allow(clippy::unwrap_used, missing_docs)]

mod alone;
mod faults;
mod log;
mod members;
mod plugin;
mod support;
mod together;
