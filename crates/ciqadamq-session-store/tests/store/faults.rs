//! A disk that has little room, or does not take writes: messages are refused, the rest goes on, and all is well again once there
//! is room.

use std::path::Path;
use std::time::{Duration, Instant};

use ciqadamq_session_store::{Inbound, Refusal, Stage, Store, StoreConfig};

#[cfg(target_os = "linux")]
use crate::support::SmallDisk;
use crate::support::{LATER, all, config, copy, open, record, to};

/// A store that finds no room on any disk.
fn without_room(path: &Path) -> StoreConfig {
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
    assert!(store.inherit(b"x", LATER, to(no, 1), None, Stage::Queued).is_err());
    let found = all(&store);
    assert!(found.sessions["c"].queue.is_empty() && found.retained.is_empty());
}

#[test]
fn what_brings_no_message_is_on_disk_though_there_is_no_room_for_messages() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let inbound = |packet_id| Inbound { packet_id, hash: 1, message: 0 };
    let store = open(&path);
    let no = store.begin(record("c"));
    store.begin(record("over"));
    drop(store.subscribe(no, "old", b"o"));
    let sent = [b"1", b"2", b"3"].map(|message| {
        let (number, _) = store.publish(message, LATER, &[to(no, 2)], Some((no, inbound(1)))).unwrap();
        store.deliver(no, number as u32).unwrap()
    });
    drop(store.retain("t", LATER, b"x").unwrap());
    drop(store);

    let store = Store::open(without_room(&path)).unwrap();
    let refused = store.publish(b"refused", LATER, &[to(no, 1)], None).and_then(|(_, commit)| commit.wait());
    assert!(matches!(refused, Err(Refusal::DiskFull(_))), "{refused:?}");
    store.unsubscribe(no, "old").wait().unwrap();
    store.subscribe(no, "new", b"o").wait().unwrap();
    store.received(no, sent[0]).wait().unwrap();
    store.acknowledged(no, sent[1]);
    store.released(no, 1);
    store.publish(b"for nobody", LATER, &[], Some((no, inbound(2)))).unwrap().1.wait().unwrap();
    store.end(store.find("over").unwrap());
    store.clear("t").wait().unwrap();
    store.flush().unwrap();
    assert!(matches!(store.status().fault, Some(Refusal::DiskFull(_))) && store.fault().is_none());

    // What `kill -9` leaves.
    let killed = dir.path().join("killed");
    copy(&path, &killed);
    let found = all(&open(&killed));
    assert_eq!(found, all(&store));
    let session = &found.sessions["c"];
    assert_eq!(session.subscriptions.keys().collect::<Vec<_>>(), ["new"]);
    assert_eq!(session.queue.iter().map(|(_, _, stage)| *stage).collect::<Vec<_>>(), [Stage::Received, Stage::Sent]);
    assert_eq!(session.inbound, [(2, 1)]);
    assert_eq!((found.sessions.len(), found.retained.len()), (1, 0));
    // Folding the log goes on, too.
    store.checkpoint().unwrap();
    assert_eq!(all(&store), found);
    drop(store);
    assert_eq!(all(&open(&path)), found);
}

#[test]
fn what_stands_beside_a_message_in_a_commit_is_written_without_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = Store::open(without_room(&path)).unwrap();
    // Nobody waits for any of it, so it is one commit, before which nobody has looked how much room there is.
    let no = store.begin(record("c"));
    drop(store.inherit(b"refused", LATER, to(no, 2), Some(7), Stage::Sent));
    store.change(no, |record| record.expiry_secs = 77);
    // Whoever waits for such a commit hears of the message.
    drop(store.flush());
    let killed = dir.path().join("killed");
    copy(&path, &killed);
    let killed = open(&killed);
    for store in [&store, &killed] {
        let session = store.session(no).unwrap();
        assert_eq!((session.record.expiry_secs, session.queue.len()), (77, 0));
        assert_eq!(store.status().messages, 0);
    }
}

