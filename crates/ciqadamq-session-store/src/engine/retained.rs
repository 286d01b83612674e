//! Retained Messages, in the place of rmqtt-retainer: on disk before they are acknowledged, readable at once, in the order in which
//! they were set and cleared.
//!
//! They are in memory too, in a tree by topic. Tree and store change under one lock, so they have the same order; the
//! publisher waits for the commit outside of it.
//!
//! In a cluster each node has all of them. One that was away takes over what the others have ([`RetainedCopies`]), and must not bring back
//! what was cleared meanwhile: so it is remembered for [`CLEARED_FOR`] what was cleared and when, as a message without a payload in
//! the place of the one that was there.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::Duration;

use anyhow::anyhow;
use async_trait::async_trait;
use ciqadamq_core::{RetainedCopies, RetainedCopy};
use parking_lot::RwLock;
use rmqtt::Result;
use rmqtt::codec::types::{Publish as Packet, QoS};
use rmqtt::context::ServerContext;
use rmqtt::retain::{RetainStorage, RetainTree};
use rmqtt::topic::Topic;
use rmqtt::types::{ClientId, From, Id, Publish, Retain, TopicFilter, TopicName};
use rmqtt::utils::{StatsMergeMode, timestamp_millis};
use tracing::warn;

use super::codec::{Decoder, encode_message};
use crate::{Commit, Millis, Store};

/// From here on an interval means "no end".
const NO_END: Duration = Duration::from_secs(50 * 366 * 24 * 3600);

/// How long a node may be away and not bring back what was cleared meanwhile.
const CLEARED_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// Of so many topics it is remembered that they were cleared.
const CLEARED_MAX: usize = 100_000;

tokio::task_local! {
    /// Set while something of another node is set that may be older than what is here.
    static IF_NEWER: ();
}

#[derive(Debug)]
struct Kept {
    from: From,
    publish: Publish,
    expires_at: Millis,
}

/// See the module. A handle.
#[derive(Clone)]
pub(super) struct Retained(Arc<Inner>);

struct Inner {
    store: Arc<Store>,
    /// in a cluster, where others may be away
    scx: Option<ServerContext>,
    tree: RwLock<Tree>,
    count: AtomicIsize,
    max: AtomicIsize,
}

#[derive(Default)]
struct Tree {
    messages: RetainTree<Arc<Kept>>,
    /// when these were cleared
    cleared: HashMap<TopicName, Millis>,
}

impl Tree {
    fn get(&self, topic: &Topic) -> Option<Arc<Kept>> {
        self.messages.matches(topic).into_iter().next().map(|(_, kept)| kept)
    }

    /// Makes what the store has of a topic what is here of it.
    fn put(&mut self, name: &str, topic: &Topic, stored: Option<Kept>) {
        self.cleared.remove(name);
        self.messages.remove(topic);
        match stored {
            Some(Kept { publish, .. }) if publish.payload.is_empty() => {
                self.cleared.insert(name.into(), publish.create_time.unwrap_or_default());
            }
            Some(kept) => self.messages.insert(topic, Arc::new(kept)),
            None => {}
        }
    }

    /// Whether what is here of a topic comes before what was published in the same moment. Any order will do that all nodes find;
    /// cleared is last.
    fn is_before(&self, topic: &Topic, other: &Retain) -> bool {
        let payload = &other.publish.payload;
        self.get(topic).is_some_and(|kept| payload.is_empty() || kept.publish.payload < *payload)
    }

    /// When what is here of a topic was published, or cleared.
    fn since(&self, name: &str, topic: &Topic) -> Option<Millis> {
        let published = self.get(topic).map(|kept| kept.publish.create_time.unwrap_or_default());
        published.or_else(|| self.cleared.get(name).copied())
    }
}

impl Retained {
    /// With what is on the disk.
    pub(super) fn load(store: Arc<Store>, scx: Option<ServerContext>) -> Self {
        let mut tree = Tree::default();
        let mut decoder = Decoder::default();
        let now = timestamp_millis();
        for (name, expires_at) in store.retained() {
            if expires_at <= now {
                continue;
            }
            let Some((from, publish)) = store.retained_message(&name).and_then(|bytes| decoder.message(&bytes)) else {
                warn!(topic = name, "retained message cannot be read; it stays on the disk");
                continue;
            };
            if let Ok(topic) = Topic::from_str(&name) {
                tree.put(&name, &topic, Some(Kept { from, publish, expires_at }));
            }
        }
        let count = tree.messages.values_size() as isize;
        let (count, max) = (AtomicIsize::new(count), AtomicIsize::new(count));
        Self(Arc::new(Inner { store, scx, tree: RwLock::new(tree), count, max }))
    }

