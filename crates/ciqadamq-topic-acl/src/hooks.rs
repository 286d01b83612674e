//! The hooks, and nothing but their translation.

use std::sync::Arc;

use async_trait::async_trait;
use ciqadamq_core::{
    AccessRules, FilterPrefix, Grant, MALFORMED, Principal, Principals, PublishRefusal, RetainedQuota,
    SubscribeRefusal, TopicNameFault, has_malformed_properties,
};
use rmqtt::codec::v5::{PublishAckReason, SubscribeAckReason};
use rmqtt::hook::{Handler, HookResult, Parameter, Priority, Register, ReturnType, Type};
use rmqtt::session::Session;
use rmqtt::types::{FromType, Id, Publish, PublishAclResult, PublishResult, Subscribe, SubscribeAclResult};

use crate::metrics::AclMetrics;
use crate::plugin::{Limits, OnDeny};

/// Before `rmqtt-auth-http` (100), `rmqtt-auth-jwt` (50) and `rmqtt-acl` (10).
pub const PRIORITY: Priority = 200;

pub(crate) struct Acl {
    pub(crate) rules: Arc<AccessRules>,
    pub(crate) principals: Arc<Principals>,
    pub(crate) on_deny: OnDeny,
    pub(crate) limits: Limits,
    pub(crate) retained: Option<Arc<dyn RetainedQuota>>,
    pub(crate) metrics: AclMetrics,
}

pub(crate) async fn add(register: &dyn Register, acl: &Arc<Acl>) {
    for hook in [Type::ClientSubscribeCheckAcl, Type::MessagePublishCheckAcl, Type::MessagePublish] {
        register.add_priority(hook, PRIORITY, Box::new(Hooks(acl.clone()))).await;
    }
}

struct Hooks(Arc<Acl>);

#[async_trait]
impl Handler for Hooks {
    async fn hook(&self, param: &Parameter, acc: Option<HookResult>) -> ReturnType {
        match param {
            Parameter::MessagePublishCheckAcl(session, publish) => self.0.publish(session, publish),
            Parameter::ClientSubscribeCheckAcl(session, subscribe) => self.0.subscribe(session, subscribe).await,
            Parameter::MessagePublish(_, from, publish) if matches!(from.typ(), FromType::LastWill) => {
                self.0.will(&from.id, publish, acc)
            }
            _ => (true, acc),
        }
    }
}

impl Acl {
    fn publish(&self, session: &Session, publish: &Publish) -> ReturnType {
        let principal = self.principals.get(&session.id.client_id);
        match self.judge_publish(principal.as_deref(), publish) {
            Ok(grant) => (grant != Grant::Superuser, Some(HookResult::PublishAclResult(PublishAclResult::allow()))),
            Err(refusal) => {
                self.metrics.publish_refused(&session.id, &publish.topic, refusal.as_str());
                let verdict = PublishAclResult(answer(refusal, self.on_deny));
                (refusal == PublishRefusal::Unknown, Some(HookResult::PublishAclResult(verdict)))
            }
        }
    }

    fn judge_publish(&self, principal: Option<&Principal>, publish: &Publish) -> Result<Grant, PublishRefusal> {
        let principal = principal.ok_or(PublishRefusal::Unknown)?;
        if principal.is_withdrawn() {
            return Err(PublishRefusal::Withdrawn);
        }
        if principal.has_left() {
            return Err(PublishRefusal::Left);
        }
        let grant = self.rules.may_publish(&principal.subject(), &publish.topic)?;
        // A message to one client id goes past every subscription, so past every rule.
        if publish.target_clientid.is_some() && grant != Grant::Superuser {
            return Err(PublishRefusal::Targeted);
        }
        if publish.retain {
            self.judge_retain(principal, publish)?;
        }
        judge_properties(publish)?;
        if grant != Grant::Superuser {
            principal.meter.charge(self.limits.publish, publish.topic.len() + publish.payload.len());
        }
        Ok(grant)
    }

    fn judge_retain(&self, principal: &Principal, publish: &Publish) -> Result<(), PublishRefusal> {
        let subject = principal.subject();
        self.rules.may_retain(&subject)?;
        match &self.retained {
            // An empty one removes what is there.
            Some(quota) if !subject.superuser && !publish.payload.is_empty() => {
                let has_place = quota.has_place(subject.username, &publish.topic);
                has_place.then_some(()).ok_or(PublishRefusal::TooManyRetained)
            }
            _ => Ok(()),
        }
    }

    async fn subscribe(&self, session: &Session, subscribe: &Subscribe) -> ReturnType {
        let principal = self.principals.get(&session.id.client_id);
        let verdict = match self.judge_subscribe(principal.as_deref(), subscribe) {
            Ok(grant) if grant != Grant::Superuser && self.is_one_too_many(session, subscribe).await => {
                Err(SubscribeRefusal::TooMany)
            }
            verdict => verdict,
        };
        match verdict {
            Ok(grant) => {
                let verdict = SubscribeAclResult::new_success(subscribe.opts.qos(), None);
                (grant != Grant::Superuser, Some(HookResult::SubscribeAclResult(verdict)))
            }
            Err(refusal) => {
                self.metrics.subscribe_refused(&session.id, &subscribe.topic_filter, refusal.as_str());
                let reason = match refusal {
                    SubscribeRefusal::Filter(_) => SubscribeAckReason::TopicFilterInvalid,
                    SubscribeRefusal::TooMany => SubscribeAckReason::QuotaExceeded,
                    _ => SubscribeAckReason::NotAuthorized,
                };
                let verdict = SubscribeAclResult::new_failure(reason);
                (refusal == SubscribeRefusal::Unknown, Some(HookResult::SubscribeAclResult(verdict)))
            }
        }
    }

