//! The store's numbers for Prometheus, read when somebody asks.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntGauge};

use crate::Store;

pub(super) struct StoreMetrics {
    store: Arc<Store>,
    gauges: Vec<IntGauge>,
    counters: Vec<IntCounter>,
}

impl StoreMetrics {
    pub(super) fn new(store: Arc<Store>) -> prometheus::Result<Self> {
        let gauge = |(name, help): &(&str, &str)| IntGauge::new(format!("ciqadamq_session_store_{name}"), *help);
        let counter = |(name, help): &(&str, &str)| IntCounter::new(format!("ciqadamq_session_store_{name}"), *help);
        let gauges = [
            ("sessions", "Persistent sessions on this node"),
            ("messages", "Messages kept for persistent sessions, each once"),
            ("owed", "Messages owed, over all persistent sessions"),
            ("retained", "Retained messages"),
            ("bytes", "Bytes of kept and retained messages"),
            ("disk_bytes", "Bytes on disk"),
            ("writable", "1 while messages are taken, 0 while they are refused because they cannot be written"),
        ];
        let counters = [
            ("commits_total", "Commits"),
            ("stored_total", "Messages in them"),
            ("refused_total", "Messages that were refused because they could not be kept"),
            (
                "unkept_total",
                "Messages that were not kept for a session that is owed as many as there are Packet Identifiers",
            ),
            ("expired_total", "Messages that left their queue because they had expired"),
            ("checkpoints_total", "Times the log was folded into sled"),
        ];
        Ok(Self {
            store,
            gauges: gauges.iter().map(gauge).collect::<prometheus::Result<_>>()?,
            counters: counters.iter().map(counter).collect::<prometheus::Result<_>>()?,
        })
    }
}

impl Collector for StoreMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges.iter().flat_map(Collector::desc).chain(self.counters.iter().flat_map(Collector::desc)).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let s = self.store.status();
        let writable = u64::from(s.fault.is_none());
        let gauges = [s.sessions, s.messages, s.owed, s.retained, s.bytes, s.disk_bytes, writable];
        self.gauges.iter().zip(gauges).for_each(|(gauge, value)| gauge.set(value as i64));
        let counters = [s.commits, s.stored, s.refused, s.unkept, s.expired, s.checkpoints];
        for (counter, value) in self.counters.iter().zip(counters) {
            counter.inc_by(value.saturating_sub(counter.get()));
        }
        self.gauges
            .iter()
            .flat_map(Collector::collect)
            .chain(self.counters.iter().flat_map(Collector::collect))
            .collect()
    }
}
