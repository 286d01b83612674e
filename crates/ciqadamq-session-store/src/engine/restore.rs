//! Sessions from the disk, back into the engine, before its listeners open.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rmqtt::codec::types::{Publish as Packet, QoS};
use rmqtt::inflight::{MomentStatus, OutInflightMessage};
use rmqtt::session::{OfflineInfo, Session, SessionState as EngineSession};
use rmqtt::shared::Entry;
use rmqtt::types::{
    ClientId, ConnectInfo, DisconnectInfo, From, Id, ListenerConfig, Publish, SessionSubMap, SessionSubs, Subscriptions,
};
use rmqtt::utils::timestamp_millis;
use tokio::task::block_in_place;
use tracing::{info, warn};

use super::codec::{Decoder, decode_connection, decode_options};
use super::dormant::{self, Dormant};
use super::plugin::SessionKeeper;
use super::strays::long_ago;
use crate::{Owed, Owner, SessionNo, SessionRecord, SessionState, Stage, Store};

/// Whether an owner still has the right to its session; if so, whoever looks after rights knows the session from now on.
pub type Adopt = Arc<dyn Fn(&Owner, &Id) -> bool + Send + Sync>;

/// What became of the sessions on the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restored {
    /// are there again
    pub sessions: usize,
    /// messages that wait in them
    pub messages: usize,
    /// ended while the broker was down
    pub expired: usize,
    /// their owners lost the right to them
    pub withdrawn: usize,
    /// could not be read
    pub failed: usize,
}

impl SessionKeeper {
    /// Puts all sessions back. After everything is registered, and before a listener accepts.
    pub async fn restore(&self, adopt: Adopt) -> anyhow::Result<Restored> {
        let began = Instant::now();
        let store = &self.keeper.store;
        let mut outcome = Restored::default();
        let (mut with_will, mut others) = (Vec::new(), Vec::new());
        for no in store.sessions() {
            self.keeper.there_is_one();
            let pending = store.session(no).is_some_and(|session| session.record.will_pending);
            if pending { with_will.push(no) } else { others.push(no) }
        }
        // Those with a Will last: it may be for the others.
        for no in others.into_iter().chain(with_will) {
            let Some(state) = store.session(no) else { continue };
            let now = timestamp_millis();
            if state.record.expires_at().is_some_and(|at| at <= now) && !state.record.will_pending {
                outcome.expired += 1;
                store.end(no);
                continue;
            }
            if state.record.arriving {
                store.end(no);
                continue;
            }
            if state.record.connection.is_empty() {
                // It was just coming from another node; its client will take it from the store.
                self.keeper.strays.insert(no, Instant::now());
                continue;
            }
            if state.record.leaving.is_some() {
                self.keeper.strays.insert(no, long_ago());
                continue;
            }
            let client_id = state.record.client_id.clone();
            if self.keeper.other_moves.as_ref().is_some_and(|others| others.has_place(&client_id)) {
                // Its client has begun anew on another node, or a login there has come to nothing. Nobody waits for the answer.
                self.keeper.settle_now(no);
                continue;
            }
            match self.restore_one(no, state, &adopt, None).await {
                Ok(Some(messages)) => {
                    outcome.sessions += 1;
                    outcome.messages += messages;
                }
                Ok(None) => {
                    outcome.withdrawn += 1;
                    store.end(no);
                }
                Err(error) => {
                    warn!(client_id, %error, "session not restored; it stays on the disk");
                    outcome.failed += 1;
                }
            }
        }
        info!(
            sessions = outcome.sessions,
            messages = outcome.messages,
            expired = outcome.expired,
            withdrawn = outcome.withdrawn,
            failed = outcome.failed,
            seconds = began.elapsed().as_secs_f64(),
            "sessions restored"
        );
        Ok(outcome)
    }

