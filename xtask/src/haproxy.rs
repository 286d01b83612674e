//! HAProxy in front of the cluster of `cluster-up`, with the configuration of `deploy/`, on its ports.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::cargo::{is_there, root};
use crate::process;

/// Where its connections to the nodes come from; what `mqtt.proxy_protocol_from` names.
pub const SOURCE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
/// MQTT, and MQTT over WebSocket.
pub const PORTS: [u16; 2] = [2883, 9083];

/// Whether it can be started.
pub fn is_installed() -> bool {
    is_there(Command::new("haproxy").arg("-v"))
}

/// Starts it in front of these nodes, unless it runs.
pub fn start(dir: &Path, nodes: &[Ipv4Addr]) -> anyhow::Result<()> {
    if process::find(dir, &config(dir)).is_some() {
        return Ok(());
    }
    ensure!(is_installed(), "HAProxy is not installed");
    let source = root().join("deploy/haproxy/haproxy.cfg");
    let text = fs::read_to_string(&source).with_context(|| source.display().to_string())?;
    fs::create_dir_all(dir)?;
    fs::write(config(dir), rendered(&text, dir, nodes))?;
    process::start(dir, Command::new("haproxy").arg("-db").arg("-f").arg(config(dir)))
}

/// Ends it, if it runs.
pub fn stop(dir: &Path) -> anyhow::Result<()> {
    match process::find(dir, &config(dir)) {
        Some(pid) => process::signal(pid, "TERM"),
        None => Ok(()),
    }
}

fn config(dir: &Path) -> PathBuf {
    dir.join("haproxy.cfg")
}

/// For this machine alone, with as many nodes as there are.
fn rendered(text: &str, dir: &Path, nodes: &[Ipv4Addr]) -> String {
    let mut out = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("server node1 ") {
            let server = |(n, ip): (usize, &Ipv4Addr)| {
                line.replace("node1:", &format!("{ip}:")).replace("node1", &format!("node{}", n + 1))
            };
            out.extend(nodes.iter().enumerate().map(server));
        } else if !line.trim_start().starts_with("server node") {
            out.push(line.replace("bind :", "bind 127.0.0.1:"));
        }
    }
    out.push(String::new());
    out.join("\n")
        .replace("/run/haproxy/admin.sock", &dir.join("admin.sock").display().to_string())
        .replace("send-proxy-v2", &format!("send-proxy-v2 source {SOURCE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_of_deploy_is_turned_into_one_for_this_machine() {
        let text = include_str!("../../deploy/haproxy/haproxy.cfg");
        let nodes = [1, 2].map(|n| Ipv4Addr::new(127, 0, 0, n));
        let rendered = rendered(text, Path::new("/tmp/x"), &nodes);
        for wanted in [
            "    bind 127.0.0.1:2883\n",
            "    server node1 127.0.0.1:1883\n    server node2 127.0.0.2:1883\n",
            "    server node2 127.0.0.2:8083 track mqtt/node2\n",
            "stats socket /tmp/x/admin.sock",
            "send-proxy-v2 source 127.0.0.9",
        ] {
            assert!(rendered.contains(wanted), "{wanted} is not in\n{rendered}");
        }
        assert!(!rendered.contains("node3"), "{rendered}");
    }
}
