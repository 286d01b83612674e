//! A disk that does not take writes: messages are refused, the rest goes on, and all is well again once it does.

use std::time::{Duration, Instant};

use ciqadamq_session_store::{Refusal, Store, StoreConfig};

use crate::support::{LATER, all, config, open, record, to};

/// A store that finds no room on any disk.
fn without_room(path: &std::path::Path) -> StoreConfig {
    StoreConfig { reserve_bytes: u64::MAX, ..config(path) }
}

fn until(what: &str, f: impl Fn() -> bool) {
    let began = Instant::now();
    while !f() {
        assert!(began.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn without_room_messages_are_refused_and_nothing_of_them_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let store = Store::open(without_room(dir.path())).unwrap();
    let no = store.begin(record("c"));
    let refused = store.publish(b"first", LATER, &[to(no, 1)], None).and_then(|(_, commit)| commit.wait());
    assert!(matches!(refused, Err(Refusal::DiskFull(_))), "{refused:?}");
    assert!(matches!(store.refusal(), Some(Refusal::DiskFull(_))));
    assert!(store.retain("t", LATER, b"x").is_err());
    // The rest goes on, in memory.
    drop(store.subscribe(no, "f", b"o"));
    let found = all(&store);
    assert!(found.sessions["c"].queue.is_empty() && found.sessions["c"].subscriptions.contains_key("f"));
    assert!(found.retained.is_empty());
}

#[test]
fn what_changed_without_a_disk_is_written_when_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let store = open(dir.path());
    let no = store.begin(record("kept"));
    store.publish(b"before", LATER, &[to(no, 1)], None).unwrap().1.wait().unwrap();
    store.checkpoint().unwrap();
    store.publish(b"after", LATER, &[to(no, 1)], None).unwrap().1.wait().unwrap();
    // No segment can begin where there is no directory.
    let away = dir.path().join("log-away");
    std::fs::rename(&log, &away).unwrap();
    let big = vec![1; 100 << 10];
    until("a segment is full", || {
        store.publish(&big, LATER, &[to(no, 1)], None).and_then(|(_, commit)| commit.wait()).is_err()
    });
    assert!(matches!(store.refusal(), Some(Refusal::Broken(_))), "{:?}", store.refusal());
    store.subscribe(no, "meanwhile", b"o").wait().unwrap();
    let ended = store.begin(record("meanwhile"));
    let owed = store.session(no).unwrap().queue[0].message;
    store.drop_queued(no, owed as u32);
    std::fs::rename(&away, &log).unwrap();
    until("it writes again", || store.refusal().is_none());
    store.end(ended);
    store.publish(b"again", LATER, &[to(no, 1)], None).unwrap().1.wait().unwrap();
    let before = all(&store);
    drop(store);
    let after = all(&open(dir.path()));
    assert_eq!(after, before);
    let queue = &after.sessions["kept"].queue;
    assert_eq!(queue.first().unwrap().0.as_deref(), Some(&b"after"[..]));
    assert_eq!(queue.last().unwrap().0.as_deref(), Some(&b"again"[..]));
    assert!(after.sessions["kept"].subscriptions.contains_key("meanwhile"));
}
