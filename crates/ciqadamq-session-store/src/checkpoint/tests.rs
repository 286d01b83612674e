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

/// Lets sled write what it has been given, as it may at any moment.
fn write_out(store: &Store) {
    let base = store.inner.disk.as_ref().unwrap().base.lock().clone();
    base.finish(base.meta().unwrap().unwrap()).unwrap();
}

#[test]
fn of_a_clean_start_in_a_fold_that_a_crash_cuts_short_only_the_new_session_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let (path, killed) = (dir.path().join("store"), dir.path().join("killed"));
    let store = open(&path);
    let names: Vec<String> = (0..16).map(|n| format!("c{n}")).collect();
    let mut gone = Vec::new();
    for name in &names {
        let no = begin(&store, name);
        gone.push(Key::Message(publish(&store, no, b"of the old session")));
    }
    store.checkpoint().unwrap();
    store.sessions().into_iter().for_each(|no| store.change(no, |record| record.expiry_secs = 7));
    let new: Vec<u64> = names.iter().map(|name| begin(&store, name)).collect();
    store.flush().unwrap();
    let disk = store.inner.disk.as_ref().unwrap();
    let base = disk.base.lock().clone();
    // The new sessions are in sled, the messages are not any more, and the old sessions are there.
    let keys: Vec<Key> = new.iter().map(|no| Key::Session(*no)).chain(gone).collect();
    write(&store.inner, disk, &base, &base, disk.segments.end(), &keys, &|| Ok(())).unwrap();
    write_out(&store);
    copy(&path, &killed);
    let found = open(&killed);
    assert_eq!(found.sessions(), new);
    assert!(names.iter().zip(&new).all(|(name, no)| found.find(name) == Some(*no)));
    // What was in sled before the log was read is removed there, too.
    new.iter().for_each(|no| found.end(*no));
    found.checkpoint().unwrap();
    drop(found);
    assert_eq!(open(&killed).sessions(), Vec::<u64>::new());
}

#[test]
fn a_fold_after_a_fault_that_a_crash_cuts_short_leaves_no_session_without_what_it_is_owed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = open(&path);
    let sessions: Vec<u64> = (0..8).map(|n| begin(&store, &format!("c{n}"))).collect();
    let recipient = |no: &u64| Recipient { session: *no, qos: 1, retain: false, subscription_ids: None };
    let mut owed = Vec::new();
    for no in sessions.iter().cycle().take(2 * PORTION) {
        owed.push((*no, store.publish(b"x", LATER, &[recipient(no)], None).unwrap().0));
    }
    store.checkpoint().unwrap();
    // In memory alone.
    store.inner.core.lock().fault = Some(Refusal::Closed);
    owed.iter().for_each(|(no, id)| store.drop_queued(*no, *id as u32));
    let inner = &store.inner;
    let copies = std::cell::Cell::new(0);
    recover(inner, || {
        copies.set(copies.get() + 1);
        write_out(&store);
        copy(&path, &dir.path().join(format!("killed{}", copies.get())));
        Ok(())
    })
    .unwrap();
    assert!(copies.get() > 3, "{copies:?}");
    (1..=copies.get()).for_each(|n| drop(open(&dir.path().join(format!("killed{n}")))));
}

#[test]
fn sled_gets_nothing_that_a_power_cut_can_take_from_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let (durability, flush_every) = (crate::Durability::Interval, std::time::Duration::from_secs(3600));
    let store = Store::open(StoreConfig { durability, flush_every, ..StoreConfig::at(dir.path()) }).unwrap();
    let disk = store.inner.disk.as_ref().unwrap();
    let no = begin(&store, "c");
    store.flush().unwrap();
    let cut = disk.journal.lock().rotate().unwrap();
    store.end(no);
    let kept = begin(&store, "kept");
    let durable = std::cell::RefCell::new(Vec::new());
    fold(&store.inner, disk, cut, || {
        writer::flush(&store.inner)?;
        let is_in_sled = disk.base.lock().message(&Key::Session(kept)).is_ok();
        durable.borrow_mut().push((is_in_sled, disk.journal.lock().has_unproven_end()));
        Ok(())
    })
    .unwrap();
    assert_eq!(*durable.borrow(), [(false, false), (true, true)]);
}

pub(super) fn copy(from: &Path, to: &Path) {
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
