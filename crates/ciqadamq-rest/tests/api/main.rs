//! The API over real sockets, with the core's traits played by fakes in memory.
#![allow(clippy::unwrap_used, missing_docs)]

mod access;
mod cluster;
mod fakes;
mod internal;
mod internal_listener;
mod limits;
mod listing;
mod misuse;
mod node;
mod openapi;
mod plugin;
mod support;
mod tokens;
mod users;
