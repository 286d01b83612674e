//! What is counted about reading secrets. Labels are few and fixed.

use ciqadamq_core::SecretName;
use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

/// The metrics of one node's secrets.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    reads: IntCounterVec,
    changes: IntCounterVec,
    stale: IntGaugeVec,
}

impl Metrics {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self {
            reads: IntCounterVec::new(
                Opts::new("ciqadamq_secrets_reads_total", "reads of a secret from its source, by outcome"),
                &["secret", "outcome"],
            )?,
            changes: IntCounterVec::new(
                Opts::new("ciqadamq_secrets_changes_total", "new values of a secret taken since the start"),
                &["secret"],
            )?,
            stale: IntGaugeVec::new(
                Opts::new(
                    "ciqadamq_secrets_stale",
                    "1 while the last read of a secret failed and an earlier value is in force",
                ),
                &["secret"],
            )?,
        };
        registry.register(Box::new(metrics.reads.clone()))?;
        registry.register(Box::new(metrics.changes.clone()))?;
        registry.register(Box::new(metrics.stale.clone()))?;
        Ok(metrics)
    }

    pub(crate) fn read(&self, name: SecretName, outcome: &str) {
        self.reads.with_label_values(&[name.as_str(), outcome]).inc();
    }

    pub(crate) fn changed(&self, name: SecretName) {
        self.changes.with_label_values(&[name.as_str()]).inc();
    }

    pub(crate) fn stale(&self, name: SecretName, stale: bool) {
        self.stale.with_label_values(&[name.as_str()]).set(stale.into());
    }
}
