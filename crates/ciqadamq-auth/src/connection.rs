//! The connection of a session: slowed down when its client sends too fast, and told why when it ends.
//!
//! The engine lets plugins make its sessions. Ours are the engine's own (or those of whatever plugin came before) with two
//! ears: the engine calls `keepalive` after every packet, outside all locks, where a client that owes time to its
//! [`ciqadamq_core::Meter`] is made to wait for it; and it calls `disconnected_reason_add` before it closes the socket, the
//! last moment at which a DISCONNECT reaches the client.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use ciqadamq_core::{MALFORMED, Principal};
use rmqtt::Result;
use rmqtt::codec::error::DecodeError;
use rmqtt::codec::types::MQTT_LEVEL_5;
use rmqtt::codec::v5::{PublishAckReason, ToReasonCode};
use rmqtt::context::ServerContext;
use rmqtt::net::MqttError;
use rmqtt::session::{SessionLike, SessionManager};
use rmqtt::types::*;

use crate::farewell::{Farewells, Word};
use crate::metrics::AuthMetrics;
use crate::ownership::Ownership;
use crate::sessions::{ADMINISTRATIVE_ACTION, SHUTTING_DOWN, Sessions};

/// How the engine's error begins for a packet that no client may send now: a second CONNECT, or one that only servers send.
const UNEXPECTED: &str = "Received an unimplemented message";

/// Longest pause after one packet. A session that is asked to stop while it waits, stops after it.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Makes sessions with ears.
pub(crate) struct Connections {
    inner: Box<dyn SessionManager>,
    parts: Arc<Parts>,
}

struct Parts {
    ownership: Arc<Ownership>,
    sessions: Arc<Sessions>,
    farewells: Arc<Farewells>,
    metrics: Arc<AuthMetrics>,
}

impl Connections {
    pub(crate) fn new(
        inner: Box<dyn SessionManager>,
        ownership: Arc<Ownership>,
        sessions: Arc<Sessions>,
        farewells: Arc<Farewells>,
        metrics: Arc<AuthMetrics>,
    ) -> Self {
        Self { inner, parts: Arc::new(Parts { ownership, sessions, farewells, metrics }) }
    }
}

#[async_trait]
impl SessionManager for Connections {
    fn enable(&self) -> bool {
        self.inner.enable()
    }

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
        last_id: Option<Id>,
    ) -> Result<Arc<dyn SessionLike>> {
        // A login that another plugin let in has none, and is neither slowed down nor counted.
        let principal = self.parts.ownership.expected(&id);
        let speaks_v5 = connected && conn_info.proto_ver() == MQTT_LEVEL_5;
        let inner = self
            .inner
            .create(
                id,
                scx,
                listen_cfg,
                fitter,
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
                last_id,
            )
            .await?;
        Ok(Arc::new(Attended { inner, principal, speaks_v5, told: OnceLock::new(), parts: self.parts.clone() }))
    }
}

struct Attended {
    inner: Arc<dyn SessionLike>,
    principal: Option<Arc<Principal>>,
    speaks_v5: bool,
    /// what the client was told at the end, if it was
    told: OnceLock<u8>,
    parts: Arc<Parts>,
}

/// What a v5 client is told about the end of its connection. `None` if nobody is there to hear it, or somebody else says it.
fn last_word(reason: &Reason) -> Option<u8> {
    match reason {
        Reason::ConnectDisconnect(_)
        | Reason::ConnectRemoteClose
        | Reason::ConnectReadWriteError
        | Reason::ConnectReadWriteTimeout
        // Told by whoever ends a session for good.
        | Reason::ConnectKicked(true)
        | Reason::Unknown => None,
        // Another connection of the same client; the engine would say "not authorized".
        Reason::ConnectKicked(false) => Some(0x8E),
        Reason::Error(text) if **text == *SHUTTING_DOWN => None,
        Reason::Error(text) if text.starts_with(UNEXPECTED) => Some(0x82),
        Reason::Error(text) => Some(malformed(text).unwrap_or(0x80)),
        Reason::MqttError(MqttError::PublishAckReason(_, text)) if **text == *MALFORMED => Some(0x81),
        Reason::MqttError(MqttError::PublishAckReason(code, _)) => Some(match code {
            PublishAckReason::NotAuthorized => 0x87,
            PublishAckReason::TopicNameInvalid => 0x90,
            PublishAckReason::QuotaExceeded => 0x97,
            PublishAckReason::PayloadFormatInvalid => 0x99,
            PublishAckReason::ImplementationSpecificError => 0x83,
            _ => 0x80,
        }),
        Reason::MqttError(MqttError::Decode(error)) => malformed(&error.to_string()),
        Reason::MqttError(
            MqttError::WriteTimeout | MqttError::FlushTimeout | MqttError::CloseTimeout | MqttError::SendPacket(_),
        ) => None,
        other => Some(other.to_reason_code().into()),
    }
}

