//! Who is where, and whether the way there works.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use ciqadamq_core::{Lane, NodeId, Reachability};
use parking_lot::RwLock;
use tokio::sync::Semaphore;

/// Calls to one node at once, in each lane. A further one waits, within its own timeout.
const VITAL_AT_ONCE: usize = 32;
const COMMON_AT_ONCE: usize = 64;

/// The nodes and their state.
#[derive(Default)]
pub(crate) struct Book(RwLock<BTreeMap<NodeId, Entry>>);

struct Entry {
    url: String,
    configured: bool,
    vital: Arc<Semaphore>,
    common: Arc<Semaphore>,
    state: State,
}

enum State {
    Unknown,
    Reachable,
    Unreachable { since: Instant, reason: String },
}

impl Book {
    pub(crate) fn configured(addresses: impl IntoIterator<Item = (NodeId, String)>) -> Self {
        let entries = addresses.into_iter().map(|(node, url)| (node, Entry::new(url, true)));
        Self(RwLock::new(entries.collect()))
    }

    pub(crate) fn nodes(&self) -> Vec<NodeId> {
        self.0.read().keys().copied().collect()
    }

    pub(crate) fn url(&self, node: NodeId) -> Option<String> {
        self.0.read().get(&node).map(|entry| entry.url.clone())
    }

    /// Where to call, and the places among the calls.
    pub(crate) fn way(&self, node: NodeId, lane: Lane) -> Option<(String, Arc<Semaphore>)> {
        let book = self.0.read();
        let entry = book.get(&node)?;
        let slots = match lane {
            Lane::Vital => &entry.vital,
            Lane::Common => &entry.common,
        };
        Some((entry.url.clone(), slots.clone()))
    }

    pub(crate) fn learn(&self, node: NodeId, url: &str) {
        let mut book = self.0.write();
        match book.get_mut(&node) {
            Some(entry) if entry.configured || entry.url == url => {}
            Some(entry) => entry.url = url.to_owned(),
            None => drop(book.insert(node, Entry::new(url.to_owned(), false))),
        }
    }

    pub(crate) fn reachability(&self, node: NodeId) -> Reachability {
        match self.0.read().get(&node).map(|entry| &entry.state) {
            None | Some(State::Unknown) => Reachability::Unknown,
            Some(State::Reachable) => Reachability::Reachable,
            Some(State::Unreachable { since, reason }) => {
                Reachability::Unreachable { since: since.elapsed(), reason: reason.clone() }
            }
        }
    }

    /// The node answered.
    pub(crate) fn answered(&self, node: NodeId) {
        // Nearly always nothing changes, and a read lock will do.
        if matches!(self.0.read().get(&node).map(|entry| &entry.state), None | Some(State::Reachable)) {
            return;
        }
        if let Some(entry) = self.0.write().get_mut(&node) {
            if let State::Unreachable { since, .. } = &entry.state {
                tracing::info!(node, after_secs = since.elapsed().as_secs(), "node is reachable again");
            }
            entry.state = State::Reachable;
        }
    }

    /// The node did not answer.
    pub(crate) fn failed(&self, node: NodeId, reason: &str) {
        let mut book = self.0.write();
        let Some(entry) = book.get_mut(&node) else { return };
        match &mut entry.state {
            State::Unreachable { reason: last, .. } => reason.clone_into(last),
            state => {
                tracing::warn!(node, url = entry.url, reason, "node is not reachable");
                *state = State::Unreachable { since: Instant::now(), reason: reason.to_owned() };
            }
        }
    }
}

impl Entry {
    fn new(url: String, configured: bool) -> Self {
        let slots = |count| Arc::new(Semaphore::new(count));
        Self { url, configured, vital: slots(VITAL_AT_ONCE), common: slots(COMMON_AT_ONCE), state: State::Unknown }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_configured_is_not_overwritten_and_what_was_learned_is() {
        let book = Book::configured([(2, "http://a:1".to_owned())]);
        book.learn(2, "http://b:1");
        book.learn(3, "http://c:1");
        book.learn(3, "http://d:1");
        assert_eq!(book.url(2).as_deref(), Some("http://a:1"));
        assert_eq!(book.url(3).as_deref(), Some("http://d:1"));
        assert_eq!(book.nodes(), [2, 3]);
    }

    #[test]
    fn a_node_is_what_its_last_call_said() {
        let book = Book::configured([(2, "http://a:1".to_owned())]);
        assert_eq!(book.reachability(2), Reachability::Unknown);
        book.failed(2, "refused");
        book.failed(2, "timeout");
        assert!(matches!(book.reachability(2), Reachability::Unreachable { reason, .. } if reason == "timeout"));
        book.answered(2);
        assert_eq!(book.reachability(2), Reachability::Reachable);
        assert_eq!(book.reachability(9), Reachability::Unknown);
    }
}