#[test]
fn once_there_is_room_messages_are_taken_again() {
    let dir = tempfile::tempdir().unwrap();
    let (path, away) = (dir.path().join("store"), dir.path().join("away"));
    let store = Store::open(without_room(&path)).unwrap();
    let no = store.begin(record("c"));
    until("it is found full", || store.refusal().is_some());
    // Where there is no directory, nobody can say how much room there is: then it is not too little.
    std::fs::rename(&path, &away).unwrap();
    until("there is room, although nothing is written", || store.refusal().is_none());
    store.publish(b"kept", LATER, &[to(no, 1)], None).unwrap().1.wait().unwrap();
    std::fs::rename(&away, &path).unwrap();
    drop(store);
    assert_eq!(all(&open(&path)).sessions["c"].queue.len(), 1);
}

#[cfg(target_os = "linux")]
#[test]
fn the_reserve_is_used_to_its_end_and_what_came_after_that_is_written_later() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path(), "size=32m") else { return };
    let (path, ballast) = (disk.0.join("store"), disk.0.join("ballast"));
    let config = StoreConfig { segment_bytes: 4 << 20, reserve_bytes: 10 << 20, ..config(&path) };
    let store = Store::open(config.clone()).unwrap();
    let no = store.begin(record("c"));
    store.publish(b"kept", LATER, &[to(no, 1)], None).unwrap().1.wait().unwrap();
    let free = || fs2::available_space(&disk.0).unwrap();
    std::fs::write(&ballast, vec![0; (free() - (9 << 20)) as usize]).unwrap();
    let mut written = 0;
    // One value again and again: it is the log that grows.
    let fault = loop {
        assert!(written < 10_000, "nothing fills the disk");
        match store.subscribe(no, "filter", &[1; 20_000]).wait() {
            Ok(()) => written += 1,
            Err(fault) => break fault,
        }
    };
    assert!(matches!(fault, Refusal::DiskFull(_)), "{fault:?}");
    // What was left of the first segment, and nine MiB; the last of them hold no whole segment.
    assert!(written > 650 && free() < 50 << 10, "{written} subscriptions, {} bytes are left", free());
    assert!(store.publish(b"refused", LATER, &[to(no, 1)], None).is_err());
    store.subscribe(no, "in memory", b"o").wait().unwrap();
    std::fs::remove_file(&ballast).unwrap();
    until("it writes again", || store.refusal().is_none());
    store.publish(b"kept, too", LATER, &[to(no, 1)], None).unwrap().1.wait().unwrap();
    let before = all(&store);
    assert_eq!(before.sessions["c"].queue.len(), 2);
    drop(store);
    assert_eq!(all(&Store::open(config).unwrap()), before);
}

#[test]
fn what_changed_without_a_disk_is_written_when_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let store = open(dir.path());
    let no = store.begin(record("kept"));
    store.retain("t", LATER, b"x").unwrap().wait().unwrap();
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
    // What would come back if the process ended before the disk works again is not said to be gone.
    assert!(store.unsubscribe(no, "meanwhile").wait().is_err() && store.clear("t").wait().is_err());
    assert!(store.retained().is_empty());
    assert_eq!(store.fault(), store.refusal());
    assert!(store.so_far().wait().is_err() && store.flush().is_err());
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
    assert!(after.sessions["kept"].subscriptions.contains_key("meanwhile") && after.retained.is_empty());
}

#[test]
fn what_changed_without_a_disk_is_written_at_the_end_if_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let (log, away) = (dir.path().join("log"), dir.path().join("away"));
    let store = open(dir.path());
    let no = store.begin(record("c"));
    store.flush().unwrap();
    std::fs::rename(&log, &away).unwrap();
    let big = vec![1; 100 << 10];
    until("a segment is full", || {
        store.publish(&big, LATER, &[to(no, 1)], None).and_then(|(_, commit)| commit.wait()).is_err()
    });
    // Before it is tried again, a second later.
    drop(store.subscribe(no, "meanwhile", b"o"));
    std::fs::rename(&away, &log).unwrap();
    let before = all(&store);
    drop(store);
    assert_eq!(all(&open(dir.path())), before);
    assert!(before.sessions["c"].subscriptions.contains_key("meanwhile"));
}

