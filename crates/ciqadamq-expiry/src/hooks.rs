//! The hooks, and nothing but their translation.

use std::num::NonZeroU32;
use std::sync::Arc;

use async_trait::async_trait;
use rmqtt::hook::{Handler, HookResult, Parameter, Priority, Register, ReturnType, Type};
use rmqtt::types::Publish;

use crate::sweep::Offline;

/// Last in the chain: plugins that rewrite a message build it anew from the original, without our change.
pub const PRIORITY: Priority = 0;

pub(crate) async fn add(register: &dyn Register, cap: NonZeroU32, offline: &Arc<Offline>) {
    use Type::*;
    for hook in [MessagePublish, OfflineMessage, ClientDisconnected, ClientConnected, SessionTerminated] {
        register.add_priority(hook, PRIORITY, Box::new(Hooks { cap, offline: offline.clone() })).await;
    }
}

struct Hooks {
    cap: NonZeroU32,
    offline: Arc<Offline>,
}

#[async_trait]
impl Handler for Hooks {
    async fn hook(&self, param: &Parameter, acc: Option<HookResult>) -> ReturnType {
        match param {
            Parameter::MessagePublish(_, _, publish) => (true, capped(publish, acc, self.cap)),
            // Runs in the session's own task, before the message is pushed: nobody else touches the queue now.
            Parameter::OfflineMessage(session, _, _) => {
                self.offline.arrived(session);
                (true, acc)
            }
            Parameter::ClientDisconnected(session, _) => {
                self.offline.went(session);
                (true, acc)
            }
            Parameter::ClientConnected(session) | Parameter::SessionTerminated(session, _) => {
                self.offline.forget(session);
                (true, acc)
            }
            _ => (true, acc),
        }
    }
}

/// Cuts the interval of a publish. Copies the message only when there is something to cut.
fn capped(publish: &Publish, acc: Option<HookResult>, cap: NonZeroU32) -> Option<HookResult> {
    let current = if let Some(HookResult::Publish(rewritten)) = &acc { rewritten } else { publish };
    let interval = current.properties.as_ref().and_then(|p| p.message_expiry_interval);
    if interval.is_none_or(|interval| interval <= cap) {
        return acc;
    }
    let mut publish = if let Some(HookResult::Publish(rewritten)) = acc { rewritten } else { publish.clone() };
    if let Some(properties) = &mut publish.properties {
        properties.message_expiry_interval = Some(cap);
    }
    Some(HookResult::Publish(publish))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rmqtt::codec::types::{Publish as Packet, QoS};
    use rmqtt::codec::v5::PublishProperties;

    fn publish(interval: Option<u32>) -> Publish {
        let message_expiry_interval = interval.and_then(NonZeroU32::new);
        let packet = Packet {
            dup: false,
            retain: false,
            qos: QoS::AtLeastOnce,
            topic: "t".into(),
            packet_id: None,
            payload: Default::default(),
            properties: Some(PublishProperties { message_expiry_interval, ..Default::default() }),
        };
        Publish::from(packet)
    }

    fn interval(result: Option<HookResult>) -> Option<u32> {
        match result {
            Some(HookResult::Publish(p)) => p.properties.as_ref()?.message_expiry_interval.map(NonZeroU32::get),
            _ => None,
        }
    }

    #[test]
    fn a_longer_interval_is_cut_and_a_shorter_one_wins() {
        let cap = NonZeroU32::new(1200).unwrap();
        assert_eq!(interval(capped(&publish(Some(86_400)), None, cap)), Some(1200));
        assert!(capped(&publish(Some(5)), None, cap).is_none());
        assert!(capped(&publish(None), None, cap).is_none());
    }

    #[test]
    fn what_an_earlier_plugin_rewrote_is_kept() {
        let cap = NonZeroU32::new(10).unwrap();
        let mut rewritten = publish(Some(20));
        rewritten.topic = "elsewhere".into();
        let Some(HookResult::Publish(result)) = capped(&publish(Some(20)), Some(HookResult::Publish(rewritten)), cap)
        else {
            panic!("dropped")
        };
        assert_eq!(&*result.topic, "elsewhere");
        assert_eq!(result.properties.as_ref().unwrap().message_expiry_interval, Some(cap));
    }
}
