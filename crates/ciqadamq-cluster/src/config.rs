//! What this part of the cluster is told, and the settings of `rmqtt-cluster-raft` that follow from it.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use ciqadamq_core::NodeId;

/// The routing cluster as configured: the same on every node, but for `node`.
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    /// this node
    pub node: NodeId,
    /// all nodes, this one included, sorted
    pub nodes: Vec<NodeId>,
    /// Who starts a cluster that does not exist yet, if it can; else the smallest of those that can.
    pub starter: NodeId,
    /// Pause between two tries to find the cluster.
    pub join_retry: Duration,
    /// Tries before giving up; 0 = for ever.
    pub join_max_retries: u32,
    /// How long the session of a dead node is kept for its owner against other users: as long as it could have lived.
    pub keep_dead: Duration,
    /// A publisher's acknowledgement waits until the other nodes have its message.
    pub publishers_wait: bool,
    /// raft's own
    pub raft: RaftSettings,
}

/// Settings of `rmqtt-cluster-raft`.
#[derive(Debug, Clone)]
pub struct RaftSettings {
    /// `id@host:port` of each node's gRPC
    pub node_grpc_addrs: Vec<String>,
    /// `id@host:port` of each node's raft
    pub raft_peer_addrs: Vec<String>,
    /// where raft listens
    pub laddr: SocketAddr,
    /// threads of raft
    pub worker_threads: usize,
    /// ticks without a leader before an election
    pub election_tick: u32,
    /// ticks between heartbeats
    pub heartbeat_tick: u32,
    /// a leader without a quorum steps down
    pub check_quorum: bool,
    /// ask before an election
    pub pre_vote: bool,
    /// raft's clock: one tick
    pub tick: Duration,
    /// proposals in one entry of the log
    pub proposal_batch_size: u32,
    /// how long an entry waits for more
    pub proposal_batch_timeout: Duration,
    /// for an answer of another node's raft
    pub grpc_timeout: Duration,
    /// for an answer of another node's broker
    pub node_grpc_timeout: Duration,
    /// how long a client id stays locked by a CONNECT that came to nothing
    pub try_lock_timeout: Duration,
    /// between two snapshots
    pub snapshot_interval: Duration,
    /// further settings in the plugin's own words, each a line of TOML
    pub more: Vec<String>,
}

impl RaftSettings {
    /// The plugin's settings as TOML.
    ///
    /// `leader_id` is always this node: the plugin then takes the lead if it finds no leader, and joins if it does. Which
    /// of the two is decided before the plugin starts, see [`crate::formation`].
    pub fn to_toml(&self, node: NodeId) -> String {
        let list = |addrs: &[String]| {
            let quoted: Vec<String> =
                addrs.iter().map(|addr| serde_json::Value::from(addr.as_str()).to_string()).collect();
            format!("[{}]", quoted.join(", "))
        };
        let mut text = String::new();
        let mut line = |key: &str, value: &dyn std::fmt::Display| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{key} = {value}");
        };
        line("leader_id", &node);
        line("laddr", &serde_json::Value::from(self.laddr.to_string()));
        line("worker_threads", &self.worker_threads);
        line("node_grpc_addrs", &list(&self.node_grpc_addrs));
        line("raft_peer_addrs", &list(&self.raft_peer_addrs));
        // The plugin's own way out is to end the process, whatever else it is doing; the watch here does it in order.
        line("health.exit_on_node_unavailable", &false);
        let ms = |duration: Duration| format!("\"{}ms\"", duration.as_millis());
        line("node_grpc_client_timeout", &ms(self.node_grpc_timeout));
        line("try_lock_timeout", &ms(self.try_lock_timeout));
        line("raft.heartbeat", &ms(self.tick));
        line("raft.proposal_batch_size", &self.proposal_batch_size);
        line("raft.proposal_batch_timeout", &ms(self.proposal_batch_timeout));
        line("raft.grpc_timeout", &ms(self.grpc_timeout));
        line("raft.snapshot_interval", &ms(self.snapshot_interval));
        line("raft.election_tick", &self.election_tick);
        line("raft.heartbeat_tick", &self.heartbeat_tick);
        line("raft.check_quorum", &self.check_quorum);
        line("raft.pre_vote", &self.pre_vote);
        for more in &self.more {
            text.push_str(more);
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_plugin_is_told_to_lead_unless_it_finds_a_leader() {
        let mut config = crate::formation::test_config(7);
        config.raft.more.push("raft.max_inflight_msgs = 256".into());
        let text = config.raft.to_toml(config.node);
        for line in ["leader_id = 7", "raft.heartbeat = \"5ms\"", "raft.max_inflight_msgs = 256"] {
            assert!(text.lines().any(|l| l == line), "{line} not in\n{text}");
        }
    }
}