#[test]
fn who_waits_for_everything_hears_that_a_commit_without_a_waiter_has_failed() {
    let dir = tempfile::tempdir().unwrap();
    let (log, away) = (dir.path().join("log"), dir.path().join("away"));
    for gathered_ms in [0, 4, 5, 6, 20] {
        let store = open(dir.path());
        let no = store.begin(record("c"));
        store.flush().unwrap();
        std::fs::rename(&log, &away).unwrap();
        // More than a segment holds, so that the next one has to begin.
        store.change(no, |record| record.connection = vec![1; 70 << 10]);
        std::thread::sleep(Duration::from_millis(gathered_ms));
        let flushed = store.flush();
        assert!(flushed.is_err() && store.so_far().wait().is_err(), "after {gathered_ms} ms: {flushed:?}");
        std::fs::rename(&away, &log).unwrap();
    }
}

#[test]
fn what_begins_while_it_recovers_is_there_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let (path, away, killed) = (dir.path().join("store"), dir.path().join("away"), dir.path().join("killed"));
    let log = path.join("log");
    let store = open(&path);
    let no = store.begin(record("c"));
    (0..3_000).for_each(|n| _ = store.begin(record(&format!("before{n}"))));
    store.flush().unwrap();
    std::fs::rename(&log, &away).unwrap();
    let big = vec![1; 100 << 10];
    until("a segment is full", || {
        store.publish(&big, LATER, &[to(no, 1)], None).and_then(|(_, commit)| commit.wait()).is_err()
    });
    std::fs::rename(&away, &log).unwrap();
    let mut n = 0;
    let began = Instant::now();
    while store.refusal().is_some() {
        assert!(began.elapsed() < Duration::from_secs(10), "it does not write again");
        n += 1;
        store.begin(record(&format!("meanwhile{n}")));
        std::thread::sleep(Duration::from_micros(200));
    }
    let last = store.begin(record("last"));
    store.publish(b"x", LATER, &[to(last, 1)], None).unwrap().1.wait().unwrap();
    copy(&path, &killed);
    assert_eq!(all(&open(&killed)), all(&store));
}

#[cfg(target_os = "linux")]
#[test]
fn a_checkpoint_that_might_fill_the_disk_is_put_off_until_there_is_less_to_write() {
    // Whether the disk is short of space or not.
    for reserve_bytes in [16 << 20, 1 << 20] {
        is_put_off(reserve_bytes);
    }
}

#[cfg(target_os = "linux")]
fn is_put_off(reserve_bytes: u64) {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path(), "size=48m") else { return };
    let config = StoreConfig { segment_bytes: 4 << 20, reserve_bytes, ..config(&disk.0.join("store")) };
    let store = Store::open(config.clone()).unwrap();
    let no = store.begin(record("c"));
    let numbers: Vec<_> =
        (0..8).map(|_| store.publish(&vec![1; 1 << 20], LATER, &[to(no, 1)], None).unwrap().0 as u32).collect();
    store.flush().unwrap();
    let free = fs2::available_space(&disk.0).unwrap();
    std::fs::write(disk.0.join("ballast"), vec![0; (free - (14 << 20)) as usize]).unwrap();
    let put_off = store.checkpoint();
    assert!(matches!(put_off, Err(Refusal::DiskFull(_))), "{put_off:?}");
    store.subscribe(no, "f", b"o").wait().unwrap();
    numbers.iter().for_each(|number| store.drop_queued(no, *number));
    store.checkpoint().unwrap();
    let found = all(&store);
    drop(store);
    assert_eq!(all(&Store::open(config).unwrap()), found);
}
