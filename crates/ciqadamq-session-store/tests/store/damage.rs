//! Damage: found, reported, set aside, never emptied in silence.

use std::fs;

use ciqadamq_session_store::{OpenError, Store};

use crate::support::{HEADER, LATER, all, config, copy, files, open, record, to};

fn filled(path: &std::path::Path) {
    let store = open(path);
    let no = store.begin(record("c"));
    for n in 0..50u8 {
        store.publish(&[n; 3000], LATER, &[to(no, 1)], None).unwrap().1.wait().unwrap();
    }
}

fn segments(path: &std::path::Path) -> Vec<std::path::PathBuf> {
    files(&path.join("log")).into_iter().filter(|p| p.extension().is_some_and(|e| e == "log")).collect()
}

#[test]
fn a_flipped_bit_in_the_log_is_found_wherever_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let sound = dir.path().join("sound");
    filled(&sound);
    let all_segments = segments(&sound);
    assert!(all_segments.len() >= 3, "{all_segments:?}");
    for (n, segment) in all_segments.iter().enumerate() {
        for at in [3, 40, 5000, 20_000] {
            let damaged = dir.path().join(format!("damaged{n}-{at}"));
            copy(&sound, &damaged);
            let path = damaged.join("log").join(segment.file_name().unwrap());
            let mut bytes = fs::read(&path).unwrap();
            if n + 1 == all_segments.len() && at > 5000 {
                // In the last one it may lie behind the end.
                continue;
            }
            bytes[at] ^= 4;
            fs::write(&path, bytes).unwrap();
            let error = Store::open(config(&damaged)).err();
            assert!(matches!(error, Some(OpenError::Corrupt { .. })), "segment {n}, byte {at}: {error:?}");
        }
    }
}

#[test]
fn a_flipped_bit_in_the_last_commit_of_a_store_that_was_closed_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let no = store.begin(record("c"));
    store.publish(&[1; 3000], LATER, &[to(no, 1)], None).unwrap().1.wait().unwrap();
    let end = store.log_end() as usize;
    drop(store);
    let path = &segments(dir.path())[0];
    let mut bytes = fs::read(path).unwrap();
    bytes[HEADER + end - 100] ^= 4;
    fs::write(path, bytes).unwrap();
    assert!(matches!(Store::open(config(dir.path())), Err(OpenError::Corrupt { .. })));
}

#[test]
fn a_missing_segment_and_a_missing_sled_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let sound = dir.path().join("sound");
    filled(&sound);
    let first = dir.path().join("first");
    copy(&sound, &first);
    fs::remove_file(&segments(&first)[0]).unwrap();
    assert!(matches!(Store::open(config(&first)), Err(OpenError::Corrupt { .. })));
    let sled = dir.path().join("sled");
    copy(&sound, &sled);
    fs::remove_dir_all(sled.join("base.1")).unwrap();
    assert!(matches!(Store::open(config(&sled)), Err(OpenError::Corrupt { .. })));
}

#[test]
fn a_log_that_is_not_there_any_more_is_found() {
    let dir = tempfile::tempdir().unwrap();
    for was_folded in [false, true] {
        let path = dir.path().join(format!("sessions{was_folded}"));
        filled(&path);
        if was_folded {
            open(&path).checkpoint().unwrap();
        }
        let without = dir.path().join(format!("without{was_folded}"));
        copy(&path, &without);
        fs::remove_dir_all(without.join("log")).unwrap();
        segments(&path).iter().for_each(|segment| fs::remove_file(segment).unwrap());
        for path in [path, without] {
            let error = Store::open(config(&path)).err();
            assert!(matches!(error, Some(OpenError::Corrupt { .. })), "{path:?}: {error:?}");
            let (store, set_aside) = Store::open_or_set_aside(config(&path)).unwrap();
            assert!(set_aside.is_some() && all(&store).sessions.is_empty());
        }
    }
}

#[test]
fn segments_that_a_checkpoint_could_not_let_go_of_any_more_are_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let (path, before) = (dir.path().join("sessions"), dir.path().join("before"));
    filled(&path);
    copy(&path, &before);
    let store = open(&path);
    store.checkpoint().unwrap();
    let found = all(&store);
    drop(store);
    for segment in segments(&before) {
        fs::copy(&segment, path.join("log").join(segment.file_name().unwrap())).unwrap();
    }
    assert_eq!(all(&open(&path)), found);
}

#[test]
fn a_damaged_store_is_set_aside_as_it_is_and_a_new_one_works() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sessions");
    filled(&path);
    let segment = segments(&path)[0].clone();
    let mut bytes = fs::read(&segment).unwrap();
    bytes[100] ^= 1;
    fs::write(&segment, &bytes).unwrap();
    let (store, set_aside) = Store::open_or_set_aside(config(&path)).unwrap();
    let (aside, reason) = set_aside.expect("it says so");
    assert!(!reason.is_empty());
    assert_eq!(fs::read(aside.join("log").join(segment.file_name().unwrap())).unwrap(), bytes);
    assert!(all(&store).sessions.is_empty());
    store.begin(record("new"));
    drop(store);
    assert!(all(&open(&path)).sessions.contains_key("new"));
}

#[test]
fn a_store_that_is_open_cannot_be_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let _store = open(dir.path());
    assert!(matches!(Store::open(config(dir.path())), Err(OpenError::Locked { .. })));
}
