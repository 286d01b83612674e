//! The gate between real sockets: clients of every kind on one side, a recording engine on the other.
#![allow(clippy::unwrap_used, missing_docs)]

mod binding;
mod carrying;
mod limits;
mod proxy;
mod shutdown;
mod support;
mod tls;
mod websocket;
