//! Retained Messages, in the place of rmqtt-retainer: on disk before they are acknowledged, readable at once, in the order in which
//! they were set and cleared.
//!
//! They are in memory too, in a tree by topic. Tree and store change under one lock, so they have the same order; the
//! publisher waits for the commit outside of it.

use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::Duration;

use anyhow::anyhow;
use async_trait::async_trait;
use parking_lot::RwLock;
use rmqtt::Result;
use rmqtt::retain::{RetainStorage, RetainTree};
use rmqtt::topic::Topic;
use rmqtt::types::{From, Publish, Retain, TopicFilter, TopicName};
use rmqtt::utils::{StatsMergeMode, timestamp_millis};
use tracing::warn;

use super::codec::{Decoder, encode_message};
use crate::{Millis, Store};

/// From here on an interval means "no end".
const NO_END: Duration = Duration::from_secs(50 * 366 * 24 * 3600);

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
    tree: RwLock<RetainTree<Arc<Kept>>>,
    count: AtomicIsize,
    max: AtomicIsize,
}

impl Retained {
    /// With what is on the disk.
    pub(super) fn load(store: Arc<Store>) -> Self {
        let mut tree = RetainTree::default();
        let mut decoder = Decoder::default();
        let (mut count, now) = (0, timestamp_millis());
        for (name, expires_at) in store.retained() {
            if expires_at <= now {
                continue;
            }
            let Some((from, publish)) = store.retained_message(&name).and_then(|bytes| decoder.message(&bytes)) else {
                warn!(topic = name, "retained message cannot be read; it stays on the disk");
                continue;
            };
            if let Ok(topic) = Topic::from_str(&name) {
                tree.insert(&topic, Arc::new(Kept { from, publish, expires_at }));
                count += 1;
            }
        }
        let (count, max) = (AtomicIsize::new(count), AtomicIsize::new(count));
        Self(Arc::new(Inner { store, tree: RwLock::new(tree), count, max }))
    }

    /// Lets go of what the store says has expired.
    pub(super) fn expire(&self, topics: &[String]) {
        let now = timestamp_millis();
        let mut tree = self.0.tree.write();
        for name in topics {
            let Ok(topic) = Topic::from_str(name) else { continue };
            if let Some(kept) = tree.remove(&topic) {
                if kept.expires_at > now {
                    // Set anew meanwhile.
                    tree.insert(&topic, kept);
                } else {
                    self.0.count.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Makes a topic again what it was before `tried`, unless it has been changed since.
    fn undo(&self, topic: &Topic, tried: Option<&Arc<Kept>>, before: Option<Arc<Kept>>) {
        let mut tree = self.0.tree.write();
        let present = tree.remove(topic);
        let is_ours = match (&present, tried) {
            (Some(present), Some(tried)) => Arc::ptr_eq(present, tried),
            (None, None) => true,
            _ => false,
        };
        let after = if is_ours { before } else { present.clone() };
        self.0.count.fetch_add(isize::from(after.is_some()) - isize::from(present.is_some()), Ordering::Relaxed);
        if let Some(kept) = after {
            tree.insert(topic, kept);
        }
    }
}

#[async_trait]
impl RetainStorage for Retained {
    fn enable(&self) -> bool {
        true
    }

    async fn set(&self, name: &TopicName, retain: Retain, expiry_interval: Option<Duration>) -> Result<()> {
        let topic = Topic::from_str(name)?;
        let is_clear = retain.publish.payload.is_empty();
        let interval = expiry_interval.filter(|interval| *interval < NO_END && !interval.is_zero());
        let created = retain.publish.create_time.unwrap_or_else(timestamp_millis);
        let expires_at = interval.map_or(Millis::MAX, |i| created.saturating_add(i.as_millis() as i64));
        let message = if is_clear { Vec::new() } else { encode_message(&retain.from, &retain.publish)? };
        let kept = (!is_clear).then(|| Arc::new(Kept { from: retain.from, publish: retain.publish, expires_at }));
        let (commit, before) = {
            let mut tree = self.0.tree.write();
            let commit =
                if is_clear { self.0.store.clear(name) } else { self.0.store.retain(name, expires_at, &message)? };
            let before = tree.remove(&topic);
            if let Some(kept) = &kept {
                tree.insert(&topic, kept.clone());
            }
            let change = isize::from(kept.is_some()) - isize::from(before.is_some());
            let count = self.0.count.fetch_add(change, Ordering::Relaxed) + change;
            self.0.max.fetch_max(count, Ordering::Relaxed);
            (commit, before)
        };
        if let Err(reason) = commit.done().await {
            self.undo(&topic, kept.as_ref(), before);
            // The engine does not acknowledge then.
            return Err(anyhow!("retained message is not kept: {reason}"));
        }
        Ok(())
    }

    async fn get(&self, filter: &TopicFilter) -> Result<Vec<(TopicName, Retain)>> {
        let now = timestamp_millis();
        let found = self.0.tree.read().matches(&Topic::from_str(filter)?);
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
        let mut found = self.0.tree.read().matches(&Topic::from_str("#")?);
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

    fn stats_merge_mode(&self) -> StatsMergeMode {
        StatsMergeMode::Max
    }
}
