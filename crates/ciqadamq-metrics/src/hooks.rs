//! The hooks, and nothing but their translation.

use std::sync::Arc;

use async_trait::async_trait;
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use rmqtt::hook::{Handler, HookResult, Parameter, Priority, Register, ReturnType, Type};
use rmqtt::types::Reason;

/// First in the chain: a plugin that ends it must not make messages uncounted.
pub const PRIORITY: Priority = Priority::MAX;

pub(crate) struct Counters {
    dropped: IntCounterVec,
    unrouted: IntCounter,
}

impl Counters {
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let counters = Self {
            dropped: IntCounterVec::new(
                Opts::new("ciqadamq_messages_dropped_total", "Messages that did not reach a subscriber, by reason"),
                &["reason"],
            )?,
            unrouted: IntCounter::new(
                "ciqadamq_messages_without_subscriber_total",
                "Messages that nobody was subscribed to",
            )?,
        };
        registry.register(Box::new(counters.dropped.clone()))?;
        registry.register(Box::new(counters.unrouted.clone()))?;
        Ok(counters)
    }
}

pub(crate) async fn add(register: &dyn Register, counters: &Arc<Counters>) {
    use Type::*;
    for hook in [MessageDropped, MessageNonsubscribed] {
        register.add_priority(hook, PRIORITY, Box::new(Hooks(counters.clone()))).await;
    }
}

struct Hooks(Arc<Counters>);

#[async_trait]
impl Handler for Hooks {
    async fn hook(&self, param: &Parameter, acc: Option<HookResult>) -> ReturnType {
        match param {
            Parameter::MessageNonsubscribed(_) => self.0.unrouted.inc(),
            Parameter::MessageDropped(_, _, _, reason) => {
                self.0.dropped.with_label_values(&[reason_name(reason)]).inc();
            }
            _ => {}
        }
        (true, acc)
    }
}

/// A label with few values, whatever texts the engine puts into its reasons.
fn reason_name(reason: &Reason) -> &'static str {
    match reason {
        Reason::MessageQueueFull => "queue_full",
        Reason::MessageExpiration => "expired",
        Reason::InflightWindowFull => "inflight_full",
        Reason::PublishResult(_) => "refused",
        Reason::SessionExpiration => "session_expired",
        Reason::ConnectKicked(_) => "session_ended",
        Reason::Reasons(reasons) => reasons.first().map_or("session_ended", reason_name),
        Reason::ConnectDisconnect(_)
        | Reason::ConnectRemoteClose
        | Reason::ConnectKeepaliveTimeout
        | Reason::ConnectReadWriteTimeout
        | Reason::ConnectReadWriteError => "session_ended",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_few_names() {
        assert_eq!(reason_name(&Reason::MessageQueueFull), "queue_full");
        assert_eq!(reason_name(&Reason::Reasons(vec![Reason::ConnectRemoteClose])), "session_ended");
        assert_eq!(reason_name(&Reason::from_static("whatever the engine says")), "other");
    }
}
