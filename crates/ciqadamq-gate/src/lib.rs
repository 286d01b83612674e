//! The front door for WebSocket, TLS and PROXY protocol: hands plain byte streams to the engine.
//!
//! **Why.** The engine's own listeners cannot be trusted with these: they take only a single WebSocket subprotocol, feed a
//! ping's payload to the MQTT decoder, read an empty ping as the end, and wait for a PROXY header in the accept loop, where
//! one silent client stops everybody. Plain MQTT over TCP goes to the engine directly; everything else enters here.
//!
//! **The model in one paragraph.** A connection is *pending* until it has sent a whole CONNECT: PROXY header, TLS,
//! upgrade and CONNECT share one time limit and count against the bounds on pending connections. Then the gate connects
//! to an internal listener of the engine, writes a PROXY v2 header with the client's real address, and from there on only
//! carries bytes, understanding no more MQTT. Each side's bytes are delivered before its end is passed on, and a side that
//! does not take its bytes stops the other.
//!
//! | file | holds |
//! | --- | --- |
//! | `gate` | binding, accepting, stopping |
//! | `connection` | one connection from accept to its end |
//! | `proxy`, `tls`, `ws` | what is terminated here |
//! | `first_packet` | the CONNECT that lets a connection through |
//! | `engine`, `peers` | the way to the engine, and finding it again |
//! | `pump`, `outgoing` | carrying bytes |
//! | `pending`, `metrics` | bounds and counts |

mod config;
mod connection;
mod engine;
mod first_packet;
mod gate;
mod io;
mod metrics;
mod outgoing;
mod peers;
mod pending;
mod proxy;
mod pump;
mod tls;
mod ws;

pub use config::{GateConfig, GateListener, ProxyProtocol, Transport};
pub use gate::{Gate, GateError, GateHandle};
pub use peers::EnginePeers;
pub use tls::{TlsError, tls_config};
