//! What the parts of the adapter share: which sessions are kept, and how a message is committed for them.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ciqadamq_core::{Arrival, MoveTag, OtherMoves, Principals};
use dashmap::DashMap;
use parking_lot::Mutex;
use rmqtt::codec::types::QoS;
use rmqtt::context::ServerContext;
use rmqtt::session::Session;
use rmqtt::shared::Shared;
use rmqtt::types::{ClientId, ConnectInfo, From, FromType, Id, MsgID, Publish, SubRelations, SubRelationsMap};
use rmqtt::utils::timestamp_millis;
use tokio::sync::Notify;
use tracing::{error, warn};

use super::begun::Begun;
use super::codec::{encode_connection, encode_message, encode_options, fingerprint};
use super::dormant::Dormant;
use super::entry::Taking;
use super::hooks;
use super::plugin::Deps;
use super::strays::Judge;
use super::window::Window;
use crate::records::PACKET_IDS;
use crate::{Inbound, MessageId, Millis, Notes, Owner, Recipient, Refusal, SessionNo, SessionRecord, Store};

/// Cuts a client's connection, so that nothing more reaches it.
pub type Cut = Arc<dyn Fn(&Id) + Send + Sync>;

/// Sends a message to the sessions of other nodes that it was routed to, and waits until they have it, as far as that was promised.
pub type Elsewhere = Arc<
    dyn Fn(From, Publish, SubRelationsMap, Option<MsgID>) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>>
        + Send
        + Sync,
>;

pub(super) struct Keeper {
    pub(super) store: Arc<Store>,
    pub(super) scx: ServerContext,
    pub(super) principals: Arc<Principals>,
    /// Message Expiry Interval of messages without one, and the longest
    pub(super) message_expiry: Duration,
    pub(super) cut: Option<Cut>,
    /// in a cluster
    pub(super) elsewhere: Option<Elsewhere>,
    /// in a cluster
    pub(super) other_moves: Option<Arc<dyn OtherMoves>>,
    pub(super) whose: Judge,
    /// Sessions that are in the store and not in use, and since when nothing is heard of them.
    pub(super) strays: DashMap<SessionNo, Instant>,
    /// One of them is known to have come to nothing.
    pub(super) due: Notify,
    /// Sessions of which another node was told that they were not taken here; held by whoever takes one. The last thousand.
    pub(super) denied: Mutex<VecDeque<MoveTag>>,
    /// Retained Messages are kept here too
    pub(super) keeps_retained: bool,
    /// The persistent sessions of this node, by Client Identifier. Bounded by the number of sessions.
    kept: DashMap<ClientId, Kept>,
    /// Sessions that were made and are not set yet, by their id.
    made: DashMap<Id, Arc<Live>>,
    /// Messages of other nodes that are being handed to sessions, by their tickets.
    pub(super) arriving: DashMap<u32, Arrival>,
    /// the session table below ours
    pub(super) inner: std::sync::OnceLock<Arc<dyn Shared>>,
    hooks: tokio::sync::OnceCell<()>,
    any: AtomicBool,
}

/// A persistent session of the engine, and its number in the store.
#[derive(Clone)]
pub(super) struct Kept {
    pub(super) no: SessionNo,
    pub(super) id: Id,
    pub(super) live: Arc<Live>,
}

/// What is known of a session's present connection.
#[derive(Default)]
pub(super) struct Live {
    /// the packet that is being worked on has been seen: it is no PUBREL
    pub(super) seen: AtomicBool,
    /// Packet Identifiers of QoS 2 deliveries without a PUBREC, in their order
    pub(super) awaiting: Mutex<VecDeque<u16>>,
    /// it sleeps since it came back from the disk, or was left without a task
    pub(super) dormant: Mutex<Option<Dormant>>,
    /// whether the engine has begun its task
    pub(super) begun: Begun,
    /// where its deliveries stand that have not ended
    pub(super) window: Window,
    /// how often the engine asks for the window before a PUBREC can be the reason
    harmless: AtomicU8,
    /// Packet Identifiers under which a QoS 2 message came on this connection
    pub(super) here: Mutex<HashSet<u16>>,
    /// it has sent again what it sends again of the connections before
    is_past_resending: AtomicBool,
    /// PUBRELs that are for messages of the connections before
    released_before: AtomicUsize,
    /// the next identifier for a delivery of which the store knows nothing
    spare: AtomicU16,
}

