//! Retained Messages that are set and cleared while the log is folded into a disk that fails at some write.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use super::tests::copy;
use super::*;
use crate::{Commit, Store, StoreConfig, trial};

const LATER: i64 = i64::MAX;
/// More than a fold has writes and syncs.
const STEPS: usize = 48;

/// What a topic has; nothing, if there is no message.
type Value = Option<Vec<u8>>;

/// What was acknowledged for a topic, and what was tried since.
#[derive(Debug, Default, Clone)]
struct Topic {
    acknowledged: Value,
    refused: Vec<Value>,
}

type Model = BTreeMap<String, Topic>;

fn open(path: &Path) -> Store {
    let (segment_bytes, cache_bytes, reserve_bytes) = (64 << 10, 1 << 20, 0);
    Store::open(StoreConfig { segment_bytes, cache_bytes, reserve_bytes, ..StoreConfig::at(path) }).unwrap()
}

fn found(store: &Store) -> BTreeMap<String, Value> {
    store.retained().into_iter().map(|(topic, _)| (topic.clone(), store.retained_message(&topic))).collect()
}

fn acknowledged(model: &Model) -> BTreeMap<String, Value> {
    let there = model.iter().filter(|(_, topic)| topic.acknowledged.is_some());
    there.map(|(name, topic)| (name.clone(), topic.acknowledged.clone())).collect()
}

/// Sets and clears, all of them before any is waited for.
fn change(store: &Store, model: &mut Model, changes: &[(&str, Option<&str>)]) {
    let begun: Vec<Option<Commit>> = changes
        .iter()
        .map(|(topic, value)| match value {
            Some(value) => store.retain(topic, LATER, value.as_bytes()).ok(),
            None => Some(store.clear(topic)),
        })
        .collect();
    for ((name, value), commit) in changes.iter().zip(begun) {
        let topic = model.entry((*name).to_owned()).or_default();
        let (is_clear, value) = (value.is_none(), value.map(|value| value.as_bytes().to_vec()));
        if commit.is_some_and(|commit| commit.wait().is_ok()) {
            *topic = Topic { acknowledged: value, refused: Vec::new() };
        } else if is_clear && store.retained_until(name).is_none() {
            // In memory alone: what was there may be back after a kill, and is not once the disk works again.
            topic.refused.push(topic.acknowledged.take());
        } else {
            topic.refused.push(value);
        }
    }
}

/// As [`run`], with changes whenever something has to be written first.
fn fold_with_changes(store: &Store, model: &mut Model) {
    let inner = &store.inner;
    let disk = inner.disk.as_ref().unwrap();
    let _one_at_a_time = inner.folding.lock();
    let model = std::cell::RefCell::new(model);
    let Ok(cut) = disk.journal.lock().rotate() else { return };
    let outcome = fold(inner, disk, cut, || {
        let changes = [
            ("set twice", Some("2")),
            ("cleared and set", None),
            ("set and cleared", Some("2")),
            ("set twice", Some("3")),
            ("cleared and set", Some("2")),
            ("set and cleared", None),
            ("new", Some("1")),
            ("cleared", None),
        ];
        change(store, &mut model.borrow_mut(), &changes);
        writer::flush(inner)
    });
    // Where the disk fails so does the fold; what counts is what is left.
    drop(outcome);
}

