//! The REST API of a ciqadamq node, on salvo.
//!
//! **What it is.** A thin translation: HTTP in, calls of the core's traits ([`UserDirectory`], [`PasswordHashing`],
//! [`SessionControl`], [`AccessRules`], [`Health`], [`Peers`]) out. It decides nothing about users or topics and keeps
//! nothing but counters. Every node has one, and each takes every request.
//!
//! **A request's way.** `connection` gives it a place and a pace; `service` finds its route in the table of
//! `routes`, checks the token, and only then lets a handler read the body (`body`, `json`: strict, bounded). The
//! handler answers with a `reply` or an `error`; both have one shape, which the OpenAPI document is made from too.
//!
//! **Bounds.** Connections (`max_connections`; one request each, HTTP/1 only), head 64 KiB and 100 headers, body
//! `body_bytes_max`, time for the head, the body, the answer, and for a client that does not read; 1,024 user changes under
//! way; 1,000 users or sessions on a page, and lists without a limit are streamed.
//!
//! **What is deliberately absent.** No token in a query or a cookie, no CORS, no HTTP/2, no TLS (a proxy does it), no
//! path without a token but `/health`, `/ready` and what the configuration opens, no plain password or token in any log.
//!
//! [`UserDirectory`]: ciqadamq_core::UserDirectory
//! [`PasswordHashing`]: ciqadamq_core::PasswordHashing
//! [`SessionControl`]: ciqadamq_core::SessionControl
//! [`AccessRules`]: ciqadamq_core::AccessRules
//! [`Health`]: ciqadamq_core::Health
//! [`Peers`]: ciqadamq_core::Peers

mod acl;
mod app;
mod body;
mod brake;
mod cluster;
mod config;
mod connection;
mod docs;
mod error;
mod internal;
mod json;
mod listing;
mod members;
mod metrics;
mod node;
mod plugin;
mod query;
mod reply;
mod routes;
mod server;
mod service;
mod services;
mod sessions;
mod state;
mod token_file;
mod tokens;
mod users;
mod waiting;

pub use app::RestDeps;
pub use config::RestConfig;
pub use plugin::{PLUGIN_NAME, RestHandle, register};
pub use server::{RestError, Server};
pub use state::{NodeView, PluginView};
pub use token_file::{TokenFileError, load_or_create_token_file};
pub use tokens::{Credential, TOKEN_BYTES_MAX, TokenError, Tokens};
