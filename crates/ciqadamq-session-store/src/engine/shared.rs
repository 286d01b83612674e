//! The engine's session table, with the store in front of routing.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ciqadamq_core::Arrival;
use rmqtt::Result;
use rmqtt::codec::types::QoS;
use rmqtt::grpc::GrpcClients;
use rmqtt::session::Session;
use rmqtt::shared::{Entry, MessageLoadCallback, RetainLoadCallback, Shared};
use rmqtt::types::*;
use tracing::warn;

use super::entry::KeptEntry;
use super::keeper::{Exchange, Keeper};
use crate::{Arrived, MessageId, Notes};

type Lost = Vec<(To, From, Publish, Reason)>;

pub(super) struct Keeping {
    pub(super) inner: Arc<dyn Shared>,
    pub(super) keeper: Arc<Keeper>,
}

impl Keeping {
    /// Routes a message on this node: commits it for the persistent sessions, and then hands it to all.
    async fn forward_kept(
        &self,
        msg_id: Option<MsgID>,
        from: From,
        mut publish: Publish,
    ) -> std::result::Result<ForwardedCount, (ForwardedCount, Lost)> {
        let keeper = &self.keeper;
        let inbound = match keeper.exchange(&from, &publish) {
            Exchange::Repeated(message) => {
                // The sessions of this node have it. Whether others have it is not known here: the crash may have come before that.
                self.send_again(from, publish, message, msg_id).await;
                return Ok(1);
            }
            Exchange::New(no, inbound) => Some((no, inbound)),
            Exchange::None => None,
        };
        let (local, remote) = self.relations(&from, &publish).await;
        let recipients = keeper.recipients(&publish, &local);
        let is_will = matches!(from.typ(), FromType::LastWill);
        if !recipients.is_empty() || inbound.is_some() {
            match keeper.commit(&from, &publish, &recipients, Notes { inbound, ..Notes::default() }).await {
                Ok(ticket) => publish.delay_interval = Some(ticket),
                Err(refusal) if from.is_custom() => {
                    keeper.refuse(&from, &publish, &refusal);
                    return Ok(0);
                }
                // Nobody waits for an acknowledgement of it: in memory it goes on.
                Err(refusal) => warn!(topic = &*publish.topic, reason = %refusal, "message is not kept on disk"),
            }
        }
        if is_will {
            keeper.will_published(&from.id);
        }
        let mut count = remote.values().map(Vec::len).sum();
        let mut recipients = Vec::new();
        let mut lost = Lost::new();
        if !local.is_empty() {
            match self.inner.forwards_to(from.clone(), &publish, local, None).await {
                Ok(got) => recipients = got,
                Err((got, not_there)) => (recipients, lost) = (got, not_there),
            }
        }
        // Afterwards: the queue to another node may be full. And not by the routing below ours: it would choose the member of a
        // shared subscription once more, and another one.
        if let Some(elsewhere) = keeper.elsewhere.as_ref().filter(|_| !remote.is_empty()) {
            publish.dup = false;
            elsewhere(from, publish, remote, msg_id).await;
        }
        count += recipients.len();
        if let Some(msg_id) = msg_id
            && !recipients.is_empty()
            && let Err(error) = keeper.scx.extends.message_mgr().await.mark_forwarded(msg_id, recipients).await
        {
            warn!(%error, "message storage did not take down who got a message");
        }
        if lost.is_empty() { Ok(count) } else { Err((count, lost)) }
    }

    /// Sends a message to other nodes once more; they know whether they have it.
    async fn send_again(&self, from: From, mut publish: Publish, message: MessageId, msg_id: Option<MsgID>) {
        let Some(elsewhere) = &self.keeper.elsewhere else { return };
        let (_, remote) = self.relations(&from, &publish).await;
        if !remote.is_empty() {
            (publish.dup, publish.delay_interval) = (true, Some(message as u32));
            elsewhere(from, publish, remote, msg_id).await;
        }
    }

    /// Who gets a message on this node, and who on others.
    async fn relations(&self, from: &From, publish: &Publish) -> (SubRelations, SubRelationsMap) {
        if let Some(target) = &publish.target_clientid {
            let mut options = SubscriptionOptions::default();
            options.set_qos(publish.qos);
            return (vec![(publish.topic.clone(), target.clone(), options, None, None)], SubRelationsMap::default());
        }
        let scx = &self.keeper.scx;
        match scx.extends.router().await.matches(from.id.clone(), &publish.topic).await {
            Ok(mut relations) => {
                let local = relations.remove(&scx.node.id()).unwrap_or_default();
                (local, relations)
            }
            Err(error) => {
                warn!(topic = &*publish.topic, %error, "message cannot be routed");
                (SubRelations::new(), SubRelationsMap::default())
            }
        }
    }
}

#[async_trait]
impl Shared for Keeping {
    fn entry(&self, id: Id) -> Box<dyn Entry> {
        Box::new(KeptEntry::new(self.inner.entry(id), self.keeper.clone()))
    }