impl Live {
    /// The packet that is being worked on is no PUBREL.
    pub(super) fn see(&self) {
        self.seen.store(true, Ordering::Relaxed);
    }

    /// A packet has been worked on. Before the engine takes the next one it looks whether something in the window is overdue, and
    /// whether there is room.
    pub(super) fn after_packet(&self) {
        self.harmless.store(2, Ordering::Relaxed);
    }

    /// A message has its identifier. The engine puts it into the window, and then does as after a packet.
    pub(super) fn after_delivery(&self) {
        self.harmless.store(3, Ordering::Relaxed);
    }

    /// The engine asks for the window: whether it cannot be for a PUBREC.
    pub(super) fn is_harmless(&self) -> bool {
        self.harmless.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
    }

    /// An identifier that the store never gives out.
    pub(super) fn spare_packet_id(&self) -> u16 {
        let spares = u16::MAX - PACKET_IDS as u16;
        PACKET_IDS as u16 + 1 + self.spare.fetch_add(1, Ordering::Relaxed) % spares
    }
}

/// What a QoS 2 message is that a client has sent.
pub(super) enum Exchange {
    /// nothing to be remembered
    None,
    /// the first time
    New(SessionNo, Inbound),
    /// it was delivered already, as this message
    Repeated(MessageId),
}

impl Keeper {
    pub(super) fn new(scx: ServerContext, deps: Deps) -> Self {
        Self {
            store: deps.store,
            scx,
            principals: deps.principals,
            message_expiry: deps.message_expiry,
            cut: deps.cut,
            elsewhere: deps.elsewhere,
            other_moves: deps.other_moves,
            whose: deps.whose,
            strays: DashMap::new(),
            due: Notify::new(),
            denied: Mutex::default(),
            keeps_retained: deps.retained,
            kept: DashMap::new(),
            made: DashMap::new(),
            arriving: DashMap::new(),
            inner: std::sync::OnceLock::new(),
            hooks: tokio::sync::OnceCell::new(),
            any: AtomicBool::new(false),
        }
    }

    /// Whether there has been a persistent session at all. Without one nothing here costs anything.
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(super) fn kept(&self, client_id: &str) -> Option<Kept> {
        self.kept.get(client_id).map(|kept| kept.value().clone())
    }

    /// The persistent session `id`, and not its successor.
    pub(super) fn same(&self, id: &Id) -> Option<Kept> {
        self.kept.get(&*id.client_id).filter(|kept| kept.id == *id).map(|kept| kept.value().clone())
    }

    /// A session was made; when it is set it will be asked for this.
    pub(super) fn made(&self, id: &Id, live: Arc<Live>) {
        self.made.insert(id.clone(), live);
    }

    /// A session was dropped.
    pub(super) fn unmade(&self, id: &Id) {
        self.made.remove(id);
    }

