//! The hooks, and nothing but their translation. Registered when the first persistent session appears.

use std::num::NonZeroU16;
use std::sync::Arc;

use async_trait::async_trait;
use rmqtt::codec::types::QoS;
use rmqtt::codec::v5::PublishAckReason;
use rmqtt::hook::{Handler, HookResult, Parameter, Priority, ReturnType, Type};
use rmqtt::session::Session;
use rmqtt::types::{From, Publish, PublishAclResult, PublishResult, Reason};

use super::keeper::Keeper;
use crate::Refusal;

/// Before the access rule (200), which ends the chain for superusers. What is refused here is refused to all.
pub const PRIORITY: Priority = 210;
/// Last: nobody rewrites a message behind us.
const PRIORITY_DELIVERED: Priority = 0;

pub(super) async fn add(keeper: &Arc<Keeper>) {
    let register = keeper.scx.extends.hook_mgr().register();
    use Type::*;
    for hook in
        [MessagePublishCheckAcl, MessageAcked, MessageDropped, ClientDisconnected, ClientSubscribe, ClientUnsubscribe]
    {
        register.add_priority(hook, PRIORITY, Box::new(Hooks(keeper.clone()))).await;
    }
    register.add_priority(MessageDelivered, PRIORITY_DELIVERED, Box::new(Hooks(keeper.clone()))).await;
    register.start().await;
}

struct Hooks(Arc<Keeper>);

#[async_trait]
impl Handler for Hooks {
    async fn hook(&self, param: &Parameter, acc: Option<HookResult>) -> ReturnType {
        match param {
            Parameter::MessageDelivered(session, _, publish) if publish.qos != QoS::AtMostOnce => {
                (true, self.delivered(session, publish, acc).await)
            }
            Parameter::MessageAcked(session, _, publish) => {
                self.acked(session, publish);
                (true, acc)
            }
            Parameter::MessagePublishCheckAcl(session, publish) => match self.check(session, publish).await {
                Some(refused) => (false, Some(HookResult::PublishAclResult(refused))),
                None => (true, acc),
            },
            Parameter::ClientSubscribe(session, _) | Parameter::ClientUnsubscribe(session, _) => {
                if let Some(kept) = self.0.same(&session.id) {
                    kept.live.see();
                }
                (true, acc)
            }
            Parameter::MessageDropped(Some(to), _, publish, reason) => {
                self.dropped(to, publish, reason);
                (true, acc)
            }
            Parameter::ClientDisconnected(session, _) => {
                self.0.disconnected(session).await;
                (true, acc)
            }
            _ => (true, acc),
        }
    }
}

impl Hooks {
    /// A message is about to be sent: it gets its Packet Identifier.
    async fn delivered(&self, session: &Session, publish: &Publish, acc: Option<HookResult>) -> Option<HookResult> {
        let Some(kept) = self.0.same(&session.id) else { return acc };
        let is_again = publish.dup && publish.packet_id.is_some();
        let packet_id = if is_again {
            publish.packet_id
        } else {
            let known = publish.delay_interval.and_then(|ticket| self.0.store.deliver(kept.no, ticket));
            match known {
                Some(id) => NonZeroU16::new(id),
                None => {
                    let inflight = session.out_inflight().read().await;
                    (0..u16::MAX)
                        .map(|_| kept.live.spare_packet_id())
                        .find(|id| !inflight.exist(id))
                        .and_then(NonZeroU16::new)
                }
            }
        };
        if publish.qos == QoS::ExactlyOnce
            && let Some(id) = packet_id
        {
            kept.live.awaiting.lock().push_back(id.get());
        }
        kept.live.after_delivery();
        if packet_id == publish.packet_id {
            return acc;
        }
        let mut rewritten = if let Some(HookResult::Publish(publish)) = acc { publish } else { publish.clone() };
        rewritten.packet_id = packet_id;
        Some(HookResult::Publish(rewritten))
    }

    fn acked(&self, session: &Session, publish: &Publish) {
        if let (Some(kept), Some(id)) = (self.0.same(&session.id), publish.packet_id) {
            kept.live.see();
            // Without a PUBREC, if the client skipped it.
            kept.live.awaiting.lock().retain(|other| *other != id.get());
            kept.live.window.ended(id.get());
            self.0.store.acknowledged(kept.no, id.get());
        }
    }

    /// A message left a queue: it expired, or newer ones needed its place. What found no session is not lost: the store has it.
    fn dropped(&self, to: &rmqtt::types::Id, publish: &Publish, reason: &Reason) {
        if let Reason::MessageQueueFull | Reason::MessageExpiration = reason
            && publish.qos != QoS::AtMostOnce
            && let (Some(kept), Some(ticket)) = (self.0.same(to), publish.delay_interval)
        {
            match publish.packet_id.filter(|_| publish.dup) {
                Some(id) => self.0.store.acknowledged(kept.no, id.get()),
                None => self.0.store.drop_queued(kept.no, ticket),
            }
        }
    }

    /// Whether a retained publish has to be kept now. One that only clears a topic may use what is left of a full disk.
    fn changes_retained(&self, publish: &Publish) -> bool {
        let store = &self.0.store;
        !publish.payload.is_empty() || store.fault().is_some() && store.retained_until(&publish.topic).is_some()
    }

    /// Refuses a publish that cannot be kept for those it is for. Everything else goes on.
    async fn check(&self, session: &Session, publish: &Publish) -> Option<PublishAclResult> {
        if let Some(kept) = self.0.same(&session.id) {
            kept.live.see();
        }
        if publish.qos == QoS::AtMostOnce {
            return None;
        }
        let refusal = self.0.store.refusal()?;
        let from = From::from_custom(session.id.clone());
        let is_for_kept = match &publish.target_clientid {
            _ if publish.retain && self.0.keeps_retained && self.changes_retained(publish) => true,
            Some(target) => self.0.kept(target).is_some(),
            None => {
                let router = self.0.scx.extends.router().await;
                let relations = router.matches(from.id.clone(), &publish.topic).await.unwrap_or_default();
                relations.get(&self.0.scx.node.id()).is_some_and(|local| !self.0.recipients(publish, local).is_empty())
            }
        };
        if !is_for_kept {
            return None;
        }
        self.0.store.count_refused();
        let reason = match &refusal {
            Refusal::Full(_) | Refusal::DiskFull(_) => PublishAckReason::QuotaExceeded,
            Refusal::Broken(_) | Refusal::Closed => PublishAckReason::UnspecifiedError,
        };
        // A v3 client cannot be told; it must not take the message for delivered.
        let is_v3 = session.protocol().await.unwrap_or(3) < 5;
        Some(PublishAclResult(PublishResult::reason_code(reason, Some("message cannot be stored".into()), is_v3)))
    }
}
