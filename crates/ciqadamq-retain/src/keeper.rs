//! The store in front of the engine's, and what it does when a user is deleted.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use async_trait::async_trait;
use ciqadamq_core::{AUDIT, Principal, Principals, RetainedQuota, UserChange, UserDirectory, UserObserver};
use parking_lot::Mutex;
use prometheus::{IntCounter, IntGauge, Registry};
use rmqtt::Result;
use rmqtt::retain::{RetainStorage, RetainSyncMode};
use rmqtt::types::{Retain, TopicFilter, TopicName};
use rmqtt::utils::StatsMergeMode;
use tokio::sync::{Notify, RwLock};
use tracing::{info, warn};

use crate::ledger::Ledger;

/// The engine walks topics recursively.
const LEVELS_MAX: usize = 1000;
/// Messages read at once at start.
///
/// Each page costs the engine's stores a walk over all keys.
const PAGE: usize = 10_000;

/// A store may show a message a while after it took it; only what is missing for longer has expired.
const SETTLED: Duration = Duration::from_secs(30);

/// Pause after work that failed, and between two recounts: a user at the bound asks for one with every message.
const PAUSE: Duration = Duration::from_secs(1);

/// Knows whose Retained Messages there are.
pub struct Keeper {
    max_per_user: usize,
    directory: Arc<dyn UserDirectory>,
    principals: Arc<Principals>,
    ledger: Mutex<Ledger>,
    work: Mutex<Work>,
    /// told when there is something to clear, and when there is somebody to recount
    to_clear: Notify,
    to_recount: Notify,
    /// Read by whoever retains a message, written while one is cleared because its user was deleted.
    order: RwLock<()>,
    owned: IntGauge,
    cleared: IntCounter,
}

/// What is to be done in the background. Bounded by the messages and the users there are.
#[derive(Default)]
struct Work {
    /// topics of deleted users, with the user
    clear: Vec<(String, String)>,
    /// users at the bound, some of whose messages may have expired
    recount: HashSet<String>,
}

impl Keeper {
    /// `max_per_user` is `limits.retained_per_user`; 0 is no bound.
    pub fn new(
        max_per_user: usize,
        directory: Arc<dyn UserDirectory>,
        principals: Arc<Principals>,
        registry: &Registry,
    ) -> prometheus::Result<Arc<Self>> {
        let owned = IntGauge::new("ciqadamq_retain_owned", "Retained messages of users that are no superusers")?;
        let cleared = IntCounter::new(
            "ciqadamq_retain_cleared_total",
            "Retained messages cleared because their user was deleted",
        )?;
        registry.register(Box::new(owned.clone()))?;
        registry.register(Box::new(cleared.clone()))?;
        Ok(Arc::new(Self {
            max_per_user,
            directory,
            principals,
            ledger: Mutex::default(),
            work: Mutex::default(),
            to_clear: Notify::new(),
            to_recount: Notify::new(),
            order: RwLock::new(()),
            owned,
            cleared,
        }))
    }

    fn note(&self, topic: &str, retain: &Retain) {
        let owner = retain.from.id.username.as_deref().filter(|_| !retain.publish.payload.is_empty());
        // Who is no user of ours, or a superuser, is not counted. A directory that does not answer counts nobody.
        let counts = |name: &&str| self.directory.get(name).ok().flatten().is_some_and(|user| !user.superuser);
        let mut ledger = self.ledger.lock();
        ledger.note(topic, owner.filter(counts));
        self.owned.set(ledger.len() as i64);
    }

    /// Reads what is retained already.
    pub(crate) async fn read(&self, store: &Inner) -> Result<()> {
        for offset in (0..).step_by(PAGE) {
            let (messages, has_more) = store.get_all_paginated(offset, PAGE).await?;
            for (topic, retain, _) in messages {
                self.note(&topic, &retain);
            }
            if !has_more {
                break;
            }
        }
        Ok(())
    }

    /// Does the work in the background, for ever. Whoever is at the bound holds nothing up that is to be cleared.
    pub(crate) async fn run(self: Arc<Self>, store: Inner) {
        tokio::join!(self.clear_all(&store), self.recount_all(&store));
    }

