//! Which topic holds the Retained Message of which user. Pure.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Who owns what. Bounded by the Retained Messages there are.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    owners: HashMap<String, (String, Instant)>,
    topics: HashMap<String, HashSet<String>>,
}

impl Ledger {
    /// The message at `topic` is `owner`'s now; `None` if there is none, or it is nobody's who counts.
    pub(crate) fn note(&mut self, topic: &str, owner: Option<&str>) {
        match self.owners.get_mut(topic) {
            Some((before, since)) if Some(before.as_str()) == owner => return *since = Instant::now(),
            None if owner.is_none() => return,
            _ => {}
        }
        if let Some((before, _)) = self.owners.remove(topic)
            && let Some(topics) = self.topics.get_mut(&before)
        {
            topics.remove(topic);
            if topics.is_empty() {
                self.topics.remove(&before);
            }
        }
        if let Some(owner) = owner {
            self.owners.insert(topic.into(), (owner.into(), Instant::now()));
            self.topics.entry(owner.into()).or_default().insert(topic.into());
        }
    }

    /// Whether `user` may have a message at `topic` without having more than `max`; 0 is no bound.
    pub(crate) fn has_place(&self, user: &str, topic: &str, max: usize) -> bool {
        max == 0 || self.topics.get(user).is_none_or(|topics| topics.len() < max || topics.contains(topic))
    }

    /// Forgets a user, and says where its messages are.
    pub(crate) fn take(&mut self, user: &str) -> Vec<String> {
        let topics: Vec<String> = self.topics.remove(user).into_iter().flatten().collect();
        for topic in &topics {
            self.owners.remove(topic);
        }
        topics
    }

    /// Where those of a user's messages are that have been there for `age`.
    pub(crate) fn topics_of(&self, user: &str, age: Duration) -> Vec<String> {
        let is_old = |topic: &&String| self.owners.get(*topic).is_some_and(|(_, since)| since.elapsed() >= age);
        self.topics.get(user).into_iter().flatten().filter(is_old).cloned().collect()
    }

    /// Messages of all users.
    pub(crate) fn len(&self) -> usize {
        self.owners.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_to_write_owns_a_topic() {
        let mut ledger = Ledger::default();
        ledger.note("t", Some("a"));
        ledger.note("t", Some("b"));
        let count = |user| ledger.topics_of(user, Duration::ZERO).len();
        assert_eq!((count("a"), count("b"), ledger.len()), (0, 1, 1));
        assert!(ledger.topics_of("b", Duration::from_secs(60)).is_empty(), "too young");
        ledger.note("t", None);
        assert_eq!((ledger.len(), ledger.topics.len()), (0, 0));
    }

    #[test]
    fn the_bound_is_on_topics_and_replacing_is_free() {
        let mut ledger = Ledger::default();
        for topic in ["t1", "t2"] {
            assert!(ledger.has_place("a", topic, 2));
            ledger.note(topic, Some("a"));
            ledger.note(topic, Some("a"));
        }
        assert!(!ledger.has_place("a", "t3", 2) && ledger.has_place("a", "t1", 2));
        assert!(ledger.has_place("a", "t3", 0) && ledger.has_place("b", "t3", 2));
        ledger.note("t1", None);
        assert!(ledger.has_place("a", "t3", 2));
    }

    #[test]
    fn a_user_who_is_taken_out_leaves_nothing() {
        let mut ledger = Ledger::default();
        for topic in ["t1", "t2"] {
            ledger.note(topic, Some("a"));
        }
        ledger.note("t3", Some("b"));
        let mut topics = ledger.take("a");
        topics.sort();
        assert_eq!(topics, ["t1", "t2"]);
        assert!(ledger.take("a").is_empty());
        assert_eq!(ledger.len(), 1);
    }
}
