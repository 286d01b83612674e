//! A [`Shared`] in front of the cluster plugin's own: it waits where that one gives up, and asks where that one guesses.
//!
//! The plugin answers a CONNECT with a refusal the moment its raft has no leader, takes a node that does not answer for one
//! that has no such session, and sends what is published to other nodes through a queue without order. Here an operation is
//! tried again until a deadline, a session of a living node is either handed over or the CONNECT is refused, and a dead
//! node's session is not waited for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use async_trait::async_trait;
use ciqadamq_core::NodeId;
use rmqtt::Result;
use rmqtt::grpc::{GrpcClients, Message, MessageReply};
use rmqtt::retain::RetainSyncMode;
use rmqtt::session::Session;
use rmqtt::shared::{Entry, MessageLoadCallback, RetainLoadCallback, Shared};
use rmqtt::types::*;
use tracing::{debug, warn};

use crate::cluster::Cluster;
use crate::takeover::{Filters, Held, Hold, Verdict, Way};
use crate::wire::{Answer, Ask};

/// The type of the cluster plugin's messages.
pub(crate) const PLUGIN_MESSAGES: u64 = 198;
/// How long an operation waits for the cluster, such as for a new leader. Less than a client's patience with a CONNECT, and
/// than `mqtt.connect_timeout_secs`.
pub(crate) const PATIENCE: Duration = Duration::from_secs(6);
/// Between two tries.
pub(crate) const RETRY: Duration = Duration::from_millis(50);
/// How long one question for a session may take. The owner may have to wait five seconds for a client that does not read.
const HAND_OVER: Duration = Duration::from_secs(6);

/// How long a session that said that it stops may take to do so. One that is stuck in writing to its client takes longer,
/// and is not waited for.
const STOPPING: Duration = Duration::from_secs(1);
const STOPPING_RETRY: Duration = Duration::from_millis(2);

type Lost = Vec<(To, From, Publish, Reason)>;

pub(crate) struct Failover {
    inner: Arc<dyn Shared>,
    cluster: Arc<Cluster>,
}

impl Failover {
    pub(crate) fn new(inner: Arc<dyn Shared>, cluster: Arc<Cluster>) -> Self {
        Self { inner, cluster }
    }
}

/// An operation on one client id.
struct FailoverEntry {
    inner: Box<dyn Entry>,
    shared: Arc<dyn Shared>,
    cluster: Arc<Cluster>,
    /// Set by `try_lock`.
    seat: Option<Seat>,
    /// Messages for the session are held, until its successor is set.
    diverts: bool,
    /// What the successor has subscribed from the session before.
    taken: Subscriptions,
}

/// What holding the lock has changed in the cluster's state: the client id is said to be this login's.
struct Seat {
    /// Whose it was before.
    before: Option<Id>,
    /// The session before is ended or handed over, or there was none.
    cleared: bool,
}

impl FailoverEntry {
    fn client_id(&self) -> ClientId {
        self.inner.id().client_id.clone()
    }

    /// Whether there was a session with this client id, somewhere.
    fn has_predecessor(&self) -> bool {
        self.seat.as_ref().is_some_and(|seat| seat.before.is_some())
    }

    /// A session that was asked to stop has said yes before its channel is closed. Asked again in between it gives no answer,
    /// which the engine takes for a failure.
    async fn wait_stopped(&self, client_id: &ClientId) {
        let since = Instant::now();
        while self.cluster.takeovers.way(client_id) == Way::Diverted
            && self.inner.tx().is_some_and(|tx| !tx.is_closed())
            && since.elapsed() < STOPPING
        {
            tokio::time::sleep(STOPPING_RETRY).await;
        }
    }

    /// Ends the holding of messages, if it was begun here.
    fn undivert(&mut self, to: impl FnOnce(Held)) {
        if std::mem::take(&mut self.diverts) {
            self.cluster.takeovers.undivert(&self.inner.id().client_id, to);
        }
    }

    /// The session gets what is held for it, the one before or its successor. If there is none, that has ended with it.
    fn release(&mut self) {
        let tx = self.inner.tx();
        self.undivert(|held| {
            for (from, publish) in held {
                // A channel that is closed belongs to a session that has ended.
                drop(tx.as_ref().map(|tx| tx.unbounded_send(rmqtt::types::Message::Forward(from, publish))));
            }
        });
    }

