//! What the end-to-end tests stand on: the real broker on free ports, and clients made of bytes.
//!
//! | | |
//! | --- | --- |
//! | [`Broker`] | a broker process with its own directory and ports; ends with the test, shows its log if that failed |
//! | [`Cluster`] | several of them as one, on loopback addresses of their own |
//! | [`Client`] | MQTT 3.1, 3.1.1 and 5 over TCP or WebSocket, packet by packet, malformed ones included |
//! | [`Watcher`] | a superuser on `#`: what really went through |
//! | [`Rest`] | the REST API, and raw HTTP for what no proper client sends |
//! | [`Front`] | a real HAProxy in front of brokers |
//! | [`vault`] | vaults: a small one that can misbehave, and a real OpenBao |
//! | [`programs`] | other people's clients and servers, where they are installed |
//!
//! Everything blocks with a deadline and panics with what it saw: a helper that fails is a failed test. Nothing
//! sleeps to see that a message does *not* come: something sent later does come ([`Client::until`], [`Watcher::seen`]).
#![allow(clippy::unwrap_used)]

mod broker;
mod cluster;
mod haproxy;
mod http;
pub mod mqtt;
mod options;
pub mod programs;
mod rest;
pub mod vault;
mod wait;
mod watcher;

pub use broker::{Account, Broker, Exit, Signal, command, free_addresses, random_token};
pub use cluster::Cluster;
pub use haproxy::{Front, Haproxy, SOURCE as HAPROXY_SOURCE};
pub use http::{HttpError, Response, exchange, request};
pub use mqtt::{Client, Connect, Link, Message, Outcome, Version};
pub use options::{BrokerOptions, Toml};
pub use rest::Rest;
pub use wait::{WAIT, eventually};
pub use watcher::Watcher;