    /// Lets go of what the store says has expired.
    pub(super) fn expire(&self, topics: &[String]) {
        let now = timestamp_millis();
        let mut tree = self.0.tree.write();
        for name in topics {
            let Ok(topic) = Topic::from_str(name) else { continue };
            tree.cleared.remove(name.as_str());
            if let Some(kept) = tree.messages.remove(&topic) {
                if kept.expires_at > now {
                    // Set anew meanwhile.
                    tree.messages.insert(&topic, kept);
                } else {
                    self.0.count.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Removes a topic's message from the disk, and remembers that where somebody may be away.
    fn clear(&self, tree: &mut Tree, name: &TopicName, at: Millis, note: &[u8]) -> Commit {
        if self.0.scx.is_some() && (tree.cleared.len() < CLEARED_MAX || tree.cleared.contains_key(name)) {
            let until = timestamp_millis().saturating_add(CLEARED_FOR.as_millis() as i64);
            // Where there is no room for the note, the message goes all the same.
            if let Ok(commit) = self.0.store.retain(name, until, note) {
                tree.cleared.insert(name.clone(), at);
                return commit;
            }
        }
        self.0.store.clear(name)
    }

    /// What another node is told of a topic.
    fn copy(&self, topic: String, expires_at: Millis) -> Option<RetainedCopy> {
        let tree = self.0.tree.read();
        let name = Topic::from_str(&topic).ok()?;
        let (created, message) = match (tree.get(&name), tree.cleared.get(&*topic)) {
            (Some(kept), _) if kept.expires_at > timestamp_millis() => {
                (kept.publish.create_time.unwrap_or_default(), encode_message(&kept.from, &kept.publish).ok()?)
            }
            (None, Some(created)) => (*created, Vec::new()),
            _ => return None,
        };
        Some(RetainedCopy { topic, created, expires_at, message })
    }

    /// After a commit has failed: makes a topic again what it is in the store, which has taken back all that was in the commit. What
    /// one publisher has found may be what another one has tried in vain. Reads from the disk.
    fn undo(&self, name: &str, topic: &Topic) {
        let store = &self.0.store;
        let mut tree = self.0.tree.write();
        let stored = match store.retained_until(name) {
            None => None,
            Some(expires_at) => {
                let read = store.retained_message(name).and_then(|bytes| Decoder::default().message(&bytes));
                let Some((from, publish)) = read else {
                    warn!(
                        topic = name,
                        "retained message cannot be read; what was tried last stays until the next start"
                    );
                    return;
                };
                Some(Kept { from, publish, expires_at })
            }
        };
        let before = isize::from(tree.get(topic).is_some());
        tree.put(name, topic, stored);
        self.0.count.fetch_add(isize::from(tree.get(topic).is_some()) - before, Ordering::Relaxed);
    }
}

#[async_trait]
impl RetainStorage for Retained {
    fn enable(&self) -> bool {
        true
    }

    async fn set(&self, name: &TopicName, mut retain: Retain, expiry_interval: Option<Duration>) -> Result<()> {
        let topic = Topic::from_str(name)?;
        let is_clear = retain.publish.payload.is_empty();
        let interval = expiry_interval.filter(|interval| *interval < NO_END && !interval.is_zero());
        let now = timestamp_millis();
        let mut created = retain.publish.create_time.unwrap_or(now);
        // It may be later than now, by what is said below.
        let expires_at = interval.map_or(Millis::MAX, |i| created.min(now).saturating_add(i.as_millis() as i64));
        let commit = {
            let mut tree = self.0.tree.write();
            if let Some(since) = tree.since(name, &topic) {
                if IF_NEWER.try_with(|()| ()).is_err() {
                    // What is published here comes after what is here; the clock of another node may be ahead.
                    created = created.max(since.saturating_add(1));
                } else if since > created || since == created && !tree.is_before(&topic, &retain) {
                    return Ok(());
                }
            }
            retain.publish.create_time = Some(created);
            let message = encode_message(&retain.from, &retain.publish)?;
            let kept = (!is_clear).then(|| Arc::new(Kept { from: retain.from, publish: retain.publish, expires_at }));
            let commit = if is_clear {
                self.clear(&mut tree, name, created, &message)
            } else {
                let commit = self.0.store.retain(name, expires_at, &message)?;
                tree.cleared.remove(name);
                commit
            };
            let before = tree.messages.remove(&topic);
            let change = isize::from(kept.is_some()) - isize::from(before.is_some());
            if let Some(kept) = kept {
                tree.messages.insert(&topic, kept);
            }
            let count = self.0.count.fetch_add(change, Ordering::Relaxed) + change;
            self.0.max.fetch_max(count, Ordering::Relaxed);
            commit
        };
        if let Err(reason) = commit.done().await {
            let (this, name) = (self.clone(), name.clone());
            tokio::task::spawn_blocking(move || this.undo(&name, &topic)).await?;
            // The engine does not acknowledge then.
            return Err(anyhow!("retained message is not kept: {reason}"));
        }
        Ok(())
    }

    async fn get(&self, filter: &TopicFilter) -> Result<Vec<(TopicName, Retain)>> {
        let now = timestamp_millis();
        let found = self.0.tree.read().messages.matches(&Topic::from_str(filter)?);
        Ok(found
            .into_iter()
            .filter(|(_, kept)| kept.expires_at > now)
            .map(|(topic, kept)| {
                let mut publish = kept.publish.clone();
                // The engine counts the interval anew from the delivery, so it gets what is left of it.
                if let Some(properties) = &mut publish.properties
                    && properties.message_expiry_interval.is_some()
                {
                    let left = (kept.expires_at - now).div_euclid(1000).clamp(1, u32::MAX.into());
                    properties.message_expiry_interval = NonZeroU32::new(left as u32);
                }
                publish.delay_interval = None;
                (TopicName::from(topic.to_string()), Retain { msg_id: None, from: kept.from.clone(), publish })
            })
            .collect())
    }

    async fn get_all_paginated(
        &self,
        offset: usize,
        limit: usize,
    ) -> Result<(Vec<(TopicName, Retain, Option<Duration>)>, bool)> {
        let now = timestamp_millis();
        let mut found = self.0.tree.read().messages.matches(&Topic::from_str("#")?);
        found.retain(|(_, kept)| kept.expires_at > now);
        let has_more = offset.saturating_add(limit) < found.len();
        let page = found.into_iter().skip(offset).take(limit).map(|(topic, kept)| {
            let left = (kept.expires_at != Millis::MAX).then(|| Duration::from_millis((kept.expires_at - now) as u64));
            let retain = Retain { msg_id: None, from: kept.from.clone(), publish: kept.publish.clone() };
            (TopicName::from(topic.to_string()), retain, left)
        });
        Ok((page.collect(), has_more))
    }

    async fn count(&self) -> isize {
        self.0.count.load(Ordering::Relaxed)
    }

    async fn max(&self) -> isize {
        self.0.max.load(Ordering::Relaxed)
    }

    /// The engine's way knows nothing of what was cleared.
    fn need_sync(&self) -> bool {
        false
    }

    fn stats_merge_mode(&self) -> StatsMergeMode {
        StatsMergeMode::Max
    }
}

#[async_trait]
impl RetainedCopies for Retained {
    fn page(&self, after: &str, bytes_max: usize) -> Vec<RetainedCopy> {
        let (mut bytes, mut page, mut after) = (0, Vec::new(), after.to_owned());
        loop {
            let behind = self.0.store.retained_after(&after);
            let Some((last, _)) = behind.last() else { return page };
            after.clone_from(last);
            for copy in behind.into_iter().filter_map(|(topic, expires_at)| self.copy(topic, expires_at)) {
                bytes += copy.topic.len() + copy.message.len() + COPY_BYTES;
                if bytes > bytes_max && !page.is_empty() {
                    return page;
                }
                page.push(copy);
            }
        }
    }

    async fn take(&self, copy: RetainedCopy) -> std::result::Result<bool, String> {
        let RetainedCopy { topic, created, expires_at, message } = copy;
        let Some(scx) = &self.0.scx else { return Ok(false) };
        let name = Topic::from_str(&topic).map_err(|e| e.to_string())?;
        if self.0.tree.read().since(&topic, &name).is_some_and(|since| since >= created) {
            return Ok(false);
        }
        let (from, publish) = match Decoder::default().message(&message) {
            _ if message.is_empty() => {
                (From::from_system(Id::from(scx.node.id(), ClientId::default())), nothing(&topic))
            }
            Some(read) => read,
            None => return Err("written by another version".into()),
        };
        let from_when = created.min(timestamp_millis());
        let left = || expires_at.saturating_sub(from_when).max(1);
        let interval = (expires_at != Millis::MAX).then(|| Duration::from_millis(left() as u64));
        let retain = Retain { msg_id: None, from, publish: publish.create_time(created) };
        // Past whoever keeps books about them.
        let set = async { scx.extends.retain().await.set(&topic.into(), retain, interval).await };
        IF_NEWER.scope((), set).await.map_err(|e| e.to_string())?;
        Ok(true)
    }

    fn since(&self, topic: &str) -> Option<i64> {
        let name = Topic::from_str(topic).ok()?;
        self.0.tree.read().since(topic, &name)
    }

    async fn later_wins<'a>(&'a self, set: Pin<Box<dyn Future<Output = ()> + Send + 'a>>) {
        IF_NEWER.scope((), set).await;
    }
}

/// What a copy takes beside its topic and its message.
const COPY_BYTES: usize = 32;

/// A message that clears the one of its topic.
fn nothing(topic: &str) -> Publish {
    Publish::from(Packet {
        dup: false,
        retain: true,
        qos: QoS::AtMostOnce,
        topic: topic.into(),
        packet_id: None,
        payload: Default::default(),
        properties: None,
    })
}

#[cfg(test)]
mod tests;
