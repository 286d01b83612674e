//! A [`Shared`] in front of the engine's own: the second line of client-id ownership.
//!
//! The first line is the verdict on the CONNECT. Between that verdict and the moment the engine takes the session over,
//! another user may have connected with the same client id. The engine does the take-over under a lock per client id;
//! this wrapper asks again under that lock, when nothing can change any more, and refuses to hand over a session that
//! belongs to somebody else, and says so to the client, for the engine would answer "server unavailable". The session stays
//! as it was.
//!
//! It is also where a session passes from one connection to the next without losing or reordering what waits for it, see
//! [`crate::handover`], and where a new subscription gets the Retained Messages that are due to it, see [`crate::asked`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use async_trait::async_trait;
use rmqtt::Result;
use rmqtt::grpc::GrpcClients;
use rmqtt::session::Session;
use rmqtt::shared::{Entry, MessageLoadCallback, RetainLoadCallback, Shared};
use rmqtt::types::*;
use rmqtt::utils::timestamp_millis;
use tracing::debug;

use crate::asked;
use crate::handover::{Handovers, OpenHandover, Waiting, divert, forward};
use crate::ownership::{Claim, GUARD_MARK, Ownership};
use crate::passing::Passing;

/// How long a CONNECT waits for another one of the same client id. Bounds the queue at a client id that reconnects
/// faster than it is served.
const LOCK_WAIT: Duration = Duration::from_secs(3);
const LOCK_RETRY: Duration = Duration::from_millis(10);
/// How long a session's task may take to stop, as in the engine.
const STOP_WAIT: Duration = Duration::from_secs(5);
/// How long messages that are being routed are waited for before a session is asked to stop. They wait for the disk at most.
const PASSING_WAIT: Duration = Duration::from_secs(1);
/// How long a session that has ended may take to be removed.
const ENDING_WAIT: Duration = Duration::from_secs(1);

pub(crate) struct Guarded {
    inner: Box<dyn Shared>,
    ownership: Arc<Ownership>,
    handovers: Arc<Handovers>,
    passing: Arc<Passing>,
}

impl Guarded {
    pub(crate) fn new(inner: Box<dyn Shared>, ownership: Arc<Ownership>) -> Self {
        Self { inner, ownership, handovers: Arc::default(), passing: Arc::default() }
    }
}

struct GuardedEntry {
    inner: Box<dyn Entry>,
    ownership: Arc<Ownership>,
    handovers: Arc<Handovers>,
    passing: Arc<Passing>,
    /// Between `kick` and `set`: the session that is being taken over.
    taking: Option<(OpenHandover, Waiting, Subscriptions)>,
}

impl GuardedEntry {
    /// Takes an own session over, with what waits for it.
    ///
    /// New messages are diverted before the session is asked to stop: the engine does not look at what is in an online
    /// session's channel behind that request.
    async fn take_over(&mut self, clear_subscriptions: bool) -> Result<OfflineSession> {
        let handover = self.handovers.open(self.inner.id().client_id.clone());
        let since = Instant::now();
        while let (Some(session), Some(tx)) = (self.inner.session(), self.inner.tx()) {
            if !tx.is_closed() {
                let old = session.id.clone();
                let (diverted, mut diversion) = divert();
                self.inner.set(session.clone(), diverted).await?;
                if !self.passing.all_before(PASSING_WAIT).await {
                    debug!(
                        client_id = &*self.inner.id().client_id,
                        "a session is taken over while messages are routed slowly"
                    );
                }
                let stopped = self.ownership.sessions.hurry(&old, stop(&tx, self.inner.id(), false)).await;
                handover.absorb(&mut diversion);
                if stopped {
                    break;
                }
            }
            // Its task has ended, and the engine is about to remove it: a client that reconnects at once must not be
            // refused for that, nor get the remains of a session that ended with its connection.
            if since.elapsed() >= ENDING_WAIT {
                // Or its CONNACK could not be written. The session store gives back what it is owed up to here; what comes from here on
                // is diverted.
                let (diverted, mut diversion) = divert();
                self.inner.set(session, diverted).await?;
                self.passing.all_before(PASSING_WAIT).await;
                handover.absorb(&mut diversion);
                break;
            }
            tokio::time::sleep(LOCK_RETRY).await;
        }
        let outcome = self.inner.kick(false, clear_subscriptions, false).await?;
        if let OfflineSession::Exist(Some(info)) = &outcome {
            // What the session store has given back may have arrived here, too.
            handover.leave_out(&info.offline_messages);
        }
        match outcome {
            OfflineSession::Exist(Some(mut info)) if self.ownership.is_elsewhere(&self.inner.id()) => {
                // The new session is made on the login's node, which does there what `set` does here.
                info.offline_messages.extend(handover.arrived());
                Ok(OfflineSession::Exist(Some(info)))
            }
            OfflineSession::Exist(Some(mut info)) => {
                self.taking = Some((handover, Waiting::take_out(&mut info), info.subscriptions.clone()));
                Ok(OfflineSession::Exist(Some(info)))
            }
            nothing_to_take_over => Ok(nothing_to_take_over),
        }
    }