    /// A session is about to be set: begins it in the store, or goes on with the one that is there.
    pub(super) async fn keep(self: &Arc<Self>, session: &Session, taking: Taking) {
        let id = &session.id;
        if !matches!(taking, Taking::Moved) && self.same(id).is_some() {
            // It is only given another channel.
            return;
        }
        let Some((_, live)) = self.made.remove(id) else {
            // It ends with its connection, and with it whatever was kept under its name.
            return self.forget(&id.client_id);
        };
        let record = match self.record(session).await {
            Ok(record) => record,
            Err(reason) => {
                error!(%id, %reason, "session is not kept");
                return self.forget(&id.client_id);
            }
        };
        self.listen().await;
        // What the client is told with CONNACK: that it has a session of its own, that an old one is gone, that its Will is known.
        let is_promise = record.will_pending || !matches!(taking, Taking::Kept);
        let no = match (self.store.find(&id.client_id), taking) {
            (Some(no), Taking::Kept | Taking::Moved) => {
                self.store.change(no, |old| *old = SessionRecord { created_at: old.created_at, ..record });
                no
            }
            (_, Taking::Subscriptions(subscriptions)) => {
                let no = self.store.begin(record);
                for (filter, options) in subscriptions {
                    match encode_options(&options) {
                        // Its acknowledgement promised nothing, and is long sent.
                        Ok(options) => drop(self.store.subscribe(no, &filter, &options)),
                        Err(reason) => error!(%id, %reason, "subscription is not kept"),
                    }
                }
                no
            }
            _ => self.store.begin(record),
        };
        self.insert(Kept { no, id: id.clone(), live });
        if is_promise && let Err(reason) = self.store.so_far().done().await {
            warn!(%id, %reason, "session is not on disk yet");
        }
    }

    /// A session that was restored is in its place.
    pub(super) async fn restored(self: &Arc<Self>, id: &Id, no: SessionNo) -> Kept {
        self.listen().await;
        let live = self.made.remove(id).map(|(_, live)| live).unwrap_or_default();
        let kept = Kept { no, id: id.clone(), live };
        self.insert(kept.clone());
        kept
    }

    /// Registers the hooks, if it is the first persistent session.
    pub(super) async fn listen(self: &Arc<Self>) {
        self.hooks.get_or_init(|| hooks::add(self)).await;
    }

    pub(super) fn insert(&self, kept: Kept) {
        self.kept.insert(kept.id.client_id.clone(), kept);
        self.there_is_one();
    }

    /// There is a persistent session, in use or not.
    pub(super) fn there_is_one(&self) {
        self.any.store(true, Ordering::Relaxed);
    }

    /// A session is not in use any more; the store has it still.
    pub(super) fn dismiss(&self, id: &Id) -> Option<SessionNo> {
        self.kept.remove_if(&*id.client_id, |_, kept| kept.id == *id).map(|(_, kept)| kept.no)
    }

    /// The login that was to go on with a session has failed: it waits in the store for another one.
    pub(super) fn unclaimed(&self, id: &Id) {
        if let Some(no) = self.dismiss(id) {
            self.wait(no);
        }
    }

    /// The same for a session that the engine does not have any more, whichever login had it last.
    pub(super) fn unclaimed_of(&self, client_id: &str) {
        let before = self.kept.remove(client_id);
        let Some(no) = self.store.find(client_id) else { return };
        self.wait(no);
        if let Some((_, kept)) = before {
            self.unroute(kept.id, no);
        }
    }

    /// Nothing leads to a session any more that is not in the engine: it would go to whoever has the Client Identifier next. Whoever
    /// goes on with the session makes its routes anew.
    fn unroute(&self, id: Id, no: SessionNo) {
        let filters = self.store.session(no).map(|session| session.subscriptions.into_keys().collect::<Vec<_>>());
        // There is none when the process ends.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let scx = self.scx.clone();
        runtime.spawn(async move {
            for filter in filters.unwrap_or_default() {
                let removed = { scx.extends.router().await.remove(&filter, id.clone()).await };
                if let Err(reason) = removed {
                    warn!(%id, %reason, "a route of a session that is not in use could not be removed");
                }
            }
        });
    }

    fn wait(&self, no: SessionNo) {
        let now = timestamp_millis();
        self.store.change(no, |record| {
            record.disconnected_at.get_or_insert(now);
        });
        self.settle_now(no);
    }

