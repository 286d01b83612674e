//! Sessions of persistent clients, with an ear on what no hook tells: PUBREC ([`super::received`]), PUBREL, DISCONNECT.
//!
//! After each packet of its client the engine calls `keepalive` of the session, in the session's own task. A PUBREL leaves no
//! trace at all, and is told from that: every other packet leaves one. PUBRELs come in the order of their PUBRECs
//! (MQTT-4.6.0-4), so it is for the oldest message. Should a client do something unforeseen, a message is remembered longer or
//! shorter than it should be; it takes a reconnect and a message of the same content under the same identifier for that to be
//! noticed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use rmqtt::Result;
use rmqtt::context::ServerContext;
use rmqtt::session::{DefaultSession, SessionLike, SessionManager};
use rmqtt::types::*;

use super::keeper::{Keeper, Live, is_persistent, secs};
use super::received::Received;
use crate::SessionNo;

pub(super) struct KeptSessions(pub(super) Arc<Keeper>);

#[async_trait]
impl SessionManager for KeptSessions {
    async fn create(
        &self,
        id: Id,
        scx: ServerContext,
        listen_cfg: ListenerConfig,
        fitter: FitterType,
        subscriptions: SessionSubs,
        deliver_queue: MessageQueueType,
        outinflight: OutInflightType,
        conn_info: ConnectInfoType,
        created_at: TimestampMillis,
        connected_at: TimestampMillis,
        session_present: bool,
        superuser: bool,
        connected: bool,
        disconnect_info: Option<DisconnectInfo>,
        _last_id: Option<Id>,
    ) -> Result<Arc<dyn SessionLike>> {
        let is_persistent = is_persistent(&conn_info, fitter.session_expiry_interval(None));
        let deliver_queue = match self.0.store.find(&id.client_id).map(|no| self.0.store.under_way(no)) {
            Some(under_way) if is_persistent && under_way > 0 => with_room(&deliver_queue, under_way, &scx),
            _ => deliver_queue,
        };
        let session = DefaultSession::new(
            id.clone(),
            scx,
            listen_cfg,
            subscriptions,
            deliver_queue,
            outinflight,
            conn_info,
            created_at,
            connected_at,
            session_present,
            superuser,
            connected,
            disconnect_info,
        );
        if !is_persistent {
            return Ok(Arc::new(session));
        }
        let live = Arc::new(Live::default());
        self.0.made(&id, live.clone());
        let received = Arc::new(Received { id, live, keeper: self.0.clone() });
        Ok(Arc::new(KeptSession { inner: session, received, fitter }))
    }
}

/// A queue as the engine has made it, with room for more. What was sent and is to be sent again waits in it, too; without room it
/// would be pushed out, though the queue was never full.
fn with_room(queue: &MessageQueueType, more: usize, scx: &ServerContext) -> MessageQueueType {
    let mut roomy = MessageQueue::new(queue.capacity() + more);
    let (pushed, popped) = (scx.clone(), scx.clone());
    roomy.on_push(move || pushed.stats.message_queues.inc());
    roomy.on_pop(move || popped.stats.message_queues.dec());
    Arc::new(roomy)
}

struct KeptSession {
    inner: DefaultSession,
    received: Arc<Received>,
    fitter: FitterType,
}

impl KeptSession {
    fn keeper(&self) -> &Arc<Keeper> {
        &self.received.keeper
    }

    fn no(&self) -> Option<SessionNo> {
        self.keeper().same(self.inner.id()).map(|kept| kept.no)
    }
}

#[async_trait]
impl SessionLike for KeptSession {
    async fn keepalive(&self, ping: IsPing) {
        let Some(no) = self.no() else { return };
        self.received.take_down_late(self.inner.out_inflight()).await;
        let seen = self.received.live.seen.swap(false, Ordering::Relaxed) || ping;
        if !seen {
            self.keeper().released(no, &self.received.live);
        }
        if self.received.live.window.is_wide() {
            self.received.live.window.narrow(&self.inner).await;
        }
        self.received.live.after_packet();
    }

