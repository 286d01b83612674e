//! The cluster's settings. The check of the configuration asks for them too, and this file needs no more than that: the fuzz target
//! of the configuration takes it in.

use std::time::Duration;

use ciqadamq_cluster::{ClusterConfig, RaftSettings};

use crate::config::{Config, Durability};

/// The routing cluster; `None` on a node alone.
pub fn cluster(config: &Config) -> Option<ClusterConfig> {
    let cluster = &config.cluster;
    if !cluster.enabled {
        return None;
    }
    let ms = |ms: u32| Duration::from_millis(ms.into());
    Some(ClusterConfig {
        node: cluster.node_id.into(),
        nodes: cluster.node_ids().into_iter().map(u64::from).collect(),
        starter: cluster.leader_id.into(),
        join_retry: Duration::from_secs(cluster.join_retry_secs.into()),
        join_max_retries: cluster.join_max_retries,
        keep_dead: Duration::from_secs(config.mqtt.max_session_expiry_secs.into()),
        // In memory is in memory: that of this node will do.
        publishers_wait: config.mqtt.durability != Durability::Memory,
        raft: RaftSettings {
            node_grpc_addrs: cluster.node_grpc_addrs.clone(),
            raft_peer_addrs: cluster.raft_peer_addrs.clone(),
            laddr: cluster.raft_laddr,
            worker_threads: cluster.raft_worker_threads,
            election_tick: cluster.election_tick,
            heartbeat_tick: cluster.heartbeat_tick,
            check_quorum: cluster.check_quorum,
            pre_vote: cluster.pre_vote,
            tick: ms(cluster.raft.tick_ms),
            proposal_batch_size: cluster.raft.proposal_batch_size,
            proposal_batch_timeout: ms(cluster.raft.proposal_batch_timeout_ms),
            grpc_timeout: ms(cluster.raft.grpc_timeout_ms),
            node_grpc_timeout: ms(cluster.raft.node_grpc_timeout_ms),
            try_lock_timeout: ms(cluster.raft.try_lock_timeout_ms),
            snapshot_interval: Duration::from_secs(cluster.raft.snapshot_interval_secs.into()),
            more: cluster.raft.more.clone(),
        },
    })
}
