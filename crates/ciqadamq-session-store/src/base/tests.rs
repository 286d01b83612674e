//! Large values.

use super::*;

fn blobs(path: &Path) -> HashSet<OsString> {
    fs::read_dir(path.join("blobs")).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
fn files_for_large_values_are_synced_and_forgotten_when_they_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("base.1");
    let base = Base::open(&path, 1 << 20).unwrap();
    let meta = Meta { store: 1, replay_from: 0, has_log: true, next_session: 1, next_message: 1 };
    let mut most = 0;
    for round in 0..10 {
        base.write(vec![(Key::Message(round), Some(vec![round as u8; 300 << 10]))]).unwrap();
        base.finish(meta).unwrap();
        assert_eq!(*base.synced.lock(), blobs(&path), "round {round}");
        most = most.max(base.synced.lock().len());
    }
    assert!(most > 0, "sled has large values elsewhere");
    (0..10).for_each(|n| base.write(vec![(Key::Message(n), None)]).unwrap());
    // The files go when the pages behind them are written again.
    for round in 0..200 {
        base.write(vec![(Key::Heard(1), Some(vec![round; 100 << 10]))]).unwrap();
        base.finish(meta).unwrap();
    }
    assert_eq!(*base.synced.lock(), blobs(&path));
    drop(base);
    // What an earlier process has left is not known to be durable.
    let base = Base::open(&path, 1 << 20).unwrap();
    assert!(base.synced.lock().is_empty());
    base.finish(meta).unwrap();
    assert_eq!(*base.synced.lock(), blobs(&path));
}
