//! Sessions on their way between nodes.

use std::path::Path;

use ciqadamq_session_store::{Leaving, SessionRecord, Store};

use crate::support::{LATER, open, record, to};

/// From the log alone, and from what a checkpoint has made of it.
fn twice(path: &Path, look: impl Fn(&Store)) {
    for _ in 0..2 {
        let store = open(path);
        look(&store);
        store.checkpoint().unwrap();
    }
}

#[test]
fn a_session_that_left_stays_with_all_it_is_owed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let no = store.begin(SessionRecord { will_pending: true, ..record("phone") });
    store.publish(b"1", LATER, &[to(no, 1)], None).unwrap().1.wait().unwrap();
    store.leave(no, 3, u64::MAX);
    drop(store);
    twice(dir.path(), |store| {
        let record = store.record(store.find("phone").unwrap()).unwrap();
        assert_eq!(record.leaving, Some(Leaving { to: 3, tag: u64::MAX }));
        assert!(!record.will_pending && !record.arriving && record.disconnected_at.is_some());
        assert_eq!(store.owes(no), (1, 0));
    });
}

#[test]
fn a_session_arrives_when_all_of_it_is_here_and_that_is_remembered_after_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let all = ["one", "other"].map(|name| store.begin(SessionRecord { arriving: true, ..record(name) }));
    store.take(all[0], 2, 7);
    drop(store);
    twice(dir.path(), |store| {
        let arriving = all.map(|no| store.record(no).unwrap().arriving);
        assert_eq!(arriving, [false, true]);
        assert!(store.has_taken(2, 7) && !store.has_taken(2, 8) && !store.has_taken(3, 7));
    });
    open(dir.path()).end(all[0]);
    let store = open(dir.path());
    assert!(store.has_taken(2, 7));
    for tag in 100..1_124 {
        store.take(all[1], 2, tag);
    }
    assert!(!store.has_taken(2, 7) && store.has_taken(2, 100), "the last thousand are remembered");
}