    async fn clear_all(&self, store: &Inner) {
        loop {
            self.to_clear.notified().await;
            let clear = std::mem::take(&mut self.work.lock().clear);
            let mut failed = Vec::new();
            for (topic, user) in clear {
                if let Err(error) = self.clear(store, &topic, &user).await {
                    warn!(topic, %error, "a deleted user's retained message could not be cleared yet");
                    failed.push((topic, user));
                }
            }
            if !failed.is_empty() {
                // After what is to be done meanwhile.
                self.work.lock().clear.extend(failed);
                self.to_clear.notify_one();
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    async fn recount_all(&self, store: &Inner) {
        loop {
            self.to_recount.notified().await;
            let recount = std::mem::take(&mut self.work.lock().recount);
            for user in recount {
                self.recount(store, &user).await;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// A message was retained. If its user was deleted meanwhile, whoever looked after that may have looked before it was here.
    fn look_after(&self, topic: &str, by: &Principal) {
        // A superuser's messages stay.
        if !by.subject().superuser && self.directory.get(&by.username).is_ok_and(|user| user.is_none()) {
            self.work.lock().clear.push((topic.into(), by.username.clone()));
            self.to_clear.notify_one();
        }
    }

    async fn clear(&self, store: &Inner, topic: &str, user: &str) -> Result<()> {
        let _alone = self.order.write().await;
        let name = TopicName::from(topic);
        for (_, mut retain) in store.get(&name).await? {
            if retain.from.id.username.as_deref() == Some(user) {
                retain.publish.payload = Default::default();
                // Now, and not when it was published: a node that is away has the message still.
                retain.publish.create_time = None;
                store.set(&name, retain, None).await?;
                self.cleared.inc();
                let event = "retained_cleared";
                info!(target: AUDIT, event, username = user, topic, "retained message of a deleted user cleared");
            }
        }
        Ok(())
    }

    async fn recount(&self, store: &Inner, user: &str) {
        let topics = self.ledger.lock().topics_of(user, SETTLED);
        for topic in topics {
            let _alone = self.order.write().await;
            if store.get(&TopicName::from(topic.as_str())).await.is_ok_and(|found| found.is_empty()) {
                self.ledger.lock().note(&topic, None);
            }
        }
    }
}

impl RetainedQuota for Keeper {
    fn has_place(&self, username: &str, topic: &str) -> bool {
        let has_place = self.ledger.lock().has_place(username, topic, self.max_per_user);
        if !has_place && self.work.lock().recount.insert(username.into()) {
            self.to_recount.notify_one();
        }
        has_place
    }
}

impl UserObserver for Keeper {
    fn user_changed(&self, change: &UserChange) {
        if change.after.is_some() {
            return;
        }
        let username = change.username.as_str();
        let topics = {
            let mut ledger = self.ledger.lock();
            let topics = ledger.take(username);
            self.owned.set(ledger.len() as i64);
            topics
        };
        if !topics.is_empty() {
            self.work.lock().clear.extend(topics.into_iter().map(|topic| (topic, username.into())));
            self.to_clear.notify_one();
        }
    }
}

/// What stores the messages.
pub(crate) type Inner = Arc<Box<dyn RetainStorage>>;

/// The store that the engine sees.
pub(crate) struct Kept {
    pub(crate) inner: Inner,
    pub(crate) keeper: Arc<Keeper>,
}

#[async_trait]
impl RetainStorage for Kept {
    async fn set(&self, topic: &TopicName, retain: Retain, expiry_interval: Option<Duration>) -> Result<()> {
        if topic.bytes().filter(|b| *b == b'/').count() >= LEVELS_MAX {
            return Err(anyhow!("a retained message has more than {LEVELS_MAX} levels in its topic"));
        }
        // Who is no user of ours cannot be deleted either.
        let from = &retain.from.id;
        let by = self.keeper.principals.get(&from.client_id);
        let by = by.filter(|principal| Some(principal.username.as_str()) == from.username.as_deref());
        // A message on its way when its user was deleted is nobody's.
        if by.as_ref().is_some_and(|principal| principal.is_withdrawn()) {
            return Ok(());
        }
        let _in_order = self.keeper.order.read().await;
        self.keeper.note(topic, &retain);
        let outcome = self.inner.set(topic, retain, expiry_interval).await;
        if let Some(by) = by {
            self.keeper.look_after(topic, &by);
        }
        outcome
    }

    fn enable(&self) -> bool {
        self.inner.enable()
    }
    fn merge_on_read(&self) -> bool {
        self.inner.merge_on_read()
    }
    fn need_sync(&self) -> bool {
        self.inner.need_sync()
    }
    async fn get(&self, topic_filter: &TopicFilter) -> Result<Vec<(TopicName, Retain)>> {
        self.inner.get(topic_filter).await
    }
    async fn get_all_paginated(
        &self,
        offset: usize,
        limit: usize,
    ) -> Result<(Vec<(TopicName, Retain, Option<Duration>)>, bool)> {
        self.inner.get_all_paginated(offset, limit).await
    }
    async fn count(&self) -> isize {
        self.inner.count().await
    }
    async fn max(&self) -> isize {
        self.inner.max().await
    }
    fn stats_merge_mode(&self) -> StatsMergeMode {
        self.inner.stats_merge_mode()
    }
    fn retain_sync_mode(&self) -> RetainSyncMode {
        self.inner.retain_sync_mode()
    }
    async fn sync_retain_topic(
        &self,
        topic: &TopicName,
        expiry_interval: Option<Duration>,
        is_set: bool,
    ) -> Result<()> {
        self.inner.sync_retain_topic(topic, expiry_interval, is_set).await
    }
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