/// One fold on a disk of which the n-th write fails. `false` if there are not so many.
fn fold_and_fail(n: usize, is_lasting: bool) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let (path, killed, later) = (dir.path().join("store"), dir.path().join("killed"), dir.path().join("later"));
    let store = open(&path);
    let mut model = Model::new();
    let names = ["set twice", "cleared and set", "set and cleared", "cleared", "in the log", "gone"];
    change(&store, &mut model, &names.map(|name| (name, Some("1"))));
    store.checkpoint().unwrap();
    change(&store, &mut model, &[("in the log", Some("2")), ("gone", None), ("gone", Some("2")), ("gone", None)]);

    trial::fail_after(&path, n, is_lasting);
    fold_with_changes(&store, &mut model);
    let said = format!("write {n} fails, lasting: {is_lasting}");
    assert_eq!(found(&store), acknowledged(&model), "{said}");
    // What `kill -9` leaves may have what was refused, but not less than what was acknowledged.
    copy(&path, &killed);
    let left = found(&open(&killed));
    for (name, topic) in &model {
        let value = left.get(name).cloned().unwrap_or_default();
        let is_allowed = value == topic.acknowledged || topic.refused.contains(&value);
        assert!(is_allowed, "{said}: {name} is {value:?} after a kill, and was {topic:?}");
    }
    change(&store, &mut model, &[("set twice", None), ("cleared", None)]);
    assert_eq!(found(&store), acknowledged(&model), "{said}, and goes on");

    let has_failed = trial::heal(&path);
    let began = Instant::now();
    while store.refusal().is_some() {
        assert!(began.elapsed() < Duration::from_secs(20), "{said}: it does not write again");
        std::thread::sleep(Duration::from_millis(20));
    }
    change(&store, &mut model, &[("later", Some("1"))]);
    copy(&path, &later);
    assert_eq!(found(&open(&later)), acknowledged(&model), "{said}, and is killed later");
    store.checkpoint().unwrap();
    drop(store);
    assert_eq!(found(&open(&path)), acknowledged(&model), "{said}, and is started again");
    has_failed
}

#[test]
fn whichever_write_fails_while_the_log_is_folded_retained_messages_are_as_they_were_acknowledged() {
    for is_lasting in [false, true] {
        let failed = std::thread::scope(|scope| {
            let all: Vec<_> = (0..STEPS).map(|n| scope.spawn(move || fold_and_fail(n, is_lasting))).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(failed[0] && !failed[STEPS - 1], "{failed:?}");
    }
}

#[test]
fn a_topic_that_is_cleared_set_and_cleared_between_two_folds_stays_cleared() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.retain("t", LATER, b"1").unwrap().wait().unwrap();
    store.checkpoint().unwrap();
    store.clear("t").wait().unwrap();
    store.retain("t", LATER, b"2").unwrap().wait().unwrap();
    store.clear("t").wait().unwrap();
    store.checkpoint().unwrap();
    drop(store);
    assert_eq!(found(&open(dir.path())), BTreeMap::new());
}

#[test]
fn what_was_tried_with_a_topic_in_a_commit_that_fails_leads_back_to_what_was_there_before_all_of_it() {
    let dir = tempfile::tempdir().unwrap();
    for was_folded in [false, true] {
        let path = dir.path().join(format!("store{was_folded}"));
        let store = open(&path);
        let mut model = Model::new();
        change(&store, &mut model, &[("twice", Some("1")), ("cleared", Some("1")), ("back", Some("1"))]);
        if was_folded {
            store.checkpoint().unwrap();
        }
        let bytes = store.status().bytes;
        trial::fail_after(&path, 0, true);
        // The writer does not look while the state is locked: it is one commit.
        let mut waiting = Vec::new();
        {
            let mut core = store.inner.core.lock();
            let retain = |topic, message| crate::command::Command::Retain { topic, expires_at: LATER, message };
            core.push(retain("twice", b"2"));
            core.push(retain("twice", b"33"));
            core.push(retain("cleared", b"2"));
            core.push(crate::command::Command::Clear { topic: "cleared" });
            core.push(crate::command::Command::Clear { topic: "back" });
            core.push(retain("back", b"2"));
            core.push(retain("new", b"2"));
            core.push(retain("new", b"33"));
            waiting.extend(core.wait());
            store.notify(core);
        }
        assert!(waiting.into_iter().all(|answer| answer.blocking_recv().unwrap().is_err()));
        assert_eq!(found(&store), acknowledged(&model));
        assert_eq!(store.status().bytes, bytes);
        trial::heal(&path);
        let began = Instant::now();
        while store.refusal().is_some() {
            assert!(began.elapsed() < Duration::from_secs(20), "it does not write again");
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(store);
        assert_eq!(found(&open(&path)), acknowledged(&model), "folded: {was_folded}");
    }
}
