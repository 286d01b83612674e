//! A store that is started again and again.

use std::path::Path;

use ciqadamq_session_store::{Store, StoreConfig};

use crate::support::{LATER, all, config, files, open, record, to};

fn log_files(path: &Path) -> usize {
    files(&path.join("log")).len()
}

#[test]
fn many_starts_with_a_few_messages_each_leave_few_segments() {
    let dir = tempfile::tempdir().unwrap();
    let config = StoreConfig { checkpoint_bytes: 4 * (64 << 10), ..config(dir.path()) };
    let mut most = 0;
    for _ in 0..20 {
        let store = Store::open(config.clone()).unwrap();
        let no = store.find("c").unwrap_or_else(|| store.begin(record("c")));
        for _ in 0..3 {
            store.publish(b"x", LATER, &[to(no, 1)], None).unwrap().1.wait().unwrap();
        }
        drop(store);
        most = most.max(log_files(dir.path()));
    }
    // Four make a checkpoint. Another two may begin meanwhile, and two are kept for later.
    assert!(most <= 8, "{most} files");
    assert_eq!(all(&open(dir.path())).sessions["c"].queue.len(), 60);
}