    /// Puts a session back whose place another node or a login may hold, which does not have it. `false` if nobody has the right to
    /// it.
    ///
    /// # Errors
    /// If it is not what it was before its place was this node's: then a login has taken it.
    pub(super) async fn restore_contested(
        &self,
        no: SessionNo,
        before: &SessionRecord,
        adopt: &Adopt,
    ) -> anyhow::Result<bool> {
        let (_, id) = self.connection(before)?;
        let place = self.place(&id).await?;
        let state = self.keeper.store.session(no).filter(|state| state.record.leaving == before.leaving);
        let mut state = state.context("a login has taken it")?;
        state.record.leaving = None;
        Ok(self.restore_one(no, state, adopt, Some(place)).await?.is_some())
    }

    /// How the client of a session was connected, and who it is from now on.
    fn connection(&self, record: &SessionRecord) -> anyhow::Result<(ConnectInfo, Id)> {
        let connection =
            decode_connection(&record.connection).context("its connection was written by another version")?;
        let old = connection.id().clone();
        let id = Id::new(
            self.keeper.scx.node.id(),
            old.lid,
            old.local_addr,
            old.remote_addr,
            ClientId::from(record.client_id.as_str()),
            record.owner.username.as_deref().map(Into::into),
        );
        Ok((connection, id))
    }

    async fn restore_one(
        &self,
        no: SessionNo,
        state: SessionState,
        adopt: &Adopt,
        place: Option<Box<dyn Entry>>,
    ) -> anyhow::Result<Option<usize>> {
        let now = timestamp_millis();
        let scx = &self.keeper.scx;
        let store = &self.keeper.store;
        let record = &state.record;
        let (connection, id) = self.connection(record)?;
        // Who holds a place holds it under this name.
        let id = place.as_ref().map_or(id, |place| place.id());
        if !adopt(&record.owner, &id) {
            return Ok(None);
        }
        let gone = (now - record.disconnected_at.unwrap_or(now)).max(0);
        let left = Duration::from_secs(record.expiry_secs.into()).saturating_sub(Duration::from_millis(gone as u64));
        let connection = Arc::new(reduced(connection, id.clone(), record.expiry_secs, record.will_pending, gone));
        let listener = self.listener(id.lid)?;
        let fitter = scx.extends.fitter_mgr().await.create(connection.clone(), id.clone(), listener.clone());
        let (max_queue, max_inflight) = (fitter.max_mqueue_len(), fitter.max_inflight());
        let subscriptions = subscriptions(&state);
        let session = Session::new(
            id.clone(),
            scx.clone(),
            max_queue,
            listener,
            fitter,
            None,
            max_inflight,
            record.created_at,
            connection,
            false,
            false,
            false,
            record.disconnected_at.unwrap_or(now),
            SessionSubs::from(subscriptions.iter().cloned().collect::<SessionSubMap>()),
            Some(DisconnectInfo::new(record.disconnected_at.unwrap_or(now))),
            None,
        )
        .await?;
        // More than a queue takes: the oldest go, as they would have gone.
        let waiting = state.queue.iter().filter(|owed| owed.stage == Stage::Queued);
        let surplus = waiting.clone().count().saturating_sub(session.deliver_queue().capacity());
        waiting.take(surplus).for_each(|owed| store.drop_queued(no, owed.message as u32));
        // First this: its Will may be published at once.
        let kept = self.keeper.restored(&id, no).await;
        *kept.live.dormant.lock() = Some(Dormant::new(store));
        let tx = if record.will_pending {
            // The engine knows when it is due, and how it is published.
            EngineSession::offline_restart(session.clone(), left).await?
        } else {
            dormant::stand_in(self.keeper.clone(), kept, &session, left)
        };
        match place {
            Some(mut place) => {
                if let Err(error) = place.set(session, tx).await {
                    self.keeper.dismiss(&id);
                    return Err(error);
                }
            }
            None => self.set(session, tx).await?,
        }
        for (filter, options) in subscriptions {
            scx.extends.router().await.add(&filter, id.clone(), options).await?;
        }
        Ok(Some(state.queue.len() - surplus))
    }

    fn listener(&self, lid: u16) -> anyhow::Result<ListenerConfig> {
        let all = &self.keeper.scx.listen_cfgs;
        let same = all.get(&lid).map(|cfg| cfg.value().clone());
        // The listener it came through may be gone; they all have the same limits.
        let any = || all.iter().next().map(|cfg| cfg.value().clone());
        same.or_else(any).ok_or_else(|| anyhow::anyhow!("there is no listener"))
    }
}