    /// Whether a session that is full would get another subscription. The engine subscribes in the session's own task, one
    /// filter after the other.
    async fn is_one_too_many(&self, session: &Session, subscribe: &Subscribe) -> bool {
        let Limits { subscriptions_per_session: max, subscription_bytes_per_session: bytes_max, .. } = self.limits;
        if max == 0 && bytes_max == 0 {
            return false;
        }
        // Unsure: full.
        let Ok(subscriptions) = session.subscriptions().await else { return true };
        let subscriptions = subscriptions.read().await;
        if subscriptions.contains_key(&subscribe.topic_filter) {
            return false;
        }
        let bytes = || subscriptions.keys().map(|filter| filter.len()).sum::<usize>() + subscribe.topic_filter.len();
        max != 0 && subscriptions.len() >= max || bytes_max != 0 && bytes() > bytes_max
    }

    fn judge_subscribe(&self, principal: Option<&Principal>, subscribe: &Subscribe) -> Result<Grant, SubscribeRefusal> {
        let principal = principal.ok_or(SubscribeRefusal::Unknown)?;
        if principal.is_withdrawn() {
            return Err(SubscribeRefusal::Withdrawn);
        }
        if principal.has_left() {
            return Err(SubscribeRefusal::Left);
        }
        // The engine has taken the prefix off already.
        let prefix = match (subscribe.opts.shared_group(), subscribe.opts.limit_subs()) {
            (Some(name), _) => Some(FilterPrefix::Share(name)),
            (None, Some(1)) => Some(FilterPrefix::Exclusive),
            (None, Some(n)) => Some(FilterPrefix::Limit(n)),
            (None, None) => None,
        };
        self.rules.may_subscribe_split(&principal.subject(), prefix, &subscribe.topic_filter)
    }

    fn will(&self, id: &Id, publish: &Publish, acc: Option<HookResult>) -> ReturnType {
        let principal = self.principals.get(&id.client_id);
        let rewritten = if let Some(HookResult::Publish(publish)) = &acc { publish } else { publish };
        match self.judge_publish(principal.as_deref(), rewritten) {
            Ok(_) => (true, acc),
            Err(refusal) => {
                self.metrics.will_refused(id, &rewritten.topic, refusal.as_str());
                (false, Some(HookResult::Publish(unheard(rewritten))))
            }
        }
    }
}

/// What a strict subscriber would be disconnected for is not passed on.
fn judge_properties(publish: &Publish) -> Result<(), PublishRefusal> {
    let Some(properties) = &publish.properties else { return Ok(()) };
    // Only servers send them (MQTT-3.3.4-6). The engine would pass them on, and who dispatches by them would be misled.
    if !properties.subscription_ids.is_empty() {
        return Err(PublishRefusal::Malformed);
    }
    let pairs = properties.user_properties.iter().flat_map(|(name, value)| [&**name, &**value]);
    let texts = pairs.chain(properties.content_type.as_deref());
    if has_malformed_properties(texts, properties.response_topic.as_deref()) {
        return Err(PublishRefusal::Malformed);
    }
    if properties.is_utf8_payload && std::str::from_utf8(&publish.payload).is_err() {
        return Err(PublishRefusal::PayloadFormat);
    }
    Ok(())
}

/// How a refusal is answered. Malformed packets, and those behind a DISCONNECT, end the connection whatever `on_deny` says
/// (MQTT-4.13.1-1, MQTT-3.14.4-3).
fn answer(refusal: PublishRefusal, on_deny: OnDeny) -> PublishResult {
    let disconnect = matches!(on_deny, OnDeny::Disconnect);
    match refusal {
        PublishRefusal::Malformed | PublishRefusal::TopicName(TopicNameFault::Nul) => {
            PublishResult::reason_code(PublishAckReason::UnspecifiedError, Some(MALFORMED.into()), true)
        }
        PublishRefusal::Left => PublishResult::reason_code(PublishAckReason::UnspecifiedError, None, true),
        PublishRefusal::TopicName(_) => {
            PublishResult::reason_code(PublishAckReason::TopicNameInvalid, None, disconnect)
        }
        PublishRefusal::TooManyRetained => {
            PublishResult::reason_code(PublishAckReason::QuotaExceeded, None, disconnect)
        }
        PublishRefusal::PayloadFormat => {
            PublishResult::reason_code(PublishAckReason::PayloadFormatInvalid, None, disconnect)
        }
        _ => PublishResult::reason_code(PublishAckReason::NotAuthorized, None, disconnect),
    }
}

/// The engine cannot be told to drop a Will. It can be given one that nobody receives and nobody keeps: not retained,
/// without content, addressed to the client id that no client can have.
fn unheard(will: &Publish) -> Publish {
    let mut nothing = will.clone().target_clientid(Default::default());
    nothing.retain = false;
    nothing.payload = Default::default();
    nothing
}
