//! Opening the gate, and the errors that keep it shut.

use ciqadamq_gate::{Gate, GateConfig, GateListener, Transport};
use prometheus::Registry;

use super::support::listener;

#[tokio::test]
async fn address_in_use_names_listener_and_address() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    let free = listener("first", Transport::Tcp, false);
    let clash = GateListener { addr, ..listener("ws", Transport::WebSocket, false) };
    let error = Gate::bind(GateConfig::new(vec![free, clash]), &Registry::new()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("listener `ws`: address {addr} is already in use; stop the other process or choose another address")
    );
}

#[tokio::test]
async fn contradictions_are_refused() {
    let registry = Registry::new();
    let error =
        Gate::bind(GateConfig::new(vec![listener("wss", Transport::WebSocketTls, false)]), &registry).unwrap_err();
    assert_eq!(error.to_string(), "listener `wss` needs a certificate and a key");
    let twice = vec![listener("ws", Transport::WebSocket, false), listener("ws", Transport::WebSocket, true)];
    let error = Gate::bind(GateConfig::new(twice), &registry).unwrap_err();
    assert_eq!(error.to_string(), "two listeners are called `ws`; names must be unique");
    let foreign = GateListener { addr: "192.0.2.1:1".parse().unwrap(), ..listener("far", Transport::Tcp, false) };
    let error = Gate::bind(GateConfig::new(vec![foreign]), &registry).unwrap_err().to_string();
    assert!(error.starts_with("listener `far`: cannot listen on 192.0.2.1:1: "), "{error}");
    // None of these has left anything in the registry.
    Gate::bind(GateConfig::new(vec![listener("ws", Transport::WebSocket, false)]), &registry).unwrap();
}

#[tokio::test]
async fn port_zero_takes_a_free_port_for_each() {
    let config = GateConfig::new(vec![listener("a", Transport::Tcp, false), listener("b", Transport::Tcp, false)]);
    let gate = Gate::bind(config, &Registry::new()).unwrap();
    let addrs = gate.local_addrs();
    assert_eq!((addrs[0].0, addrs[1].0), ("a", "b"));
    assert!(addrs[0].1.port() != 0 && addrs[1].1.port() != 0 && addrs[0].1 != addrs[1].1);
}