/// The connection as it counts for an offline session: its Will only if that is still to be published, with what is left of its
/// delay.
fn reduced(connection: ConnectInfo, id: Id, expiry_secs: u32, will_pending: bool, gone: i64) -> ConnectInfo {
    match connection {
        ConnectInfo::V3(_, mut connect) => {
            connect.last_will = connect.last_will.filter(|_| will_pending);
            ConnectInfo::V3(id, connect)
        }
        ConnectInfo::V5(_, mut connect) => {
            connect.session_expiry_interval_secs = expiry_secs;
            connect.last_will = connect.last_will.filter(|_| will_pending);
            if let Some(will) = &mut connect.last_will
                && let Some(delay) = &mut will.will_delay_interval_sec
            {
                *delay = delay.saturating_sub((gone / 1000).min(u32::MAX.into()) as u32);
            }
            ConnectInfo::V5(id, connect)
        }
    }
}

fn subscriptions(state: &SessionState) -> Subscriptions {
    let all = state.subscriptions.iter();
    all.filter_map(|(filter, options)| Some((filter.as_str().into(), decode_options(options)?))).collect()
}

/// All that waits in a session, for a client that goes on with it.
pub(super) fn offline_info(store: &Store, state: SessionState, by: Id) -> OfflineInfo {
    let mut decoder = Decoder::default();
    let sent = state.queue.iter().filter(|owed| owed.stage != Stage::Queued);
    let waiting = state.queue.iter().filter(|owed| owed.stage == Stage::Queued);
    let (inflight_messages, offline_messages) = reading(|| {
        let sent = sent.filter_map(|owed| inflight(store, &mut decoder, owed)).collect();
        (sent, waiting.filter_map(|owed| queued(store, &mut decoder, owed)).collect())
    });
    OfflineInfo {
        id: by,
        subscriptions: subscriptions(&state),
        inflight_messages,
        offline_messages,
        created_at: state.record.created_at,
    }
}

/// Reads messages of the store in a task: from the disk, and what is on its way there is waited for.
pub(super) fn reading<T>(read: impl FnOnce() -> T) -> T {
    block_in_place(read)
}

/// A message that waits.
pub(super) fn queued(store: &Store, decoder: &mut Decoder, owed: &Owed) -> Option<(From, Publish)> {
    let bytes = store.message(owed.message)?;
    let Some((from, mut publish)) = decoder.message(&bytes) else {
        warn!(message = owed.message, "stored message was written by another version");
        return None;
    };
    publish.delay_interval = Some(owed.message as u32);
    publish.dup = false;
    publish.retain = owed.retain;
    publish.packet_id = None;
    publish.qos = if owed.qos == 2 { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
    if let (Some(ids), Some(properties)) = (&owed.subscription_ids, &mut publish.properties) {
        properties.subscription_ids = ids.iter().filter_map(|id| (*id).try_into().ok()).collect();
    }
    Some((from, publish))
}

/// A message that was sent.
pub(super) fn inflight(store: &Store, decoder: &mut Decoder, owed: &Owed) -> Option<OutInflightMessage> {
    let status = match owed.stage {
        Stage::Received => MomentStatus::UnComplete,
        _ if owed.qos == 2 => MomentStatus::UnReceived,
        _ => MomentStatus::UnAck,
    };
    let (from, mut publish) = if owed.holds_message() { queued(store, decoder, owed)? } else { only_the_end() };
    publish.packet_id = NonZeroU16::new(owed.packet_id());
    publish.dup = true;
    Some(OutInflightMessage::new(status, from, publish))
}

/// Of a message that the client has only the end of the exchange is owed.
fn only_the_end() -> (From, Publish) {
    let packet = Packet {
        dup: false,
        retain: false,
        qos: QoS::ExactlyOnce,
        topic: Default::default(),
        packet_id: None,
        payload: Default::default(),
        properties: None,
    };
    (From::from_system(Id::from(0, ClientId::default())), Publish::from(packet).create_time(timestamp_millis()))
}
