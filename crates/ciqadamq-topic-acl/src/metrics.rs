//! Counters of refusals, and their log lines.

use ciqadamq_core::{AUDIT, LogBudget, excerpt};
use prometheus::{IntCounterVec, Opts, Registry};
use rmqtt::types::Id;
use tracing::warn;

pub(crate) struct AclMetrics {
    publish: IntCounterVec,
    subscribe: IntCounterVec,
    will: IntCounterVec,
    log: LogBudget,
}

impl AclMetrics {
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str| -> prometheus::Result<IntCounterVec> {
            let counter = IntCounterVec::new(Opts::new(name, help), &["reason"])?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        Ok(Self {
            publish: counter("ciqadamq_acl_publish_refused_total", "Publishes refused, by reason")?,
            subscribe: counter("ciqadamq_acl_subscribe_refused_total", "Topic filters refused, by reason")?,
            will: counter("ciqadamq_acl_will_refused_total", "Wills that did not fire because the right was gone")?,
            log: LogBudget::default(),
        })
    }

    pub(crate) fn publish_refused(&self, id: &Id, topic: &str, reason: &'static str) {
        self.publish.with_label_values(&[reason]).inc();
        self.line("publish_refused", id, topic, reason);
    }

    pub(crate) fn subscribe_refused(&self, id: &Id, filter: &str, reason: &'static str) {
        self.subscribe.with_label_values(&[reason]).inc();
        self.line("subscribe_refused", id, filter, reason);
    }

    pub(crate) fn will_refused(&self, id: &Id, topic: &str, reason: &'static str) {
        self.will.with_label_values(&[reason]).inc();
        self.line("will_refused", id, topic, reason);
    }

    fn line(&self, event: &'static str, id: &Id, topic: &str, reason: &'static str) {
        if let Some(suppressed) = self.log.spend() {
            warn!(
                target: AUDIT,
                event,
                reason,
                username = id.username_ref(),
                // As text, so that it is escaped: it may hold line ends and terminal codes.
                client_id = &*id.client_id,
                address = id.remote_addr.map(tracing::field::display),
                topic = excerpt(topic),
                suppressed,
                "refused"
            );
        }
    }
}
