//! Which Topic Names a new Topic Filter may concern, without asking them.
//!
//! A filter has one *anchor*: the levels from its beginning up to the first wildcard, without a `+` in front, as `chat/u1` of
//! `chat/u1/#` and `u1` of `+/u1/#`. Whatever the filter matches has the anchor's levels at the same place. So a Topic Name is
//! concerned by the few anchors that it has itself, `chat`, `chat/u1`, `chat/u1/m`, then `u1`, `u1/m`, and by the anchor of
//! filters that begin with wildcards only. For each there is a number that grows with every new filter; as long as the sum of a name's
//! numbers is the same, no filter has come that could match it.

use std::sync::atomic::{AtomicU64, Ordering};

use ahash::RandomState;

/// Anchors share so many numbers. Two that share one cost a search now and then, never a message.
const NUMBERS: usize = 16_384;
/// An anchor has at most so many levels, so that a Topic Name of many levels depends on few numbers.
const LEVELS_MAX: usize = 8;
/// The number of filters without an anchor: `#`, `+/+/x`.
const ANYWHERE: u32 = 0;

pub(crate) struct Epochs {
    numbers: Box<[AtomicU64]>,
    hasher: RandomState,
}

impl Epochs {
    pub(crate) fn new() -> Self {
        Self { numbers: (0..NUMBERS).map(|_| AtomicU64::new(0)).collect(), hasher: RandomState::new() }
    }

    /// A Topic Filter can be found from now on: what was remembered before for Topic Names it may match does not hold.
    pub(crate) fn added(&self, filter: &str) {
        let number = self.anchor_of(filter);
        // Whoever sees the new number finds the filter in the tree.
        self.numbers[number as usize].fetch_add(1, Ordering::Release);
    }

    /// The sum of the numbers behind `anchors`. To be read before the tree is searched.
    pub(crate) fn sum(&self, anchors: &[u32]) -> u64 {
        let number = |anchor: &u32| self.numbers[*anchor as usize].load(Ordering::Acquire);
        anchors.iter().map(number).fold(0, u64::wrapping_add)
    }

    /// The number that a Topic Filter changes.
    fn anchor_of(&self, filter: &str) -> u32 {
        let is_wildcard = |level: &str| level == "+" || level == "#";
        let (start, rest) = match filter.strip_prefix("+/") {
            Some(rest) => (1, rest),
            None => (0, filter),
        };
        let mut end = None;
        let mut at = 0;
        for level in rest.split('/').take(LEVELS_MAX) {
            if is_wildcard(level) {
                break;
            }
            at += level.len();
            end = Some(at);
            at += 1;
        }
        end.map_or(ANYWHERE, |end| self.number(start, &rest[..end]))
    }

    /// The numbers that what is known of a Topic Name depends on: at most 17, in no order, now and then one of them twice.
    pub(crate) fn anchors_of(&self, topic: &str) -> Box<[u32]> {
        let mut anchors = Vec::with_capacity(2 * topic.split('/').take(LEVELS_MAX + 1).count() + 1);
        anchors.push(ANYWHERE);
        self.prefixes(0, topic, &mut anchors);
        if let Some((_, rest)) = topic.split_once('/') {
            self.prefixes(1, rest, &mut anchors);
        }
        anchors.into()
    }

    fn prefixes(&self, start: u8, levels: &str, anchors: &mut Vec<u32>) {
        let ends = levels.match_indices('/').map(|(at, _)| at).chain([levels.len()]);
        anchors.extend(ends.take(LEVELS_MAX).map(|end| self.number(start, &levels[..end])));
    }

    fn number(&self, start: u8, levels: &str) -> u32 {
        (self.hasher.hash_one((start, levels)) % (NUMBERS as u64 - 1)) as u32 + 1
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use proptest::prelude::*;
    use rmqtt::types::Topic;

    use super::*;

    fn level() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec!["", "a", "b", "u1", "chat"])
    }

    fn filter() -> impl Strategy<Value = String> {
        let level = prop_oneof![3 => level(), 1 => Just("+")];
        (prop::collection::vec(level, 0..11), any::<bool>()).prop_map(|(mut levels, all)| {
            if all || levels.is_empty() {
                levels.push("#");
            }
            levels.join("/")
        })
    }

    proptest! {
        #[test]
        fn a_filter_changes_the_sum_of_each_topic_it_matches(
            filter in filter(), topic in prop::collection::vec(level(), 1..11).prop_map(|levels| levels.join("/")),
        ) {
            let epochs = Epochs::new();
            let anchors = epochs.anchors_of(&topic);
            let before = epochs.sum(&anchors);
            epochs.added(&filter);
            if Topic::from_str(&filter).unwrap().matches_str(&topic) {
                prop_assert_ne!(epochs.sum(&anchors), before);
            }
        }
    }

    #[test]
    fn filters_of_other_users_leave_a_topic_alone() {
        let epochs = Epochs::new();
        let anchors = epochs.anchors_of("chat/alice/m/all");
        let untouched = |filter: &str| {
            let before = epochs.sum(&anchors);
            epochs.added(filter);
            epochs.sum(&anchors) == before
        };
        // Two anchors may share a number, and the numbers are other ones each time: most, not each.
        let bobs: Vec<_> = (0..100).flat_map(|n| [format!("chat/bob{n}/m/all"), format!("+/bob{n}/#")]).collect();
        assert!(bobs.iter().filter(|filter| untouched(filter)).count() > 190);
        for hers in ["chat/alice/m/all", "chat/alice/#", "+/alice/#", "chat/+/m/all", "+/+/m/all", "#"] {
            assert!(!untouched(hers), "{hers}");
        }
    }

    #[test]
    fn a_topic_of_many_levels_depends_on_few_numbers() {
        let epochs = Epochs::new();
        assert_eq!(epochs.anchors_of("a").len(), 2);
        assert_eq!(epochs.anchors_of("chat/u1/m/all").len(), 8);
        assert_eq!(epochs.anchors_of(&"/".repeat(5000)).len(), 17);
    }
}
