//! The store's numbers for Prometheus, read when somebody asks.

use std::sync::Arc;

use ciqadamq_core::UserDirectory;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, IntGauge, Opts};

use crate::{Counters, UserStore};

pub(crate) struct StoreMetrics {
    store: Arc<UserStore>,
    users: IntGauge,
    revision: IntGauge,
    bytes: IntGauge,
    writable: IntGauge,
    changes: IntCounterVec,
}

impl StoreMetrics {
    pub(crate) fn new(store: Arc<UserStore>) -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str| IntGauge::with_opts(Opts::new(name, help));
        Ok(Self {
            store,
            users: gauge("ciqadamq_users", "Users in the directory")?,
            revision: gauge("ciqadamq_users_revision", "Last applied change of a user")?,
            bytes: gauge("ciqadamq_users_bytes", "Size of the user store on disk, in bytes")?,
            writable: gauge("ciqadamq_users_writable", "1 while the store takes changes, 0 while it refuses them")?,
            changes: IntCounterVec::new(
                Opts::new("ciqadamq_users_changes_total", "Changes asked for, by what became of them"),
                &["result"],
            )?,
        })
    }

    /// Brings the counter to what the store has counted.
    fn follow(&self, counters: Counters) {
        let Counters { commits: _, applied, rejected, failed, busy } = counters;
        for (result, value) in [("applied", applied), ("rejected", rejected), ("failed", failed), ("busy", busy)] {
            let counter = self.changes.with_label_values(&[result]);
            counter.inc_by(value.saturating_sub(counter.get()));
        }
    }
}

impl Collector for StoreMetrics {
    fn desc(&self) -> Vec<&Desc> {
        let gauges = [&self.users, &self.revision, &self.bytes, &self.writable];
        gauges.into_iter().flat_map(Collector::desc).chain(self.changes.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let status = self.store.status();
        self.users.set(status.users as i64);
        self.revision.set(status.revision.0 as i64);
        self.bytes.set(status.bytes as i64);
        self.writable.set(i64::from(status.read_only.is_none()));
        self.follow(self.store.counters());
        let gauges = [&self.users, &self.revision, &self.bytes, &self.writable];
        gauges.into_iter().flat_map(Collector::collect).chain(self.changes.collect()).collect()
    }
}
