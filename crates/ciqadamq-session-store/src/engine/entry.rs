//! One session's entry in the engine's table: what becomes of it there becomes of it in the store.

use std::collections::{HashMap, HashSet, VecDeque};
use std::num::NonZeroU16;
use std::sync::Arc;

use anyhow::anyhow;
use async_trait::async_trait;
use rmqtt::Result;
use rmqtt::codec::types::QoS;
use rmqtt::session::{OfflineInfo, Session};
use rmqtt::shared::Entry;
use rmqtt::types::*;
use rmqtt::utils::timestamp_millis;
use tracing::{info, warn};

use super::codec::encode_options;
use super::dormant::Dormant;
use super::keeper::{Keeper, Kept};
use super::{restore, window};
use crate::{Notes, Owed, Recipient, Stage};

pub(super) struct KeptEntry {
    inner: Box<dyn Entry>,
    keeper: Arc<Keeper>,
    /// Between `kick` and `set`: what the newcomer takes over.
    taking: Taking,
    /// And the Packet Identifiers of the PUBRELs that are owed it.
    releases: HashSet<u16>,
}

/// What a newcomer takes over.
#[derive(Default)]
pub(super) enum Taking {
    /// nothing: a session begins
    #[default]
    Nothing,
    /// a session that is kept
    Kept,
    /// a session of another node, of which the store has what it is owed
    Moved,
    /// a session that ended with its connection, and is to be kept from now on
    Subscriptions(Subscriptions),
}

impl KeptEntry {
    pub(super) fn new(inner: Box<dyn Entry>, keeper: Arc<Keeper>) -> Self {
        Self { inner, keeper, taking: Taking::Nothing, releases: HashSet::new() }
    }

    fn kept(&self) -> Option<Kept> {
        self.keeper.same(&self.inner.id())
    }

    /// Brings what a session hands over in line with what it is owed.
    ///
    /// The engine forgets a message when writing it to the client fails. It hands over in no particular order. And of a session that
    /// sleeps, or whose task never began, it has nothing at all.
    async fn reconcile(&self, kept: &Kept, info: &mut OfflineInfo, is_adrift: bool) {
        let Some(state) = self.keeper.store.session(kept.no) else { return };
        let asleep = kept.live.dormant.lock().take();
        let dormant = asleep.or_else(|| is_adrift.then(|| Dormant::new(&self.keeper.store)));
        // What is to be sent again waits in the queue until its turn comes, under its identifier.
        let again = info.offline_messages.iter().filter_map(|(_, publish)| publish.packet_id);
        let handed: HashSet<u16> = info
            .inflight_messages
            .iter()
            .filter_map(|message| message.publish.packet_id)
            .chain(again)
            .map(NonZeroU16::get)
            .collect();
        let sent: Vec<_> = state.queue.iter().filter(|owed| owed.stage != Stage::Queued).collect();
        let lost: Vec<_> = sent.iter().filter(|owed| !handed.contains(&owed.packet_id())).collect();
        let mut decoder = super::codec::Decoder::default();
        if !lost.is_empty() {
            let found: Vec<_> = restore::reading(|| {
                lost.iter().filter_map(|owed| restore::inflight(&self.keeper.store, &mut decoder, owed)).collect()
            });
            info.inflight_messages.extend(found);
            if dormant.is_none() {
                info!(
                    client_id = &*info.id.client_id,
                    found = lost.len(),
                    "deliveries that had failed are tried again"
                );
            }
        }
        let place: HashMap<u16, usize> = sent.iter().enumerate().map(|(at, owed)| (owed.packet_id(), at)).collect();
        // What the store does not know keeps its place behind.
        info.inflight_messages.sort_by_key(|message| {
            message.publish.packet_id.and_then(|id| place.get(&id.get()).copied()).unwrap_or(usize::MAX)
        });
        if let Some(dormant) = dormant {
            // What was on its way when it fell asleep may have found it awake.
            let at_hand = info.offline_messages.iter().filter(|(_, publish)| !publish.dup);
            let at_hand: HashSet<u32> = at_hand.filter_map(|(_, publish)| publish.delay_interval).collect();
            let is_missing = |owed: &&Owed| dormant.has(owed) && !at_hand.contains(&(owed.message as u32));
            let waiting = state.queue.iter().filter(|owed| owed.stage == Stage::Queued).filter(is_missing);
            let mut all: VecDeque<_> = restore::reading(|| {
                waiting.filter_map(|owed| restore::queued(&self.keeper.store, &mut decoder, owed)).collect()
            });
            // What has come since it was woken, or is kept nowhere else.
            all.append(&mut info.offline_messages);
            info.offline_messages = all;
        }
    }