    /// Decides what becomes of the session that is there, if one is, for the login that comes; and does it.
    async fn make_way(&mut self, clean_start: bool, clear_subscriptions: bool) -> Result<OfflineSession> {
        let existing = self.inner.session();
        if existing.is_none() && !self.ownership.is_elsewhere(&self.inner.id()) && !self.ownership.has_room() {
            return Err(anyhow!("mqtt.max_connections reached"));
        }
        self.ownership.has_place(&self.inner.id()).await?;
        let claim = self.ownership.claim(&self.inner.id(), existing.as_ref());
        if let (Claim::Own | Claim::OwnWithMoreRights, Some(existing)) = (claim, &existing)
            && came_later(&existing.id, &self.inner.id())
            && existing.connected().await.unwrap_or(false)
        {
            return Err(anyhow!("a later connection of this client is in"));
        }
        match claim {
            Claim::Own if !clean_start => self.take_over(clear_subscriptions).await,
            // Another node may have one.
            Claim::Own if existing.is_none() => self.inner.kick(true, true, false).await,
            // Its subscriptions and its queue may hold what the newcomer may not see: it begins anew.
            Claim::Own | Claim::OwnWithMoreRights => {
                self.replace(false).await?;
                Ok(OfflineSession::Exist(None))
            }
            // Its user lost the right to it; nobody inherits it, not even a new user of the same name.
            Claim::Withdrawn => {
                self.replace(true).await?;
                Ok(OfflineSession::NotExist)
            }
            Claim::Foreign => {
                self.ownership.not_yours(&self.inner.id()).await;
                Err(anyhow!("the client id belongs to another user's session"))
            }
        }
    }

    /// Ends a session without an heir.
    async fn replace(&mut self, is_admin: IsAdmin) -> Result<()> {
        let since = Instant::now();
        loop {
            let old = self.inner.session().map_or_else(|| self.inner.id(), |session| session.id.clone());
            match self.ownership.sessions.hurry(&old, self.inner.kick(true, true, is_admin)).await {
                Err(error) if since.elapsed() >= LOCK_WAIT => return Err(error),
                // It is ending already, and gone a moment later.
                Err(_) => tokio::time::sleep(LOCK_RETRY).await,
                Ok(_) => return Ok(()),
            }
        }
    }
}

/// Whether the session `there` came with a later CONNECT than the one that is let in now: with many logins at once they can
/// overtake each other, and mostly the earlier one's client has given up. Of one node, whose clock says it; if that was set back,
/// nothing is certain.
fn came_later(there: &Id, now_in: &Id) -> bool {
    let is_past = there.create_time <= timestamp_millis();
    there.node_id == now_in.node_id && there.create_time > now_in.create_time && is_past
}

/// Asks a session's task to stop, as the engine would; `false` if there is none any more. `for_good`: nobody takes the
/// session over.
pub(crate) async fn stop(tx: &Tx, by: Id, for_good: bool) -> bool {
    let (answer, stopped) = tokio::sync::oneshot::channel();
    if tx.unbounded_send(Message::Kick(answer, by, for_good, for_good)).is_err() {
        return false;
    }
    match tokio::time::timeout(STOP_WAIT, stopped).await {
        Ok(answer) => answer.is_ok(),
        // Stuck in writing to a client that does not read. It stops when that fails.
        Err(_) => true,
    }
}

#[async_trait]
impl Entry for GuardedEntry {
    async fn try_lock(&self) -> Result<Box<dyn Entry>> {
        if self.ownership.is_unjudged(&self.inner.id()) {
            return Err(anyhow!("the login could not be judged now"));
        }
        let since = Instant::now();
        loop {
            match self.inner.try_lock().await {
                Ok(inner) => {
                    return Ok(Box::new(Self {
                        inner,
                        ownership: self.ownership.clone(),
                        handovers: self.handovers.clone(),
                        passing: self.passing.clone(),
                        taking: None,
                    }));
                }
                Err(error) if since.elapsed() >= LOCK_WAIT => return Err(error),
                Err(_) => tokio::time::sleep(LOCK_RETRY).await,
            }
        }
    }

    async fn kick(
        &mut self,
        clean_start: bool,
        clear_subscriptions: bool,
        is_admin: IsAdmin,
    ) -> Result<OfflineSession> {
        if is_admin {
            return self.inner.kick(clean_start, clear_subscriptions, is_admin).await;
        }
        let outcome = self.make_way(clean_start, clear_subscriptions).await;
        if outcome.is_err() {
            self.ownership.give_up(&self.inner.id());
        }
        outcome
    }