    async fn disconnected_set(&self, d: Option<Disconnect>, reason: Option<Reason>) -> Result<()> {
        self.received.live.see();
        let no = self.no();
        if let Some(no) = no {
            self.keeper().release_rest(no, &self.received.live);
        }
        if let (Some(disconnect), Some(no)) = (&d, no) {
            let expiry_secs = secs(self.fitter.session_expiry_interval(Some(disconnect)));
            self.keeper().store.change(no, |record| {
                record.will_pending = false;
                record.expiry_secs = expiry_secs;
            });
        }
        self.inner.disconnected_set(d, reason).await
    }

    async fn on_drop(&self) -> Result<()> {
        self.keeper().unmade(self.inner.id());
        self.inner.on_drop().await
    }

    fn id(&self) -> &Id {
        self.inner.id()
    }
    fn context(&self) -> &ServerContext {
        self.inner.context()
    }
    fn listen_cfg(&self) -> &ListenerConfig {
        self.inner.listen_cfg()
    }
    fn deliver_queue(&self) -> &MessageQueueType {
        self.inner.deliver_queue()
    }
    fn out_inflight(&self) -> &OutInflightType {
        let window = self.inner.out_inflight();
        self.received.listen(window);
        window
    }
    async fn subscriptions(&self) -> Result<SessionSubs> {
        self.inner.subscriptions().await
    }
    async fn subscriptions_add(
        &self,
        topic_filter: TopicFilter,
        opts: SubscriptionOptions,
    ) -> Result<Option<SubscriptionOptions>> {
        self.inner.subscriptions_add(topic_filter, opts).await
    }
    async fn subscriptions_remove(&self, topic_filter: &str) -> Result<Option<(TopicFilter, SubscriptionOptions)>> {
        self.inner.subscriptions_remove(topic_filter).await
    }
    async fn subscriptions_drain(&self) -> Result<Subscriptions> {
        self.inner.subscriptions_drain().await
    }
    async fn subscriptions_extend(&self, other: Subscriptions) -> Result<()> {
        self.inner.subscriptions_extend(other).await
    }
    async fn created_at(&self) -> Result<TimestampMillis> {
        self.inner.created_at().await
    }
    async fn session_present(&self) -> Result<bool> {
        self.inner.session_present().await
    }
    async fn connect_info(&self) -> Result<Arc<ConnectInfo>> {
        self.inner.connect_info().await
    }
    fn username(&self) -> Option<&UserName> {
        self.inner.username()
    }
    fn password(&self) -> Option<&Password> {
        self.inner.password()
    }
    async fn protocol(&self) -> Result<u8> {
        self.inner.protocol().await
    }
    async fn superuser(&self) -> Result<bool> {
        self.inner.superuser().await
    }
    async fn connected(&self) -> Result<bool> {
        self.inner.connected().await
    }
    async fn connected_at(&self) -> Result<TimestampMillis> {
        self.inner.connected_at().await
    }
    async fn disconnected_at(&self) -> Result<TimestampMillis> {
        self.inner.disconnected_at().await
    }
    async fn disconnected_reasons(&self) -> Result<Vec<Reason>> {
        self.inner.disconnected_reasons().await
    }
    async fn disconnected_reason(&self) -> Result<Reason> {
        self.inner.disconnected_reason().await
    }
    async fn disconnected_reason_has(&self) -> bool {
        self.inner.disconnected_reason_has().await
    }
    async fn disconnected_reason_add(&self, r: Reason) -> Result<()> {
        self.inner.disconnected_reason_add(r).await
    }
    async fn disconnected_reason_take(&self) -> Result<Reason> {
        self.inner.disconnected_reason_take().await
    }
    async fn disconnect(&self) -> Result<Option<Disconnect>> {
        self.inner.disconnect().await
    }
}