    /// Whether the engine has lost all that it was handed over for a session: it is online, and its task never began.
    async fn is_adrift(&self, kept: &Kept) -> bool {
        match self.inner.session().filter(|_| kept.live.begun.is_unanswered()) {
            Some(session) => session.connected().await.unwrap_or(false),
            None => false,
        }
    }

    /// A session that the store has and the engine has not, between two connections.
    async fn stray(&self) -> Option<OfflineInfo> {
        let connecting = self.inner.id();
        let (_, state) = self.keeper.stray(&connecting).await?;
        info!(client_id = &*connecting.client_id, "session goes on from the disk");
        Some(restore::offline_info(&self.keeper.store, state, connecting))
    }

    /// Ends or hands over the session that is there, here as in the engine.
    async fn make_way(
        &mut self,
        clean_start: bool,
        clear_subscriptions: bool,
        is_admin: IsAdmin,
    ) -> Result<OfflineSession> {
        let client_id = self.inner.id().client_id.clone();
        let before = self.keeper.kept(&client_id);
        if !is_admin {
            self.keeper.refuse_foreign(&self.inner.id())?;
        }
        let is_adrift = match &before {
            Some(kept) => self.is_adrift(kept).await,
            None => false,
        };
        let mut outcome = self.inner.kick(clean_start, clear_subscriptions, is_admin).await?;
        if clean_start || is_admin {
            self.keeper.forget(&client_id);
            return Ok(outcome);
        }
        if self.inner.id().node_id != self.keeper.scx.node.id() {
            // A login of another node takes it along.
            match (&mut outcome, &before) {
                (OfflineSession::Exist(Some(info)), Some(kept)) if self.keeper.other_moves.is_some() => {
                    self.reconcile(kept, info, is_adrift).await;
                    self.keeper.part(kept, info, self.inner.id().node_id);
                }
                _ => self.keeper.forget(&client_id),
            }
            // After a crash it must not be on both.
            if let Err(reason) = self.keeper.store.so_far().done().await {
                warn!(client_id = &*client_id, %reason, "that a session moved is not on disk yet");
            }
            return Ok(outcome);
        }
        match (&mut outcome, before) {
            (OfflineSession::Exist(Some(info)), Some(kept)) => {
                self.reconcile(&kept, info, is_adrift).await;
                self.taking = Taking::Kept;
            }
            (OfflineSession::Exist(Some(info)), None) if info.id.node_id != self.keeper.scx.node.id() => {
                self.keeper.inherit(&self.inner.id(), info).await?;
                self.taking = Taking::Moved;
            }
            (OfflineSession::Exist(Some(info)), None) => {
                self.taking = Taking::Subscriptions(info.subscriptions.clone());
            }
            (OfflineSession::NotExist, _) if self.keeper.any() => match self.stray().await {
                Some(info) => {
                    self.taking = Taking::Kept;
                    return Ok(OfflineSession::Exist(Some(info)));
                }
                None => self.keeper.forget(&client_id),
            },
            _ => self.keeper.forget(&client_id),
        }
        Ok(outcome)
    }

    /// What a session that is about to be set has taken over stands in its channel already; its task has not begun.
    async fn follow(&mut self, session: &Session, tx: &Tx) {
        let Some(kept) = self.keeper.same(&session.id) else { return };
        kept.live.begun.ask(tx);
        kept.live.window.widen(session, std::mem::take(&mut self.releases)).await;
    }

    /// A session whose task never began was given another one, which has nothing of what is in the store.
    fn fall_asleep(&self, kept: &Kept) {
        kept.live.begun.settle();
        *kept.live.dormant.lock() = Some(Dormant::new(&self.keeper.store));
        let now = timestamp_millis();
        self.keeper.store.change(kept.no, |record| {
            record.disconnected_at.get_or_insert(now);
        });
    }
}

impl Drop for KeptEntry {
    fn drop(&mut self) {
        match self.taking {
            Taking::Moved => self.keeper.unclaimed(&self.inner.id()),
            // It was stopped for this login.
            Taking::Kept if self.inner.session().is_none() => self.keeper.unclaimed_of(&self.inner.id().client_id),
            Taking::Kept | Taking::Nothing | Taking::Subscriptions(_) => {}
        }
    }
}

#[async_trait]
impl Entry for KeptEntry {
    async fn try_lock(&self) -> Result<Box<dyn Entry>> {
        Ok(Box::new(Self::new(self.inner.try_lock().await?, self.keeper.clone())))
    }

