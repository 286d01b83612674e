//! What a rewriting of sled leaves, when it fails and while it goes on.

use std::path::Path;

use super::*;
use crate::{Recipient, SessionRecord, Store, StoreConfig};

const LATER: i64 = i64::MAX;

fn open(path: &Path) -> Store {
    let (segment_bytes, cache_bytes, reserve_bytes) = (64 << 10, 1 << 20, 0);
    Store::open(StoreConfig { segment_bytes, cache_bytes, reserve_bytes, ..StoreConfig::at(path) }).unwrap()
}

fn begin(store: &Store, client_id: &str) -> u64 {
    store.begin(SessionRecord { client_id: client_id.into(), expiry_secs: 3600, ..SessionRecord::default() })
}

fn publish(store: &Store, session: u64, message: &[u8]) -> u64 {
    let recipient = Recipient { session, qos: 1, retain: false, subscription_ids: None };
    let (id, commit) = store.publish(message, LATER, &[recipient], None).unwrap();
    commit.wait().unwrap();
    id
}

/// A store with one message in sled and one in the log, and a session in sled that has ended since.
fn filled(path: &Path) -> (Store, [u64; 2]) {
    let store = open(path);
    let (no, over) = (begin(&store, "c"), begin(&store, "over"));
    let in_base = publish(&store, no, b"in sled");
    store.checkpoint().unwrap();
    store.end(over);
    let in_log = publish(&store, no, b"in the log");
    (store, [in_base, in_log])
}

fn rewrite_now(store: &Store, written: impl Fn() -> Result<(), Refusal>) -> Result<(), Refusal> {
    let disk = store.inner.disk.as_ref().unwrap();
    let old = disk.base.lock().clone();
    let cut = disk.journal.lock().rotate().unwrap();
    rewrite(&store.inner, disk, &old, cut, &written)?;
    disk.journal.lock().forget_before(cut).unwrap();
    Ok(())
}

/// The log can be written while sled is, and not when it is to be finished.
fn fails_at_the_end() -> impl Fn() -> Result<(), Refusal> {
    let calls = std::cell::Cell::new(0);
    move || {
        calls.set(calls.get() + 1);
        if calls.get() > 1 { Err(Refusal::Closed) } else { Ok(()) }
    }
}

fn assert_sound(store: &Store, ids: [u64; 2]) {
    let messages = ids.map(|id| store.message(id));
    assert_eq!(messages, [Some(b"in sled".to_vec()), Some(b"in the log".to_vec())]);
    assert!(store.find("c").is_some() && store.find("over").is_none());
}

#[test]
fn a_rewriting_that_fails_leaves_everything_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (store, ids) = filled(dir.path());
    assert!(rewrite_now(&store, fails_at_the_end()).is_err());
    assert_eq!(generations(dir.path()).unwrap(), [1]);
    assert_sound(&store, ids);
    // The next one writes all of it: what has ended, too.
    store.checkpoint().unwrap();
    assert_sound(&store, ids);
    drop(store);
    assert_sound(&open(dir.path()), ids);
}

#[test]
fn a_checkpoint_that_fails_leaves_messages_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let (store, ids) = filled(dir.path());
    let disk = store.inner.disk.as_ref().unwrap();
    let cut = disk.journal.lock().rotate().unwrap();
    assert!(fold(&store.inner, disk, cut, fails_at_the_end()).is_err());
    let place = store.inner.core.lock().state.messages[&ids[1]].place;
    assert!(matches!(place, Place::Log(_)), "{place:?}");
    store.checkpoint().unwrap();
    assert_sound(&store, ids);
    drop(store);
    assert_sound(&open(dir.path()), ids);
}

#[test]
fn sled_gets_nothing_before_the_log_has_what_made_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, ids) = filled(dir.path());
    let disk = store.inner.disk.as_ref().unwrap();
    let base = disk.base.lock().clone();
    let cut = disk.journal.lock().rotate().unwrap();
    let knew = std::cell::RefCell::new(Vec::new());
    fold(&store.inner, disk, cut, || {
        knew.borrow_mut().push(base.message(&Key::Message(ids[1])).is_ok());
        writer::flush(&store.inner)
    })
    .unwrap();
    assert_eq!(*knew.borrow(), [false, true]);
    assert_sound(&store, ids);
}

#[test]
fn messages_can_be_read_while_sled_is_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let (store, ids) = filled(dir.path());
    rewrite_now(&store, || {
        assert_sound(&store, ids);
        writer::flush(&store.inner)
    })
    .unwrap();
    assert_sound(&store, ids);
    drop(store);
    assert_sound(&open(dir.path()), ids);
}

#[test]
fn a_rewriting_takes_the_place_of_the_sled_that_it_has_read() {
    let dir = tempfile::tempdir().unwrap();
    let (store, ids) = filled(dir.path());
    // What one that failed could not remove.
    std::fs::create_dir(base_path(dir.path(), 2)).unwrap();
    rewrite_now(&store, || writer::flush(&store.inner)).unwrap();
    assert_eq!(generations(dir.path()).unwrap(), [2, 3]);
    assert_sound(&store, ids);
    drop(store);
    assert_sound(&open(dir.path()), ids);
    assert_eq!(generations(dir.path()).unwrap(), [3]);
}

#[test]
fn what_changes_while_the_fold_after_a_fault_is_made_is_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let (path, killed) = (dir.path().join("store"), dir.path().join("killed"));
    let (store, _) = filled(&path);
    let inner = &store.inner;
    // The writer sleeps for a second when it sees this, and has nothing to write before.
    inner.core.lock().fault = Some(Refusal::Closed);
    let before = begin(&store, "before");
    let frames = std::cell::RefCell::new(Vec::new());
    recover(inner, || {
        if frames.borrow().is_empty() {
            begin(&store, "meanwhile");
            store.end(before);
        } else {
            begin(&store, "later");
        }
        let mut frame = inner.core.lock().take_frame();
        assert!(!frame.bytes.is_empty(), "it is for the log");
        let mut journal = inner.disk.as_ref().unwrap().journal.lock();
        journal.append(&mut frame.bytes).and_then(|()| journal.sync()).unwrap();
        frames.borrow_mut().push(frame);
        Ok(())
    })
    .unwrap();
    // What `kill -9` leaves.
    copy(&path, &killed);
    let found = open(&killed);
    assert!(found.find("meanwhile").is_some() && found.find("later").is_some() && found.find("before").is_none());
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (from, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            std::fs::copy(&from, &to).unwrap();
        }
    }
}