    async fn set_patiently(&mut self, session: Session, tx: Tx) -> Result<()> {
        let since = Instant::now();
        loop {
            match self.inner.set(session.clone(), tx.clone()).await {
                Ok(()) => return Ok(()),
                // Somebody came later and has the client id.
                Err(error) if since.elapsed() >= PATIENCE || error.to_string().contains("id not the same") => {
                    return Err(error);
                }
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }

    /// Asks for the session that a login of this node wants.
    async fn take(&mut self, clean_start: bool, clear_subscriptions: bool) -> Result<Verdict> {
        let me = self.cluster.config.node;
        let by = self.inner.id();
        let before = self.seat.as_ref().and_then(|seat| seat.before.as_ref()).map_or(me, |id| id.node_id);
        if before != me && self.cluster.liveness.is_dead(before) {
            debug!(client_id = &*by.client_id, node = before, "the session died with its node");
            return Ok(Verdict::Nothing);
        }
        // The plugin knows for certain which node to ask, we know it as of a moment ago.
        let asked = self.inner.kick(clean_start, clear_subscriptions, false);
        let answer = if before == me {
            asked.await?
        } else {
            tokio::select! {
                answer = asked => answer?,
                () = self.cluster.liveness.died(before) => return Ok(Verdict::Nothing),
            }
        };
        match Verdict::decode(answer) {
            Some(Verdict::Ask(node)) => self.ask(node, &by, clean_start).await,
            Some(verdict) => Ok(verdict),
            None => match self.cluster.takeovers.displaced(&by.client_id) {
                Some(node) => self.ask(node, &by, clean_start).await,
                None if before != me => self.ask(before, &by, clean_start).await,
                None => Ok(Verdict::Nothing),
            },
        }
    }

    /// Asks for a session that left a node and has not arrived, or that nobody has touched.
    async fn find_stray(&self, clean_start: bool) -> Result<Verdict> {
        let by = self.inner.id();
        let liveness = &self.cluster.liveness;
        // A login that died with its node may have taken the place of a session that nobody has touched.
        let nodes = if self.has_predecessor() { liveness.others_alive() } else { liveness.others_with_strays() };
        for node in nodes {
            if self.keeps(node, &by.client_id).await?
                && let verdict @ (Verdict::Session(_) | Verdict::Refused(_)) = self.ask(node, &by, clean_start).await?
            {
                return Ok(verdict);
            }
        }
        Ok(Verdict::Nothing)
    }

    /// Asks a node until it says whether it has a session, or is dead. It is known to answer this kind of question.
    async fn keeps(&self, node: NodeId, client_id: &ClientId) -> Result<bool> {
        let since = Instant::now();
        loop {
            let asked = self.cluster.ask(node, Ask::Keeps { client_id: client_id.to_string() });
            let answer = tokio::select! {
                answer = asked => answer,
                () = self.cluster.liveness.died(node) => return Ok(false),
            };
            match answer {
                Ok(Answer::Keeps(keeps)) => return Ok(keeps),
                Ok(other) => bail!("an answer that is none: {other:?}"),
                Err(error) if since.elapsed() >= PATIENCE => return Err(error),
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }

    /// The session that is here after all: its place was a login's that came to nothing.
    async fn take_own(&self, clean_start: bool, clear_subscriptions: bool) -> Result<Verdict> {
        if self.inner.session().is_none() {
            return Ok(Verdict::Nothing);
        }
        let answer = self.shared.entry(self.inner.id()).kick(clean_start, clear_subscriptions, false).await?;
        Ok(Verdict::decode(answer).unwrap_or(Verdict::Nothing))
    }

    /// Asks a node until it answers or is dead.
    async fn ask(&self, node: NodeId, by: &Id, clean_start: bool) -> Result<Verdict> {
        let since = Instant::now();
        let (mut node, mut hops) = (node, 0);
        while since.elapsed() < PATIENCE {
            if node == self.cluster.config.node || hops > self.cluster.config.nodes.len() {
                return Ok(Verdict::Nothing);
            }
            let asked = self.cluster.kick(&*self.shared, node, by, clean_start, HAND_OVER);
            let answer = tokio::select! {
                answer = asked => answer,
                () = self.cluster.liveness.died(node) => return Ok(Verdict::Nothing),
            };
            match answer {
                Ok(Some(Verdict::Ask(next))) => {
                    node = next;
                    hops += 1;
                }
                Ok(Some(verdict)) => return Ok(verdict),
                // The engine's own answer: the node is not so far that it can be asked.
                Ok(None) => tokio::time::sleep(RETRY).await,
                Err(error) => {
                    debug!(node, %error, "no answer to the question for a session");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
        bail!("node {node}, which has the session, does not answer")
    }
}

#[async_trait]
impl Entry for FailoverEntry {
    async fn try_lock(&self) -> Result<Box<dyn Entry>> {
        let (id, since) = (self.inner.id(), Instant::now());
        if let Some(why) = self.cluster.refuses() {
            bail!("{why}");
        }
        let mut first = None;
        loop {
            let before = self.shared.session_status(&id.client_id).await.map(|status| status.id);
            // A try of ours may have succeeded without an answer: then it is our own id that stands there.
            if before.as_ref() != Some(&id) {
                first = before;
            }
            match self.inner.try_lock().await {
                Ok(inner) => {
                    return Ok(Box::new(Self {
                        inner,
                        shared: self.shared.clone(),
                        cluster: self.cluster.clone(),
                        seat: Some(Seat { before: first, cleared: false }),
                        diverts: false,
                        taken: Subscriptions::new(),
                    }));
                }
                Err(error) if since.elapsed() >= PATIENCE => return Err(error),
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }

    async fn kick(
        &mut self,
        clean_start: bool,
        clear_subscriptions: bool,
        is_admin: IsAdmin,
    ) -> Result<OfflineSession> {
        let by = self.inner.id();
        let client_id = by.client_id.clone();
        self.wait_stopped(&client_id).await;
        if is_admin || self.seat.is_none() {
            // Either to end a session of this node, or on behalf of a login of another one.
            let mut result = self.inner.kick(clean_start, clear_subscriptions, is_admin).await;
            self.cluster.subscribed.note(&*self.inner);
            if let Ok(OfflineSession::Exist(Some(info))) = &mut result {
                if by.node_id != self.cluster.config.node {
                    // First: what is not held any more follows the session.
                    self.cluster.takeovers.move_to(&client_id, by.node_id, filters(&info.subscriptions));
                }
                self.undivert(|held| info.offline_messages.extend(held));
            } else {
                self.release();
            }
            if let (Ok(_), Some(seat)) = (&result, &mut self.seat) {
                seat.cleared = true;
            }
            return result;
        }
        if self.has_predecessor() && self.cluster.takeovers.expect(&client_id) {
            self.diverts = true;
        }
        self.cluster.takeovers.stop_following(&client_id);
        let mut verdict = self.take(clean_start, clear_subscriptions).await;
        // It may be where it was, on this node or another one, or have been on its way to a node that has died.
        if matches!(verdict, Ok(Verdict::Nothing)) {
            verdict = self.take_own(clean_start, clear_subscriptions).await;
        }
        if matches!(verdict, Ok(Verdict::Nothing)) {
            verdict = self.find_stray(clean_start).await;
        }
        self.cluster.subscribed.note(&*self.inner);
        match &mut verdict {
            Ok(Verdict::Session(info)) => {
                // What arrives from here on is held until the successor is set.
                let held = self.cluster.takeovers.has_come(&client_id, filters(&info.subscriptions));
                info.offline_messages.extend(held);
                if info.id.node_id != by.node_id {
                    self.cluster.heirs.note(info);
                }
                self.taken.clone_from(&info.subscriptions);
            }
            // It has ended, and what was for it too; or it stays what it was.
            _ => self.release(),
        }
        let answer = match verdict? {
            Verdict::Session(info) => OfflineSession::Exist(Some(*info)),
            Verdict::Ended => OfflineSession::Exist(None),
            Verdict::Nothing | Verdict::Ask(_) => OfflineSession::NotExist,
            Verdict::Refused(why) => bail!("{why}"),
        };
        if let Some(seat) = &mut self.seat {
            seat.cleared = true;
        }
        Ok(answer)
    }

    async fn set(&mut self, session: Session, tx: Tx) -> Result<()> {
        let client_id = self.client_id();
        let subscribed = session.subscriptions().await?;
        if session.id != self.inner.id() {
            // The session before, with a channel in the place of its own: that is a matter of this node alone, and the
            // cluster would refuse it.
            self.diverts = true;
            let filters = subscribed.read().await.keys().cloned().collect();
            self.cluster.takeovers.divert(&client_id, filters).await;
            return Ok(());
        }
        let taken = std::mem::take(&mut self.taken);
        if subscribed.read().await.is_empty() {
            // Its task will do it, too late for what arrives before.
            session.subscriptions_extend(taken).await?;
        }
        // From here on what arrives is judged by what this session has subscribed, before it can be reached. What was judged by the
        // session before has arrived when it can.
        self.cluster.subscribed.expect(&client_id, subscribed);
        if self.has_predecessor() {
            self.cluster.takeovers.deliveries_done().await;
        }
        self.cluster.takeovers.begin_setting(&client_id);
        let set = self.set_patiently(session, tx).await;
        self.cluster.subscribed.note(&*self.inner);
        self.cluster.takeovers.end_setting(&client_id);
        set?;
        if let Some(seat) = &mut self.seat {
            seat.cleared = true;
        }
        self.release();
        self.cluster.takeovers.settle(&client_id);
        Ok(())
    }

    fn id(&self) -> Id {
        self.inner.id()
    }
    fn id_same(&self) -> Option<bool> {
        self.inner.id_same()
    }
    async fn remove(&mut self) -> Result<Option<(Session, Tx)>> {
        let removed = self.inner.remove().await;
        self.cluster.subscribed.note(&*self.inner);
        removed
    }
    async fn remove_with(&mut self, id: &Id) -> Result<Option<(Session, Tx)>> {
        let removed = self.inner.remove_with(id).await;
        self.cluster.subscribed.note(&*self.inner);
        removed
    }
    async fn online(&self) -> bool {
        self.inner.online().await
    }
    async fn is_connected(&self) -> bool {
        self.inner.is_connected().await
    }
    fn session(&self) -> Option<Session> {
        self.inner.session()
    }
    fn exist(&self) -> bool {
        self.inner.exist()
    }
    fn tx(&self) -> Option<Tx> {
        self.inner.tx()
    }
    async fn subscribe(&self, subscribe: &Subscribe) -> Result<SubscribeReturn> {
        self.inner.subscribe(subscribe).await
    }
    async fn unsubscribe(&self, unsubscribe: &Unsubscribe) -> Result<bool> {
        self.inner.unsubscribe(unsubscribe).await
    }
    async fn publish(&self, from: From, p: Publish) -> std::result::Result<(), (From, Publish, Reason)> {
        self.inner.publish(from, p).await
    }
    async fn subscriptions(&self) -> Option<Vec<SubsSearchResult>> {
        self.inner.subscriptions().await
    }
}

impl Drop for FailoverEntry {
    /// A login that got the lock and no session has put itself in the place of the session before, in the cluster's state.
    fn drop(&mut self) {
        self.release();
        let Some(Seat { before: Some(before), cleared: false }) = self.seat.take() else { return };
        let client_id = before.client_id.clone();
        if before.node_id != self.cluster.config.node {
            self.cluster.takeovers.displace(&client_id, before.node_id);
        }
        let (cluster, owner) = (self.cluster.clone(), before.node_id);
        tokio::spawn(async move {
            let ask = Ask::Reclaim { client_id: client_id.to_string() };
            if let Err(error) = cluster.ask(owner, ask).await {
                debug!(node = owner, %error, "a session's place could not be given back");
            }
        });
    }
}

fn filters(subscriptions: &Subscriptions) -> Filters {
    subscriptions.iter().map(|(filter, _)| filter.clone()).collect()
}

/// A message as the engine gives it to one subscriber.
fn addressed(publish: &Publish, relation: &SubRelation) -> Publish {
    let (_, _, opts, sub_ids, _) = relation;
    let mut publish = publish.clone();
    publish.dup = false;
    publish.retain = publish.retain && opts.retain_as_published().unwrap_or(false);
    publish.qos = publish.qos.less_value(opts.qos());
    publish.packet_id = None;
    if let (Some(sub_ids), Some(properties)) = (sub_ids, &mut publish.properties) {
        properties.subscription_ids = sub_ids.clone();
    }
    publish
}

impl Failover {
    /// A message for a session on its way to another node, or to a new connection.
    async fn forward_moving(&self, from: &From, publish: &Publish, relation: SubRelation, lost: &mut Lost) {
        let takeovers = &self.cluster.takeovers;
        let client_id = relation.1.clone();
        let message = || (from.clone(), addressed(publish, &relation));
        let reason = loop {
            match takeovers.way(&client_id) {
                Way::To(node) => return self.cluster.send_on(node, from, publish, vec![relation], None).await,
                Way::Diverted => match takeovers.hold(&client_id, message) {
                    Hold::Done => return,
                    Hold::NotDiverted => {}
                    Hold::TooMany => break Reason::from_static("too many messages during a takeover"),
                },
                // The takeover has just come to its end: whoever caused it keeps the message for the new session.
                Way::Straight => break Reason::from_static("the session is being taken over"),
            }
        };
        let (from, publish) = message();
        lost.push((To::from(0, client_id), from, publish, reason));
    }
}

#[async_trait]
impl Shared for Failover {
    fn entry(&self, id: Id) -> Box<dyn Entry> {
        Box::new(FailoverEntry {
            inner: self.inner.entry(id),
            shared: self.inner.clone(),
            cluster: self.cluster.clone(),
            seat: None,
            diverts: false,
            taken: Subscriptions::new(),
        })
    }
    fn exist(&self, client_id: &str) -> bool {
        self.inner.exist(client_id)
    }
    async fn forwards(
        &self,
        msg_id: Option<MsgID>,
        from: From,
        publish: Publish,
    ) -> std::result::Result<ForwardedCount, (ForwardedCount, Lost)> {
        if publish.target_clientid.is_some() {
            return self.inner.forwards(msg_id, from, publish).await;
        }
        let me = self.cluster.config.node;
        let matches = { self.cluster.scx.extends.router().await.matches(from.id.clone(), &publish.topic).await };
        let mut relations = match matches {
            Ok(relations) => relations,
            Err(error) => {
                warn!(%error, "a published topic could not be routed");
                SubRelationsMap::default()
            }
        };
        let count: usize = relations.values().map(Vec::len).sum();
        let mut lost = Lost::new();
        // First those of this node: the queue to another one may be full.
        if let Some(local) = relations.remove(&me) {
            match self.forwards_to(from.clone(), &publish, local, msg_id).await {
                Ok(recipients) => {
                    if let Some(msg_id) = msg_id
                        && let Err(error) = self.inner.message_mark_forwarded(me, msg_id, recipients).await
                    {
                        warn!(%error, "a stored message could not be marked as forwarded");
                    }
                }
                Err((_, not_there)) => lost = not_there,
            }
        }
        self.cluster.forward_all(&from, &publish, relations, msg_id).await;
        if lost.is_empty() { Ok(count) } else { Err((count, lost)) }
    }
    async fn forwards_and_get_shareds(
        &self,
        from: From,
        publish: Publish,
    ) -> std::result::Result<(SubRelationsMap, ForwardedRecipients), (ForwardedRecipients, Lost)> {
        self.inner.forwards_and_get_shareds(from, publish).await
    }
    async fn forwards_to(
        &self,
        from: From,
        publish: &Publish,
        relations: SubRelations,
        msg_id: Option<MsgID>,
    ) -> std::result::Result<ForwardedRecipients, (ForwardedRecipients, Lost)> {
        let takeovers = &self.cluster.takeovers;
        // Held over an await which waits for nothing, but for a place in the engine's own queue where it stores messages.
        let delivery = takeovers.delivering().await;
        let is_idle = takeovers.is_idle();
        let (mut straight, mut moving) = (SubRelations::with_capacity(relations.len()), SubRelations::new());
        for relation in relations {
            if !is_idle && takeovers.way(&relation.1) != Way::Straight {
                moving.push(relation);
            // Once more: the session may be another one since the message was kept on the disk.
            } else if self.cluster.is_fresh(publish, &relation).await {
                straight.push(relation);
            }
        }
        let (recipients, mut lost) = match self.inner.forwards_to(from.clone(), publish, straight, msg_id).await {
            Ok(recipients) => (recipients, Lost::new()),
            Err((recipients, lost)) => (recipients, lost),
        };
        drop(delivery);
        for relation in moving {
            self.forward_moving(&from, publish, relation, &mut lost).await;
        }
        if lost.is_empty() { Ok(recipients) } else { Err((recipients, lost)) }
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
    fn node_name(&self, id: rmqtt::types::NodeId) -> String {
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
    ) -> Result<Vec<(rmqtt::types::NodeId, MsgID)>> {
        self.inner.retain_load_with(topic_filter, cb).await
    }
    async fn retain_set_broadcast(
        &self,
        topic: &TopicName,
        retain: &Retain,
        expiry_interval: Option<Duration>,
    ) -> Result<()> {
        let mode = { self.cluster.scx.extends.retain().await.retain_sync_mode() };
        if !matches!(mode, RetainSyncMode::Full) {
            return self.inner.retain_set_broadcast(topic, retain, expiry_interval).await;
        }
        let mut retain = retain.clone();
        if let Some(since) = self.cluster.retained.get().and_then(|retained| retained.since(topic)) {
            // When it counts as published, see there: the others have to find the same order.
            retain.publish.create_time = retain.publish.create_time.max(Some(since));
        }
        // In order behind what was published before: the engine's own way lets a message overtake its removal.
        let message = Message::SetRetain(topic.clone(), retain, expiry_interval);
        for (node, _) in self.cluster.links.all() {
            if let Err(reason) = self.cluster.links.send(node, &message).await {
                self.cluster.metrics.dropped.inc();
                debug!(node, reason, "a retained message for another node dropped");
            }
        }
        Ok(())
    }
    async fn message_mark_forwarded(
        &self,
        from_node_id: rmqtt::types::NodeId,
        msg_id: MsgID,
        recipients: ForwardedRecipients,
    ) -> Result<()> {
        self.inner.message_mark_forwarded(from_node_id, msg_id, recipients).await
    }
}

impl Cluster {
    /// Puts messages for sessions of another node into the queue to it; gives the number there, or `None` if there is no room, and
    /// whom they are for.
    pub(crate) async fn forward(
        &self,
        node: NodeId,
        from: From,
        publish: Publish,
        relations: SubRelations,
        msg_id: Option<MsgID>,
    ) -> (Option<u64>, SubRelations) {
        let count = relations.len() as u64;
        // `delay_interval` stays: by what the session store of this node knows the message, the other one knows it again.
        let message = Message::ForwardsTo(from, publish, relations, msg_id);
        let number = match self.links.send(node, &message).await {
            Ok(number) => {
                self.metrics.forwarded.inc_by(count);
                Some(number)
            }
            Err(reason) => {
                self.metrics.dropped.inc_by(count);
                debug!(node, reason, "messages for another node dropped");
                None
            }
        };
        match message {
            Message::ForwardsTo(_, _, relations, _) => (number, relations),
            _ => unreachable!("it was made above"),
        }
    }

    /// Asks another node to give a session up for a login of this one.
    pub(crate) async fn kick(
        &self,
        shared: &dyn Shared,
        node: NodeId,
        by: &Id,
        clean_start: bool,
        timeout: Duration,
    ) -> Result<Option<Verdict>> {
        let clients = shared.get_grpc_clients();
        let (_, client) = clients.get(&node).ok_or_else(|| anyhow!("node {node} is not known"))?;
        let message = Message::Kick(by.clone(), clean_start, clean_start, false);
        match client.clone().send_message(PLUGIN_MESSAGES, message, Some(timeout)).await? {
            MessageReply::Kick(answer) => Ok(Verdict::decode(answer)),
            MessageReply::Error(error) => Err(anyhow!(error)),
            other => Err(anyhow!("an answer that is none: {other:?}")),
        }
    }
}
