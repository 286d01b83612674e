//! What is opened, and what is refused.

use std::fs;
use std::path::{Path, PathBuf};

use ciqadamq_core::UserDirectory;
use ciqadamq_user_store::{OpenError, StoreConfig, UserStore};

use crate::support::{create, list, open, person, sled};

/// A closed store with this many users, and its directory.
fn filled(dir: &Path, users: usize) -> PathBuf {
    let path = dir.join("users");
    let store = open(&path);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for at in 0..users {
        runtime.block_on(store.execute(create(&format!("n{at:04}"), "u"))).unwrap();
    }
    path
}

fn refused(path: &Path) -> OpenError {
    match UserStore::open(StoreConfig::at(path)) {
        Ok(store) => panic!("opened, with {:?}", store.status()),
        Err(error) => {
            assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
            error
        }
    }
}

#[test]
fn users_are_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = filled(dir.path(), 40);
    let store = open(&path);
    let status = store.status();
    assert_eq!((status.users, status.revision.0, status.read_only), (40, 40, None));
    assert!(status.bytes > 0);
    assert_eq!(list(&*store, Some("u"), 7).len(), 40);
    assert!(list(&*store, None, 7).iter().all(|user| user.userid == person("u")));
}

#[test]
fn a_second_opening_is_refused_until_the_first_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("users");
    let store = open(&path);
    let error = refused(&path);
    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
    assert!(error.to_string().contains("another process"));
    drop(store);
    open(&path);
}

#[test]
fn a_database_of_somebody_else_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("users");
    let db = sled(&path);
    db.insert("alice", "{}").unwrap();
    drop(db);
    assert!(matches!(refused(&path), OpenError::Foreign { .. }));
    assert_eq!(sled(&path).get("alice").unwrap().unwrap(), "{}");
}

#[test]
fn a_newer_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = filled(dir.path(), 3);
    let db = sled(&path);
    db.insert("format", &9u32.to_be_bytes()).unwrap();
    drop(db);
    assert!(matches!(refused(&path), OpenError::Version { found: 9, supported: 2, .. }));
}

#[test]
fn a_damaged_record_is_found_at_the_start() {
    type Damage = fn(&sled::Tree);
    let damages: [(&str, Damage); 3] = [
        ("n0001", |tree| drop(tree.insert("un0001", &[1, 2, 3]).unwrap())),
        ("unknown kind", |tree| drop(tree.insert("x", &[1]).unwrap())),
        ("newer", |tree| drop(tree.insert("a", &1u64.to_be_bytes()).unwrap())),
    ];
    for (named, damage) in damages {
        let dir = tempfile::tempdir().unwrap();
        let path = filled(dir.path(), 5);
        let db = sled(&path);
        damage(&db.open_tree("users.0").unwrap());
        drop(db);
        let error = refused(&path);
        assert!(matches!(error, OpenError::Corrupt { .. }) && error.to_string().contains(named), "{error}");
    }
}

#[test]
fn a_store_that_lost_its_file_is_refused_and_not_begun_anew() {
    let losses: [fn(&Path); 3] = [
        |db| fs::remove_file(db).unwrap(),
        |db| fs::write(db, []).unwrap(),
        |db| fs::write(db, vec![0; 600_000]).unwrap(),
    ];
    for lose in losses {
        let dir = tempfile::tempdir().unwrap();
        let path = filled(dir.path(), 30);
        lose(&path.join("db"));
        for _ in 0..2 {
            let error = refused(&path);
            assert!(matches!(error, OpenError::Corrupt { .. }), "{error}");
            assert!(error.to_string().contains("restore"), "{error}");
        }
    }
}

#[test]
fn a_store_whose_log_was_cut_off_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = filled(dir.path(), 200);
    // Without its start-up snapshot sled reads the log from the beginning and takes what it finds there for all.
    for entry in fs::read_dir(&path).unwrap().map(Result::unwrap) {
        if entry.file_name().to_string_lossy().starts_with("snap.") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    let db = fs::OpenOptions::new().write(true).open(path.join("db")).unwrap();
    db.set_len(db.metadata().unwrap().len() / 2).unwrap();
    let error = refused(&path);
    assert!(matches!(error, OpenError::Corrupt { .. }), "{error}");
}

/// Whatever byte goes bad: the store is refused, or nothing is missing.
#[test]
fn flipped_bytes_never_make_users_disappear_silently() {
    let dir = tempfile::tempdir().unwrap();
    let original = filled(dir.path(), 60);
    let length = fs::metadata(original.join("db")).unwrap().len() as usize;
    let (mut opened, mut refusals) = (0, 0);
    for at in (0..24).map(|step| 5 + step * length / 24) {
        let copy = tempfile::tempdir().unwrap();
        let path = copy.path().join("users");
        copy_directory(&original, &path);
        let mut bytes = fs::read(path.join("db")).unwrap();
        for byte in &mut bytes[at..(at + 64).min(length)] {
            *byte ^= 0x5a;
        }
        fs::write(path.join("db"), bytes).unwrap();
        match UserStore::open(StoreConfig::at(&path)) {
            Ok(store) => {
                opened += 1;
                assert_eq!(list(&*store, None, 100).len(), 60, "byte {at}");
            }
            Err(OpenError::Corrupt { .. }) => refusals += 1,
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
    assert!(opened + refusals == 24);
}

fn copy_directory(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_directory(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[cfg(unix)]
#[test]
fn a_file_in_place_of_the_directory_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("users");
    fs::write(&path, "not a directory").unwrap();
    assert!(matches!(refused(&path), OpenError::Directory { .. }));
    assert_eq!(fs::read_to_string(&path).unwrap(), "not a directory");
}
