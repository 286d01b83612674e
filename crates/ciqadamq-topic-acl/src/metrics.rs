//! Counters of refusals, and their log lines.

use ciqadamq_core::{AUDIT, LogBudget};
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
                topic = shortened(topic),
                suppressed,
                "refused"
            );
        }
    }
}

/// A topic may have 65,535 bytes; a log line need not.
fn shortened(topic: &str) -> &str {
    let end = (0..=topic.len().min(128)).rev().find(|at| topic.is_char_boundary(*at)).unwrap_or(0);
    &topic[..end]
}

#[cfg(test)]
mod tests {
    use super::shortened;

    #[test]
    fn long_topics_are_cut_between_characters() {
        assert_eq!(shortened("a/b"), "a/b");
        assert_eq!(shortened(&"ö".repeat(100)).len(), 128);
        assert_eq!(shortened(&format!("x{}", "ö".repeat(100))).len(), 127);
    }
}