    async fn forwards(
        &self,
        msg_id: Option<MsgID>,
        from: From,
        publish: Publish,
    ) -> std::result::Result<ForwardedCount, (ForwardedCount, Lost)> {
        let is_will = matches!(from.typ(), FromType::LastWill);
        if self.keeper.any()
            && from.is_custom()
            && let Some(kept) = self.keeper.same(&from.id)
        {
            kept.live.see();
        }
        if !self.keeper.any() || (publish.qos == QoS::AtMostOnce && !is_will) {
            return self.inner.forwards(msg_id, from, publish).await;
        }
        self.forward_kept(msg_id, from, publish).await
    }

    async fn forwards_to(
        &self,
        from: From,
        publish: &Publish,
        relations: SubRelations,
        msg_id: Option<MsgID>,
    ) -> std::result::Result<ForwardedRecipients, (ForwardedRecipients, Lost)> {
        let recipients = if self.keeper.any() && publish.qos != QoS::AtMostOnce {
            self.keeper.recipients(publish, &relations)
        } else {
            Vec::new()
        };
        let mut publish = publish.clone();
        // From another node: the ticket is that of its arrival, and says nothing to sessions.
        let arrival = publish.delay_interval.take().and_then(|ticket| self.keeper.arriving.get(&ticket).map(|at| *at));
        if !recipients.is_empty() {
            let heard =
                arrival.map(|Arrival { node, boot, number, origin, .. }| Arrived { node, boot, number, origin });
            match self.keeper.commit(&from, &publish, &recipients, Notes { heard, ..Notes::default() }).await {
                Ok(ticket) => publish.delay_interval = Some(ticket),
                Err(refusal) => {
                    warn!(topic = &*publish.topic, reason = %refusal, "message of another node is not kept on disk");
                }
            }
        }
        self.inner.forwards_to(from, &publish, relations, msg_id).await
    }

    fn exist(&self, client_id: &str) -> bool {
        self.inner.exist(client_id)
    }
    async fn forwards_and_get_shareds(
        &self,
        from: From,
        publish: Publish,
    ) -> std::result::Result<(SubRelationsMap, ForwardedRecipients), (ForwardedRecipients, Lost)> {
        self.inner.forwards_and_get_shareds(from, publish).await
    }
    fn iter(&self) -> Box<dyn Iterator<Item = Box<dyn Entry>> + Sync + Send + '_> {
        self.inner.iter()
    }
    fn random_session(&self) -> Option<Session> {
        self.inner.random_session()
    }
    async fn session_status(&self, client_id: &str) -> Option<SessionStatus> {
        self.inner.session_status(client_id).await
    }
    async fn client_states_count(&self) -> usize {
        self.inner.client_states_count().await
    }
    fn sessions_count(&self) -> usize {
        self.inner.sessions_count()
    }
    async fn query_subscriptions(&self, q: &SubsSearchParams) -> Vec<SubsSearchResult> {
        self.inner.query_subscriptions(q).await
    }
    async fn subscriptions_count(&self) -> usize {
        self.inner.subscriptions_count().await
    }
    fn get_grpc_clients(&self) -> GrpcClients {
        self.inner.get_grpc_clients()
    }
    fn grpc_enable(&self) -> bool {
        self.inner.grpc_enable()
    }
    fn node_name(&self, id: NodeId) -> String {
        self.inner.node_name(id)
    }
    async fn check_health(&self) -> Result<HealthInfo> {
        self.inner.check_health().await
    }
    async fn health_status(&self) -> Result<NodeHealthStatus> {
        self.inner.health_status().await
    }
    fn operation_is_busy(&self) -> bool {
        self.inner.operation_is_busy()
    }
    async fn message_load(
        &self,
        client_id: &str,
        topic_filter: &str,
        group: Option<&SharedGroup>,
    ) -> Result<Vec<(MsgID, From, Publish)>> {
        self.inner.message_load(client_id, topic_filter, group).await
    }
    async fn message_load_with(
        &self,
        client_id: &str,
        topic_filter: &str,
        group: Option<&SharedGroup>,
        cb: Arc<dyn MessageLoadCallback>,
    ) -> Result<()> {
        self.inner.message_load_with(client_id, topic_filter, group, cb).await
    }
    async fn retain_load_with(
        &self,
        topic_filter: &TopicFilter,
        cb: Arc<dyn RetainLoadCallback>,
    ) -> Result<Vec<(NodeId, MsgID)>> {
        self.inner.retain_load_with(topic_filter, cb).await
    }
    async fn retain_set_broadcast(
        &self,
        topic: &TopicName,
        retain: &Retain,
        expiry_interval: Option<Duration>,
    ) -> Result<()> {
        self.inner.retain_set_broadcast(topic, retain, expiry_interval).await
    }
    async fn message_mark_forwarded(
        &self,
        from_node_id: NodeId,
        msg_id: MsgID,
        recipients: ForwardedRecipients,
    ) -> Result<()> {
        self.inner.message_mark_forwarded(from_node_id, msg_id, recipients).await
    }
}
