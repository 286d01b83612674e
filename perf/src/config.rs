//! Where nodes are, and what the brokers are told.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context as _;

use crate::broker::{Kind, Setup};
use crate::{rabbitmq, users};

/// What one node listens on.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub mqtt: SocketAddr,
    pub ws: SocketAddr,
    pub api: SocketAddr,
    pub grpc: SocketAddr,
    pub raft: SocketAddr,
}

impl Place {
    /// Nodes on 127.0.0.1, .2 and so on, all with the same ports, which are free.
    pub fn several(nodes: u8) -> anyhow::Result<Vec<Self>> {
        let ips: Vec<IpAddr> = (1..=nodes).map(|node| Ipv4Addr::new(127, 0, 0, node).into()).collect();
        let ports = free_ports(&ips)?;
        let place = |ip: &IpAddr| {
            let [mqtt, ws, api, grpc, raft] = ports.map(|port| SocketAddr::new(*ip, port));
            Self { mqtt, ws, api, grpc, raft }
        };
        Ok(ips.iter().map(place).collect())
    }

    #[cfg(test)]
    pub fn at(addr: SocketAddr) -> Self {
        Self { mqtt: addr, ws: addr, api: addr, grpc: addr, raft: addr }
    }
}

/// Free now on all these addresses; all are held until all are chosen, so they differ.
fn free_ports<const N: usize>(ips: &[IpAddr]) -> anyhow::Result<[u16; N]> {
    // Below the range that outgoing connections take their ports from: the load opens thousands.
    const RANGE: std::ops::Range<u32> = 10_000..30_000;
    // Others every time: a broker that does not ask for addresses to be reused cannot have those of one that has just ended.
    static STARTS: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(61).wrapping_add(STARTS.fetch_add(1, Ordering::Relaxed) * 16);
    let mut candidates = RANGE.map(|n| (RANGE.start + (n + start % RANGE.end) % (RANGE.end - RANGE.start)) as u16);
    let mut held = Vec::new();
    let mut ports = [0; N];
    for port in &mut ports {
        loop {
            *port = candidates.next().context("no free port")?;
            let all: Result<Vec<_>, _> = ips.iter().map(|ip| TcpListener::bind((*ip, *port))).collect();
            if let Ok(all) = all {
                held.push(all);
                break;
            }
        }
    }
    Ok(ports)
}

/// Writes what node `node` (from 0) of a broker needs into its directory and adds the arguments.
pub fn configure(
    kind: Kind,
    dir: &Path,
    places: &[Place],
    node: usize,
    setup: &Setup,
    token: &str,
    command: &mut Command,
) -> anyhow::Result<()> {
    let Place { mqtt, ws, api, .. } = places[node];
    let write = |name: &str, text: String| {
        let path = dir.join(name);
        fs::write(&path, text).map(|()| path)
    };
    match kind {
        Kind::Own | Kind::OwnNodelay | Kind::Ciqadamq => {
            // Cheap hashes: thousands of users are made, and not what is measured.
            command.env("ARGON2_M_COST", "8").env("ARGON2_T_COST", "1").env("AUTH_PEPPER", users::random());
            command.env("API_TOKEN", token).env_remove("CIQADAMQ_CONFIG");
            command.env("RUST_LOG", "warn");
            let (scheme, db) = if kind.is_own() { ("sled", "data/users") } else { ("redb", "users.db") };
            let db = dir.join(db);
            let nodelay = if kind == Kind::OwnNodelay { "tcp_nodelay = true\n" } else { "" };
            let more = if kind.is_own() { &*setup.mqtt } else { "" };
            let mut text = format!(
                "[mqtt]\ntcp_addr = \"{mqtt}\"\nws_addr = \"{ws}\"\n{nodelay}{more}[api]\naddr = \"{api}\"\n[db]\nurl = \"{scheme}://{}\"\n",
                db.display()
            );
            if places.len() > 1 {
                text += &of_cluster(places, node);
                text += &setup.cluster;
            }
            if kind.is_own() {
                command.arg("--config");
            }
            command.arg(write("ciqadamq.toml", text)?);
        }
        Kind::Mosquitto => {
            let text = format!("listener {} {}\nallow_anonymous true\n", mqtt.port(), mqtt.ip());
            // Its own bounds are for a few clients; the others have these, or more.
            let text = text + "max_queued_messages 1000\nmax_inflight_messages 0\nlog_type error\n";
            command.arg("-c").arg(write("mosquitto.conf", text)?);
        }
        Kind::Rmqttd => {
            let plugins = dir.join("plugins");
            fs::create_dir_all(&plugins)?;
            let text = format!(
                "[node]\nid = 1\n[plugins]\ndir = {plugins:?}\n[log]\nto = \"console\"\nlevel = \"warn\"\n\
                 [listener.tcp.external]\naddr = \"{mqtt}\"\nallow_anonymous = true\n"
            );
            command.arg("-f").arg(write("rmqtt.toml", text)?);
        }
        Kind::Rabbitmq => rabbitmq::configure(dir, &places[node], command)?,
    }
    Ok(())
}

/// `[cluster]`, which ciqadamq 1.0 reads as well.
fn of_cluster(places: &[Place], node: usize) -> String {
    let list = |addr: &dyn Fn(&Place) -> SocketAddr, scheme: &str| {
        let all: Vec<String> =
            (1..).zip(places).map(|(number, place)| format!("\"{number}@{scheme}{}\"", addr(place))).collect();
        format!("[{}]", all.join(", "))
    };
    let Place { grpc, raft, .. } = places[node];
    format!(
        "[cluster]\nenabled = true\nnode_id = {}\nleader_id = 1\ngrpc_laddr = \"{grpc}\"\nraft_laddr = \"{raft}\"\n\
         node_grpc_addrs = {}\nraft_peer_addrs = {}\nnode_api_addrs = {}\n",
        node + 1,
        list(&|place| place.grpc, ""),
        list(&|place| place.raft, ""),
        list(&|place| place.api, "http://"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_differ_by_address_and_by_port() {
        let places = Place::several(2).unwrap();
        let all = |place: &Place| [place.mqtt, place.ws, place.api, place.grpc, place.raft];
        let mut all: Vec<_> = places.iter().flat_map(all).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 10);
        assert_eq!(places[0].mqtt.port(), places[1].mqtt.port());
        assert_eq!(places[1].mqtt.ip(), Ipv4Addr::new(127, 0, 0, 2));
    }

    #[test]
    fn nodes_of_a_cluster_know_each_other_by_number() {
        let places = Place::several(2).unwrap();
        let text = of_cluster(&places, 1);
        assert!(text.contains("node_id = 2\n"), "{text}");
        assert!(text.contains(&format!("[\"1@{}\", \"2@{}\"]", places[0].raft, places[1].raft)), "{text}");
        assert!(text.contains(&format!("\"2@http://{}\"", places[1].api)), "{text}");
    }
}