    async fn record(&self, session: &Session) -> anyhow::Result<SessionRecord> {
        let id = &session.id;
        let connection = session.connect_info().await?;
        let principal = self.principals.get(&id.client_id);
        let owner = Owner {
            username: id.username.as_ref().map(ToString::to_string),
            userid: principal.as_ref().map(|p| p.userid.to_string()),
            login: principal.as_ref().map_or(0, |p| p.login.0),
        };
        Ok(SessionRecord {
            client_id: id.client_id.to_string(),
            owner,
            connection: encode_connection(&connection)?,
            created_at: session.created_at().await?,
            disconnected_at: None,
            expiry_secs: secs(session.fitter.session_expiry_interval(None)),
            will_pending: connection.last_will().is_some(),
            leaving: None,
            arriving: false,
        })
    }

    /// The session of a Client Identifier is over.
    pub(super) fn forget(&self, client_id: &str) {
        self.kept.remove(client_id);
        if let Some(no) = self.store.find(client_id) {
            self.store.end(no);
        }
    }

    /// The session `id` is over, if it is still that one.
    pub(super) fn forget_same(&self, id: &Id) {
        if let Some((_, kept)) = self.kept.remove_if(&*id.client_id, |_, kept| kept.id == *id) {
            self.store.end(kept.no);
        }
    }

    /// Which persistent sessions a message is for, and how it is delivered to each.
    pub(super) fn recipients(&self, publish: &Publish, relations: &SubRelations) -> Vec<Recipient> {
        let mut recipients = Vec::new();
        for (_, client_id, options, subscription_ids, _) in relations {
            let qos = publish.qos.less_value(options.qos());
            if qos == QoS::AtMostOnce {
                continue;
            }
            if let Some(kept) = self.kept.get(client_id) {
                recipients.push(Recipient {
                    session: kept.no,
                    qos: qos.value(),
                    retain: publish.retain && options.retain_as_published().unwrap_or(false),
                    subscription_ids: subscription_ids.as_ref().map(|ids| ids.iter().map(|id| id.get()).collect()),
                });
            }
        }
        recipients
    }

    /// What a QoS 2 message of a persistent session is.
    pub(super) fn exchange(&self, from: &From, publish: &Publish) -> Exchange {
        if publish.qos != QoS::ExactlyOnce || !matches!(from.typ(), FromType::Custom) {
            return Exchange::None;
        }
        let (Some(packet_id), Some(kept)) = (publish.packet_id, self.same(&from.id)) else { return Exchange::None };
        let packet_id = packet_id.get();
        let hash = fingerprint(publish);
        // On one connection the engine looks after it: what comes here under an identifier of this connection is new, for the
        // one before was released. And what is not marked as sent again was not sent before.
        let is_from_before = publish.dup && !kept.live.here.lock().contains(&packet_id);
        if !publish.dup && !kept.live.is_past_resending.swap(true, Ordering::Relaxed) {
            self.release_others(kept.no, &kept.live);
        }
        kept.live.here.lock().insert(packet_id);
        let known = self.store.inbound(kept.no, packet_id);
        if let Some(inbound) = known.filter(|inbound| is_from_before && inbound.hash == hash) {
            return Exchange::Repeated(inbound.message);
        }
        Exchange::New(kept.no, Inbound { packet_id, hash, message: 0 })
    }

