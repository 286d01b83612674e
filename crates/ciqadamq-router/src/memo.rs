//! What is remembered about Topic Names.
//!
//! A fixed number of places in small sets. The hash of a name says which set it belongs to, and there it takes the place of itself, of
//! nothing, of what does not hold any more, or of a neighbour, in turn. So there is nothing that grows, nothing to be kept in order of
//! use, and no lock that is held for more than a few comparisons.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ahash::RandomState;
use parking_lot::Mutex;
use rmqtt::types::TopicFilter;

use crate::epochs::Epochs;

/// Number of sets, a power of two.
const SETS: usize = 8192;
/// Places in a set.
const WAYS: usize = 4;
/// Topic Names that are remembered at once.
pub(crate) const PLACES: usize = SETS * WAYS;
/// Of one Topic Name at most so many bytes are remembered, with its filters; of all together so many times [`PLACES`], 32 MiB.
/// What is larger is searched for each time.
pub(crate) const ENTRY_BYTES_MAX: usize = 1024;

/// The filters that a Topic Name matches, in the order in which the engine's tree gives them.
pub(crate) struct Known {
    topic: Box<str>,
    hash: u64,
    anchors: Box<[u32]>,
    epoch: u64,
    pub(crate) filters: Box<[TopicFilter]>,
}

/// Taken before the tree is searched for a Topic Name; makes what is found [`Known`].
pub(crate) struct Search {
    anchors: Box<[u32]>,
    epoch: u64,
}

#[derive(Default)]
struct Set {
    ways: [Option<Arc<Known>>; WAYS],
    /// whose place is taken next
    turn: u8,
    /// answers out of this set
    hits: u64,
}

pub(crate) struct Memo {
    sets: Box<[Mutex<Set>]>,
    hasher: RandomState,
    epochs: Epochs,
    misses: AtomicU64,
    evictions: AtomicU64,
}

/// Counted since the start.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Topic Names that were known
    pub(crate) hits: u64,
    /// and that were not
    pub(crate) misses: u64,
    /// Names that had to go for others although what was known of them held
    pub(crate) evictions: u64,
}

impl Memo {
    pub(crate) fn new() -> Self {
        Self {
            sets: (0..SETS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            epochs: Epochs::new(),
            misses: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        }
    }

    /// What is known of a Topic Name, if it holds.
    pub(crate) fn get(&self, topic: &str) -> Option<Arc<Known>> {
        let hash = self.hasher.hash_one(topic);
        let mut set = self.set(hash).lock();
        let known = set.ways.iter().flatten().find(|known| known.is_of(hash, topic)).cloned();
        let known = known.filter(|known| self.holds(known))?;
        set.hits += 1;
        Some(known)
    }

    /// To be called before the tree is searched: a filter that is added meanwhile makes the result worthless.
    pub(crate) fn search(&self, topic: &str) -> Search {
        self.misses.fetch_add(1, Ordering::Relaxed);
        let anchors = self.epochs.anchors_of(topic);
        let epoch = self.epochs.sum(&anchors);
        Search { anchors, epoch }
    }

    /// Remembers what a search has found.
    pub(crate) fn found(&self, topic: &str, search: Search, filters: Vec<TopicFilter>) -> Arc<Known> {
        let Search { anchors, epoch } = search;
        let hash = self.hasher.hash_one(topic);
        let known = Arc::new(Known { topic: topic.into(), hash, anchors, epoch, filters: filters.into() });
        if known.bytes() <= ENTRY_BYTES_MAX {
            self.remember(known.clone());
        }
        known
    }

    fn remember(&self, known: Arc<Known>) {
        let mut set = self.set(known.hash).lock();
        let same = |way: &Option<Arc<Known>>| way.as_ref().is_some_and(|old| old.is_of(known.hash, &known.topic));
        let worthless = |way: &Option<Arc<Known>>| way.as_ref().is_none_or(|old| !self.holds(old));
        let place = set.ways.iter().position(same).or_else(|| set.ways.iter().position(worthless));
        let place = place.unwrap_or_else(|| {
            self.evictions.fetch_add(1, Ordering::Relaxed);
            set.turn = set.turn.wrapping_add(1);
            usize::from(set.turn) % WAYS
        });
        set.ways[place] = Some(known);
    }

    /// Among its filters is one without subscribers.
    pub(crate) fn forget(&self, known: &Arc<Known>) {
        let mut set = self.set(known.hash).lock();
        let is_it = |way: &&mut Option<Arc<Known>>| way.as_ref().is_some_and(|way| Arc::ptr_eq(way, known));
        if let Some(way) = set.ways.iter_mut().find(is_it) {
            *way = None;
        }
    }

    /// A filter is in the tree now, and was not before.
    pub(crate) fn filter_added(&self, filter: &str) {
        self.epochs.added(filter);
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts {
            hits: self.sets.iter().map(|set| set.lock().hits).sum(),
            misses: self.misses.load(Ordering::Relaxed),
            evictions: self.evictions.load(Ordering::Relaxed),
        }
    }

    fn holds(&self, known: &Known) -> bool {
        self.epochs.sum(&known.anchors) == known.epoch
    }

    fn set(&self, hash: u64) -> &Mutex<Set> {
        &self.sets[hash as usize & (SETS - 1)]
    }
}

impl Known {
    fn is_of(&self, hash: u64, topic: &str) -> bool {
        self.hash == hash && *self.topic == *topic
    }