/// The engine hands decoding errors on as their text.
fn malformed(text: &str) -> Option<u8> {
    use DecodeError::*;
    let is = |errors: &[DecodeError]| errors.iter().any(|error| error.to_string() == text);
    if text.starts_with("Max size exceeded") {
        Some(0x95)
    } else if text.starts_with("io error") {
        None
    } else if is(&[InvalidTopicFilter]) {
        Some(0x8F)
    } else if is(&[InvalidTopicName]) {
        Some(0x90)
    } else if is(&[UnsupportedPacketType, PacketIdRequired, InvalidProtocol]) {
        Some(0x82)
    } else if is(&[InvalidLength, MalformedPacket, Utf8Error, InvalidConnectFlags]) {
        Some(0x81)
    } else {
        None
    }
}

impl Attended {
    async fn say(&self, reason: &Reason) {
        if !self.speaks_v5 {
            return;
        }
        let Some(mut code) = last_word(reason) else { return };
        if self.principal.as_ref().is_some_and(|principal| principal.is_withdrawn()) {
            code = ADMINISTRATIVE_ACTION;
        }
        let Some(connection) = self.parts.sessions.connection(self.inner.id()) else { return };
        if self.told.set(code).is_ok() {
            self.parts.farewells.say(connection, Word::Disconnect(code)).await;
        }
    }
}

#[async_trait]
impl SessionLike for Attended {
    async fn keepalive(&self, ping: IsPing) {
        if let Some(owed) = self.principal.as_ref().and_then(|principal| principal.meter.take_owed()) {
            self.parts.metrics.throttled.inc();
            tokio::time::sleep(owed.min(PAUSE_MAX)).await;
        }
        self.inner.keepalive(ping).await;
    }

    async fn disconnected_reason_add(&self, reason: Reason) -> Result<()> {
        self.say(&reason).await;
        self.inner.disconnected_reason_add(reason).await
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
        self.inner.out_inflight()
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
    async fn disconnected_reason_take(&self) -> Result<Reason> {
        self.inner.disconnected_reason_take().await
    }
    async fn disconnect(&self) -> Result<Option<Disconnect>> {
        self.inner.disconnect().await
    }
    async fn disconnected_set(&self, disconnect: Option<Disconnect>, reason: Option<Reason>) -> Result<()> {
        if disconnect.is_some() {
            if let Some(principal) = &self.principal {
                principal.leave();
            }
            self.parts.ownership.left(self.inner.id());
        }
        self.inner.disconnected_set(disconnect, reason).await
    }
    async fn on_drop(&self) -> Result<()> {
        self.inner.on_drop().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rmqtt::types::Disconnect;

    #[test]
    fn a_client_is_told_what_it_did_and_nobody_is_told_twice() {
        let refused = |code| Reason::MqttError(MqttError::PublishAckReason(code, "".into()));
        for (reason, word) in [
            (Reason::ConnectKicked(false), Some(0x8E)),
            (Reason::ConnectKicked(true), None),
            (Reason::ConnectKeepaliveTimeout, Some(0x8D)),
            (Reason::InflightWindowFull, Some(0x93)),
            (refused(PublishAckReason::NotAuthorized), Some(0x87)),
            (refused(PublishAckReason::QuotaExceeded), Some(0x97)),
            (refused(PublishAckReason::TopicNameInvalid), Some(0x90)),
            (refused(PublishAckReason::PayloadFormatInvalid), Some(0x99)),
            (Reason::ProtocolError("x".into()), Some(0x82)),
            (Reason::ConnectRemoteClose, None),
            (Reason::ConnectDisconnect(Some(Disconnect::V3)), None),
            (Reason::MqttError(MqttError::WriteTimeout), None),
            (Reason::from_static(SHUTTING_DOWN), None),
            (Reason::from(DecodeError::Utf8Error.to_string()), Some(0x81)),
            (Reason::from(DecodeError::MalformedPacket.to_string()), Some(0x81)),
            (Reason::from(DecodeError::MaxSizeExceeded { size: 2, max: 1 }.to_string()), Some(0x95)),
            (Reason::from(DecodeError::InvalidTopicName.to_string()), Some(0x90)),
            (Reason::from("Received an unimplemented message, V5(Connect(..))"), Some(0x82)),
            (Reason::from_static("something else"), Some(0x80)),
        ] {
            assert_eq!(last_word(&reason), word, "{reason:?}");
        }
    }
}
