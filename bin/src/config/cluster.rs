//! What `[cluster]` says about the nodes, and whether it fits together.

use std::collections::BTreeSet;

use super::kinds::excerpt;
use super::model::{Api, Cluster, Config, SecretsProvider};
use super::read::Reading;

/// A pause of this length is nothing special on a busy machine.
const ELECTION_MIN_MS: u64 = 100;

/// An entry `id@rest`. The kinds have checked that it is one.
fn split(entry: &str) -> Option<(u16, &str)> {
    let (id, rest) = entry.split_once('@')?;
    Some((id.parse().ok()?, rest))
}

fn ids(entries: &[String]) -> BTreeSet<u16> {
    entries.iter().filter_map(|entry| split(entry)).map(|(id, _)| id).collect()
}

impl Cluster {
    /// Ids of all nodes, this one included.
    pub fn node_ids(&self) -> BTreeSet<u16> {
        ids(&self.node_grpc_addrs)
    }

    /// Base URL of what each node's API has for other nodes, this one included: as configured, else the host of its gRPC
    /// address and our own port for it.
    pub fn api_urls(&self, api: &Api) -> Vec<(u64, String)> {
        let scheme = if self.peer_tls { "https" } else { "http" };
        if !self.node_api_addrs.is_empty() {
            return self
                .node_api_addrs
                .iter()
                .filter_map(|e| split(e))
                .map(|(id, url)| (id.into(), url.into()))
                .collect();
        }
        let derived = self.node_grpc_addrs.iter().filter_map(|e| split(e)).filter_map(|(id, addr)| {
            let (host, _) = addr.rsplit_once(':')?;
            Some((id.into(), format!("{scheme}://{host}:{}", api.for_nodes().port())))
        });
        derived.collect()
    }
}

/// Checks of a cluster that is asked for.
pub fn check(reading: &mut Reading) {
    if !reading.config.cluster.enabled {
        return;
    }
    for (key, text) in problems(&reading.config) {
        reading.complain(key, text);
    }
}

fn problems(config: &Config) -> Vec<(&'static str, String)> {
    let cluster = &config.cluster;
    let mut found: Vec<(&'static str, String)> = Vec::new();
    if cluster.node_id == 0 {
        found.push(("cluster.node_id", "is 0, which is no node of a cluster; give each node a number from 1".into()));
    }
    let nodes = cluster.node_ids();
    if nodes.len() < 2 {
        let text = "names fewer than two nodes; list all nodes of the cluster, this one included, or set cluster.enabled = \
                    false";
        found.push(("cluster.node_grpc_addrs", text.into()));
        return found;
    }
    if cluster.node_id != 0 && !nodes.contains(&cluster.node_id) {
        let text = format!("has no entry for this node ({}); list all nodes, this one included", cluster.node_id);
        found.push(("cluster.node_grpc_addrs", text));
    }
    for (key, list, may_be_left_out) in [
        ("cluster.raft_peer_addrs", &cluster.raft_peer_addrs, false),
        ("cluster.node_api_addrs", &cluster.node_api_addrs, true),
    ] {
        if !(may_be_left_out && list.is_empty()) && ids(list) != nodes {
            let text = format!(
                "names the nodes {:?}, cluster.node_grpc_addrs names {nodes:?}; list the same nodes in both",
                ids(list)
            );
            found.push((key, text));
        }
    }
    for (key, list) in [
        ("cluster.node_grpc_addrs", &cluster.node_grpc_addrs),
        ("cluster.raft_peer_addrs", &cluster.raft_peer_addrs),
        ("cluster.node_api_addrs", &cluster.node_api_addrs),
    ] {
        let addresses: Vec<&str> = list.iter().filter_map(|e| split(e)).map(|(_, address)| address).collect();
        if let Some(twice) = addresses.iter().enumerate().find(|(i, a)| addresses[..*i].contains(a)) {
            found.push((key, format!("has `{}` for two nodes; each node has its own address", excerpt(twice.1))));
        }
    }
    if cluster.leader_id == 0 {
        let text = "is 0, which the engine reads as none: nodes that start together would each make a cluster of its own; \
                    name one of the nodes, the same on all";
        found.push(("cluster.leader_id", text.into()));
    } else if !nodes.contains(&cluster.leader_id) {
        let text = format!("is {}, which is none of the nodes {nodes:?}; name one of them", cluster.leader_id);
        found.push(("cluster.leader_id", text));
    }
    if cluster.peer_tls && cluster.node_api_addrs.iter().any(|entry| entry.contains("@http://")) {
        let text = "has http:// addresses, and cluster.peer_tls asks for TLS; write https:// or leave peer_tls out";
        found.push(("cluster.node_api_addrs", text.into()));
    }
    if cluster.peer_ca.is_some() && cluster.api_urls(&config.api).iter().all(|(_, url)| url.starts_with("http://")) {
        let text = "is used by no https:// address; set cluster.peer_tls or leave it out";
        found.push(("cluster.peer_ca", text.into()));
    }
    if cluster.node_api_addrs.is_empty() && config.api.for_nodes().port() == 0 {
        let text = "is needed when api.internal_addr, or else api.addr, has no fixed port; list all nodes";
        found.push(("cluster.node_api_addrs", text.into()));
    }
    let alone = config.secrets.provider() == SecretsProvider::Environment;
    if alone && config.api.token.is_none() && config.api.repl_token.is_none() {
        let text = "nodes show each other api.repl_token (else api.token), and neither is set; set the same on all nodes, or \
                    let all read it from one vault ([secrets])";
        found.push(("cluster.enabled", text.into()));
    }
    for name in ["ciqadamq-user-store", "ciqadamq-rest"] {
        if !config.plugins.starts(name, true) {
            found.push(("cluster.enabled", format!("a node of a cluster needs the plugin `{name}`; enable it")));
        }
    }
    if cluster.heartbeat_tick >= cluster.election_tick {
        let text = format!(
            "must be less than cluster.election_tick ({}), or every pause is an election",
            cluster.election_tick
        );
        found.push(("cluster.heartbeat_tick", text));
    }
    let election = u64::from(cluster.election_tick) * u64::from(cluster.raft.tick_ms);
    if election < ELECTION_MIN_MS {
        let text = format!(
            "is {election} ms in ticks of {} ms (cluster.raft.tick_ms), and any pause longer than that an election; ask for \
             {ELECTION_MIN_MS} ms or more, or leave it out",
            cluster.raft.tick_ms
        );
        found.push(("cluster.election_tick", text));
    }
    // On top of what is set by keys, as the plugin will read it.
    let plugin = crate::settings::cluster(config).map(|settings| settings.raft);
    if let Some(mut plugin) = plugin {
        let more = std::mem::take(&mut plugin.more);
        for line in more {
            let text = format!("{}{line}\n", plugin.to_toml(cluster.node_id.into()));
            let name = line.split('=').next().unwrap_or_default().trim();
            if line.parse::<toml_edit::DocumentMut>().is_err() || !line.contains('=') || line.contains('\n') {
                let line = excerpt(&line);
                let text = format!("`{line}` is no setting; write them as in \"raft.max_inflight_msgs = 256\"");
                found.push(("cluster.raft.more", text));
            } else if text.parse::<toml_edit::DocumentMut>().is_err() || name == "leader_id" {
                let line = excerpt(&line);
                found.push((
                    "cluster.raft.more",
                    format!("`{line}` is set by a key of its own; see configs/ciqadamq.toml"),
                ));
            }
        }
    }
    found
}