    fn bytes(&self) -> usize {
        let filters: usize = self.filters.iter().map(|filter| size_of::<TopicFilter>() + filter.len()).sum();
        size_of::<Self>() + self.topic.len() + size_of_val(&*self.anchors) + filters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remember(memo: &Memo, topic: &str, filters: &[&str]) -> Arc<Known> {
        let search = memo.search(topic);
        memo.found(topic, search, filters.iter().map(|filter| TopicFilter::from(*filter)).collect())
    }

    #[test]
    fn what_was_found_is_known_until_a_filter_comes_that_may_match() {
        let memo = Memo::new();
        assert!(memo.get("chat/u1").is_none());
        remember(&memo, "chat/u1", &["chat/+"]);
        assert_eq!(*memo.get("chat/u1").unwrap().filters, [TopicFilter::from("chat/+")]);
        memo.filter_added("+/u1");
        assert!(memo.get("chat/u1").is_none());
        remember(&memo, "chat/u1", &["chat/+", "+/u1"]);
        assert_eq!(memo.get("chat/u1").unwrap().filters.len(), 2);
        assert_eq!(memo.counts(), Counts { hits: 2, misses: 2, evictions: 0 });
    }

    #[test]
    fn what_a_search_found_while_a_filter_came_is_not_believed() {
        let memo = Memo::new();
        let search = memo.search("a/b");
        memo.filter_added("a/#");
        memo.found("a/b", search, Vec::new());
        assert!(memo.get("a/b").is_none());
    }

    #[test]
    fn more_names_than_places_take_each_others() {
        let memo = Memo::new();
        for n in 0..3 * PLACES {
            remember(&memo, &format!("t/{n}"), &[]);
        }
        let known = memo.sets.iter().map(|set| set.lock().ways.iter().flatten().count()).sum::<usize>();
        assert!(known <= PLACES);
        assert_eq!(memo.counts().evictions as usize, 3 * PLACES - known);
        assert!(memo.get(&format!("t/{}", 3 * PLACES - 1)).is_some(), "the last one");
    }

    #[test]
    fn what_is_too_large_is_not_remembered() {
        let memo = Memo::new();
        let long = "x".repeat(ENTRY_BYTES_MAX);
        remember(&memo, &long, &[]);
        assert!(memo.get(&long).is_none());
        let many = ["a/+/c"; 64];
        assert_eq!(remember(&memo, "a/b/c", &many).filters.len(), 64);
        assert!(memo.get("a/b/c").is_none());
    }

    #[test]
    fn forgetting_hits_only_what_was_meant() {
        let memo = Memo::new();
        let old = remember(&memo, "a", &["a"]);
        let new = remember(&memo, "a", &["a", "+"]);
        memo.forget(&old);
        assert!(memo.get("a").is_some());
        memo.forget(&new);
        assert!(memo.get("a").is_none());
    }
}
