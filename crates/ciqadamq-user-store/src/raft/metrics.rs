//! The replicated log's numbers for Prometheus, read when somebody asks.

use std::sync::Arc;

use ciqadamq_core::{ClusterPart, RaftRole};
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGauge, IntGaugeVec, Opts};

use super::ReplicatedUsers;

/// Gauges of one node.
pub(crate) struct RaftGauges {
    users: Arc<ReplicatedUsers>,
    role: IntGaugeVec,
    term: IntGauge,
    last_log: IntGauge,
    applied: IntGauge,
    members: IntGauge,
    reachable: IntGaugeVec,
    lag: IntGaugeVec,
}

impl RaftGauges {
    pub(crate) fn new(users: Arc<ReplicatedUsers>) -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str| IntGauge::with_opts(Opts::new(name, help));
        let by = |name: &str, help: &str, label: &str| IntGaugeVec::new(Opts::new(name, help), &[label]);
        Ok(Self {
            users,
            role: by("ciqadamq_users_raft_role", "1 for what this node is in the raft of users", "role")?,
            term: gauge("ciqadamq_users_raft_term", "Term of the raft of users")?,
            last_log: gauge("ciqadamq_users_raft_last_log_index", "Last entry in this node's log of users")?,
            applied: gauge("ciqadamq_users_raft_applied_index", "Last entry of the log of users applied here")?,
            members: gauge("ciqadamq_users_raft_members", "Members of the raft of users, this node included")?,
            reachable: by("ciqadamq_users_raft_peer_reachable", "1 if the member answered the last call", "peer")?,
            lag: by("ciqadamq_users_raft_peer_lag", "Entries the member is behind; on the leader alone", "peer")?,
        })
    }
}

impl Collector for RaftGauges {
    fn desc(&self) -> Vec<&Desc> {
        let vectors = [&self.role, &self.reachable, &self.lag].into_iter().flat_map(Collector::desc);
        [&self.term, &self.last_log, &self.applied, &self.members]
            .into_iter()
            .flat_map(Collector::desc)
            .chain(vectors)
            .collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let view = self.users.raft();
        for role in [RaftRole::Leader, RaftRole::Follower, RaftRole::Candidate, RaftRole::Learner, RaftRole::Out] {
            self.role.with_label_values(&[role.as_str()]).set(i64::from(role == view.role));
        }
        self.term.set(view.term.unwrap_or(0) as i64);
        self.last_log.set(view.last_log_index.unwrap_or(0) as i64);
        self.applied.set(view.applied_index.unwrap_or(0) as i64);
        self.members.set((view.voters.len() + view.learners.len()) as i64);
        // Members come and go, and who is not the leader knows of no lag.
        self.reachable.reset();
        self.lag.reset();
        for peer in &view.peers {
            let id = peer.node.to_string();
            if let Some(reachable) = peer.reachable {
                self.reachable.with_label_values(&[&id]).set(i64::from(reachable));
            }
            if let Some(lag) = peer.lag {
                self.lag.with_label_values(&[&id]).set(lag as i64);
            }
        }
        let vectors = [&self.role, &self.reachable, &self.lag].into_iter().flat_map(Collector::collect);
        [&self.term, &self.last_log, &self.applied, &self.members]
            .into_iter()
            .flat_map(Collector::collect)
            .chain(vectors)
            .collect()
    }
}
