//! Counters and gauges.

use std::collections::BTreeMap;

use ciqadamq_core::NodeId;
use prometheus::{IntCounter, IntGauge, IntGaugeVec, Opts, Registry};

use crate::liveness::View;
use crate::watch::Verdict;

/// What is counted.
pub struct ClusterMetrics {
    pub(crate) forwarded: IntCounter,
    pub(crate) dropped: IntCounter,
    pub(crate) handed_over: IntCounter,
    pub(crate) routes_removed: IntCounter,
    pub(crate) stale: IntCounter,
    pub(crate) unrouted: IntGauge,
    leader: IntGauge,
    works: IntGauge,
    up: IntGaugeVec,
}

impl ClusterMetrics {
    /// Registers all of them.
    ///
    /// # Errors
    /// If they are registered already.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str| -> prometheus::Result<IntCounter> {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let gauge = |name: &str, help: &str| -> prometheus::Result<IntGauge> {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let up = IntGaugeVec::new(Opts::new("ciqadamq_cluster_node_up", "1 if the node answers"), &["node"])?;
        registry.register(Box::new(up.clone()))?;
        Ok(Self {
            forwarded: counter(
                "ciqadamq_cluster_forwarded_total",
                "Deliveries put into the queue to the node that has the session",
            )?,
            dropped: counter(
                "ciqadamq_cluster_forward_dropped_total",
                "Deliveries for sessions of a node that is dead, or whose queue does not move",
            )?,
            handed_over: counter(
                "ciqadamq_cluster_sessions_handed_over_total",
                "Sessions that another node took over from this one",
            )?,
            routes_removed: counter(
                "ciqadamq_cluster_dead_routes_removed_total",
                "Routes to sessions that ended with their node",
            )?,
            stale: counter(
                "ciqadamq_cluster_stale_deliveries_total",
                "Deliveries to a session that has not subscribed the message: the one before had, and its route is still there",
            )?,
            unrouted: gauge(
                "ciqadamq_cluster_unrouted",
                "Subscriptions of this node's sessions whose routes the routing cluster does not have",
            )?,
            leader: gauge("ciqadamq_cluster_routes_leader", "Node that leads the routing cluster; 0 = none")?,
            works: gauge("ciqadamq_cluster_routes_works", "1 if a majority follows one leader")?,
            up,
        })
    }

    pub(crate) fn note(&self, verdict: &Verdict, views: &BTreeMap<NodeId, View>) {
        let leader = match verdict {
            Verdict::Works { leader } => i64::try_from(*leader).unwrap_or(0),
            _ => 0,
        };
        self.leader.set(leader);
        self.works.set(i64::from(leader != 0));
        for (node, view) in views {
            self.up.with_label_values(&[&node.to_string()]).set(i64::from(view.alive().is_some()));
        }
    }
}