    async fn set(&mut self, session: Session, tx: Tx) -> Result<()> {
        let id = session.id.clone();
        let admission = self.ownership.admit(&id).await?;
        let taking = self.taking.take();
        let handover = match taking {
            Some((handover, waiting, subscriptions)) => {
                // The session's task does it too. Should it never begin, the routes must still be known to be its own.
                session.subscriptions_extend(subscriptions).await?;
                waiting.put_into(&session, &tx).await;
                handover.take(&tx);
                Some(handover)
            }
            None => None,
        };
        self.inner.set(session, tx).await?;
        drop(handover);
        // A change of the user while the session was being set found the principal, but perhaps not yet the session.
        if admission.is_some_and(|principal| principal.is_withdrawn()) {
            self.inner.remove_with(&id).await?;
            self.ownership.forget(&id);
            return Err(anyhow!("the user changed during the login"));
        }
        Ok(())
    }

    fn id(&self) -> Id {
        self.inner.id()
    }
    fn id_same(&self) -> Option<bool> {
        self.inner.id_same()
    }
    async fn remove(&mut self) -> Result<Option<(Session, Tx)>> {
        self.inner.remove().await
    }
    async fn remove_with(&mut self, id: &Id) -> Result<Option<(Session, Tx)>> {
        self.inner.remove_with(id).await
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
        let Some(p) = asked::addressed(|| self.inner.session(), p).await else { return Ok(()) };
        let _passing = self.passing.begin();
        self.inner.publish(from, p).await
    }
    async fn subscriptions(&self) -> Option<Vec<SubsSearchResult>> {
        self.inner.subscriptions().await
    }
}

type Lost = Vec<(To, From, Publish, Reason)>;

impl Guarded {
    /// Messages that found no session: perhaps it is being taken over, or was set a moment later.
    fn second_chance(
        &self,
        count: ForwardedCount,
        lost: Lost,
    ) -> std::result::Result<ForwardedCount, (ForwardedCount, Lost)> {
        let before = lost.len();
        let lost: Lost = lost
            .into_iter()
            .filter_map(|(to, from, publish, reason)| {
                let (from, publish) = self.handovers.keep(&to.client_id, from, publish).err()?;
                let (from, publish) = match self.inner.entry(to.clone()).tx() {
                    Some(tx) => forward(&tx, from, publish).err()?,
                    None => (from, publish),
                };
                Some((to, from, publish, reason))
            })
            .collect();
        let count = count + before - lost.len();
        if lost.is_empty() { Ok(count) } else { Err((count, lost)) }
    }
}

#[async_trait]
impl Shared for Guarded {
    fn entry(&self, id: Id) -> Box<dyn Entry> {
        Box::new(GuardedEntry {
            inner: self.inner.entry(id),
            ownership: self.ownership.clone(),
            handovers: self.handovers.clone(),
            passing: self.passing.clone(),
            taking: None,
        })
    }

    fn exist(&self, client_id: &str) -> bool {
        client_id == GUARD_MARK || self.inner.exist(client_id)
    }
    async fn forwards(
        &self,
        msg_id: Option<MsgID>,
        from: From,
        mut publish: Publish,
    ) -> std::result::Result<ForwardedCount, (ForwardedCount, Vec<(To, From, Publish, Reason)>)> {
        // The engine has no other place for the Subscription Identifiers of those who get it, and a 3.1.1 client sends none.
        publish.properties.get_or_insert_default();
        let metrics = &self.ownership.metrics;
        metrics.received.inc();
        let _passing = self.passing.begin();
        let result = match self.inner.forwards(msg_id, from, publish).await {
            Err((count, lost)) => self.second_chance(count, lost),
            done => done,
        };
        let (Ok(count) | Err((count, _))) = &result;
        metrics.delivered.inc_by(*count as u64);
        result
    }
    async fn forwards_and_get_shareds(
        &self,
        from: From,
        publish: Publish,
    ) -> std::result::Result<
        (SubRelationsMap, ForwardedRecipients),
        (ForwardedRecipients, Vec<(To, From, Publish, Reason)>),
    > {
        let _passing = self.passing.begin();
        self.inner.forwards_and_get_shareds(from, publish).await
    }
    async fn forwards_to(
        &self,
        from: From,
        publish: &Publish,
        relations: SubRelations,
        msg_id: Option<MsgID>,
    ) -> std::result::Result<ForwardedRecipients, (ForwardedRecipients, Vec<(To, From, Publish, Reason)>)> {
        let _passing = self.passing.begin();
        // Also what other nodes send for sessions of this one.
        match self.inner.forwards_to(from, publish, relations, msg_id).await {
            Err((recipients, lost)) => match self.second_chance(0, lost) {
                Ok(_) => Ok(recipients),
                Err((_, lost)) => Err((recipients, lost)),
            },
            done => done,
        }
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
        asked::with(topic_filter.clone(), self.inner.retain_load_with(topic_filter, cb)).await
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