    async fn kick(
        &mut self,
        clean_start: bool,
        clear_subscriptions: bool,
        is_admin: IsAdmin,
    ) -> Result<OfflineSession> {
        let mut outcome = self.make_way(clean_start, clear_subscriptions, is_admin).await?;
        if let OfflineSession::Exist(Some(info)) = &mut outcome {
            self.releases = window::releases_first(info);
        }
        Ok(outcome)
    }

    async fn set(&mut self, session: Session, tx: Tx) -> Result<()> {
        let taking = std::mem::take(&mut self.taking);
        let (id, goes_on) = (session.id.clone(), matches!(taking, Taking::Kept | Taking::Moved));
        let takes_over = !matches!(taking, Taking::Nothing);
        let lost_its_task = self.inner.tx().is_some_and(|tx| tx.is_closed());
        let adrift = self.keeper.same(&id).filter(|kept| lost_its_task && kept.live.begun.is_unanswered());
        let was_there = self.keeper.same(&id).is_some();
        self.keeper.keep(&session, taking).await;
        if takes_over {
            self.follow(&session, &tx).await;
        }
        let set = self.inner.set(session, tx).await;
        // Not before: what is routed from here on finds the new task.
        if let Some(kept) = adrift.filter(|_| set.is_ok()) {
            self.fall_asleep(&kept);
        }
        // The login has failed. Not of a session that was only to be given another channel, or another task.
        if set.is_err() && id == self.inner.id() {
            if goes_on {
                self.keeper.unclaimed(&id);
            } else if !was_there {
                self.keeper.forget_same(&id);
            }
        }
        set
    }

    async fn remove(&mut self) -> Result<Option<(Session, Tx)>> {
        let removed = self.inner.remove().await?;
        if let Some((session, _)) = &removed {
            self.keeper.forget_same(&session.id);
        }
        Ok(removed)
    }

    async fn remove_with(&mut self, id: &Id) -> Result<Option<(Session, Tx)>> {
        let removed = self.inner.remove_with(id).await?;
        if let Some((session, _)) = &removed {
            self.keeper.forget_same(&session.id);
        }
        Ok(removed)
    }

    async fn subscribe(&self, subscribe: &Subscribe) -> Result<SubscribeReturn> {
        let Some(kept) = self.kept() else { return self.inner.subscribe(subscribe).await };
        kept.live.see();
        let outcome = self.inner.subscribe(subscribe).await?;
        if outcome.success().is_some() {
            let options = encode_options(&subscribe.opts)?;
            let commit = self.keeper.store.subscribe(kept.no, &subscribe.topic_filter, &options);
            // It stands in memory, and is written when the disk takes writes again.
            if let Err(reason) = commit.done().await {
                warn!(client_id = &*kept.id.client_id, %reason, "subscription is not on disk yet");
            }
        }
        Ok(outcome)
    }

    async fn unsubscribe(&self, unsubscribe: &Unsubscribe) -> Result<bool> {
        let Some(kept) = self.kept() else { return self.inner.unsubscribe(unsubscribe).await };
        kept.live.see();
        // The engine has no UNSUBACK that says no: without one the connection ends.
        let commit = self.keeper.store.unsubscribe(kept.no, &unsubscribe.topic_filter);
        commit.done().await.map_err(|reason| anyhow!("the end of a subscription is not kept: {reason}"))?;
        self.inner.unsubscribe(unsubscribe).await
    }

    /// A message for this client alone: a Retained Message after its SUBSCRIBE, for one.
    async fn publish(&self, from: From, mut publish: Publish) -> std::result::Result<(), (From, Publish, Reason)> {
        if self.keeper.any()
            && publish.qos != QoS::AtMostOnce
            && let Some(kept) = self.keeper.kept(&self.inner.id().client_id)
        {
            let recipient = Recipient {
                session: kept.no,
                qos: publish.qos.value(),
                retain: publish.retain,
                subscription_ids: None,
            };
            publish.delay_interval = match self.keeper.commit(&from, &publish, &[recipient], Notes::default()).await {
                Ok(ticket) => Some(ticket),
                // It can be asked for again; in memory it goes on.
                Err(reason) => {
                    warn!(client_id = &*kept.id.client_id, %reason, "message for one client is not kept on disk");
                    None
                }
            };
        }
        self.inner.publish(from, publish).await
    }

    fn id(&self) -> Id {
        self.inner.id()
    }
    fn id_same(&self) -> Option<bool> {
        self.inner.id_same()
    }
    async fn online(&self) -> bool {
        match self.inner.session() {
            Some(session) => session.connected().await.unwrap_or_default(),
            None => false,
        }
    }
    async fn is_connected(&self) -> bool {
        self.online().await
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
    async fn subscriptions(&self) -> Option<Vec<SubsSearchResult>> {
        self.inner.subscriptions().await
    }
}