    /// A PUBREL has come, as far as can be told: for the oldest message of this connection. Without one it is for a message of a connection
    /// before. Which is not known yet: it may be sent again because only its PUBCOMP was lost.
    pub(super) fn released(&self, no: SessionNo, live: &Live) {
        let here = live.here.lock();
        match self.store.oldest_inbound(no, |id| here.contains(&id)) {
            Some(oldest) => self.store.released(no, oldest.packet_id),
            None => drop(live.released_before.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// A client sends again what it owes of the connections before, in order, and then what is new (MQTT-4.4.0, MQTT-4.6.0): what has not
    /// come again has been released.
    fn release_others(&self, no: SessionNo, live: &Live) {
        self.release_some(no, live, usize::MAX);
    }

    /// The connection has ended: what has not come again on it was released by as many PUBRELs as have come.
    pub(super) fn release_rest(&self, no: SessionNo, live: &Live) {
        self.release_some(no, live, live.released_before.swap(0, Ordering::Relaxed));
    }

    /// Releases the oldest messages of the connections before.
    fn release_some(&self, no: SessionNo, live: &Live, count: usize) {
        if count > 0 {
            let here = live.here.lock();
            let others = self.store.inbound_ids(no).into_iter().filter(|id| !here.contains(id));
            others.take(count).for_each(|id| self.store.released(no, id));
        }
    }

    /// Keeps a message for its recipients; returns its ticket when it is as durable as promised.
    pub(super) async fn commit(
        &self,
        from: &From,
        publish: &Publish,
        recipients: &[Recipient],
        notes: Notes,
    ) -> Result<u32, Refusal> {
        let message = encode_message(from, publish).map_err(|e| Refusal::Broken(e.to_string()))?;
        // A Will is published and noted as published in one.
        let will_of = matches!(from.typ(), FromType::LastWill).then(|| self.same(&from.id)).flatten();
        let expires_at = self.expires_at(publish);
        let notes = Notes { will_of: will_of.map(|kept| kept.no), ..notes };
        let (number, commit) = self.store.publish_with(&message, expires_at, recipients, notes)?;
        commit.done().await?;
        Ok(number as u32)
    }

    pub(super) fn expires_at(&self, publish: &Publish) -> Millis {
        let interval = publish.properties.as_ref().and_then(|p| p.message_expiry_interval);
        let interval = interval.map_or(self.message_expiry, |i| Duration::from_secs(i.get().into()));
        let created = publish.create_time.unwrap_or_else(timestamp_millis);
        created.saturating_add(interval.as_millis().min(i64::MAX as u128) as i64)
    }

    /// A message could not be kept, after its publish had been let through: its publisher must not hear that it was.
    pub(super) fn refuse(&self, from: &From, publish: &Publish, refusal: &Refusal) {
        warn!(client_id = &*from.client_id, topic = &*publish.topic, reason = %refusal, "publish not acknowledged");
        if let Some(cut) = &self.cut {
            cut(&from.id);
        }
    }

    /// The Will of a session has been published.
    pub(super) fn will_published(&self, id: &Id) {
        if let Some(kept) = self.same(id) {
            self.store.change(kept.no, |record| record.will_pending = false);
        }
    }

    /// The connection of a session has ended.
    pub(super) async fn disconnected(&self, session: &Session) {
        let Some(kept) = self.same(&session.id) else { return };
        let disconnect = session.disconnect().await.ok().flatten();
        let expiry_secs = secs(session.fitter.session_expiry_interval(disconnect.as_ref()));
        let delay = match session.connect_info().await.as_deref() {
            Ok(ConnectInfo::V5(_, connect)) => connect.last_will.as_ref().and_then(|will| will.will_delay_interval_sec),
            _ => None,
        };
        let now = timestamp_millis();
        self.store.change(kept.no, |record| {
            record.disconnected_at = Some(now);
            record.expiry_secs = expiry_secs;
            // Without a delay it was published before this, or is not to be.
            record.will_pending &= disconnect.is_none() && delay.is_some();
        });
    }
}

/// Whether a session outlives its connection.
pub(super) fn is_persistent(connection: &ConnectInfo, expiry: Duration) -> bool {
    match connection {
        ConnectInfo::V3(_, connect) => !connect.clean_session && !expiry.is_zero(),
        ConnectInfo::V5(..) => !expiry.is_zero(),
    }
}

pub(super) fn secs(interval: Duration) -> u32 {
    interval.as_secs().min(u32::MAX.into()) as u32
}
