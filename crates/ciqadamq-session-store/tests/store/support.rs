//! What several tests need.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ciqadamq_session_store::{Durability, Heard, Recipient, SessionNo, SessionRecord, Stage, Store, StoreConfig};

/// Bytes in front of the first frame of a segment.
pub const HEADER: usize = 48;

/// Never.
pub const LATER: i64 = i64::MAX;

/// Small segments, so that a test sees many.
pub fn config(path: &Path) -> StoreConfig {
    StoreConfig {
        segment_bytes: 64 << 10,
        checkpoint_bytes: 1 << 30,
        cache_bytes: 1 << 20,
        reserve_bytes: 0,
        durability: Durability::Fsync,
        ..StoreConfig::at(path)
    }
}

pub fn open(path: &Path) -> Store {
    Store::open(config(path)).unwrap()
}

pub fn record(client_id: &str) -> SessionRecord {
    SessionRecord { client_id: client_id.into(), expiry_secs: 3600, ..SessionRecord::default() }
}

pub fn to(session: SessionNo, qos: u8) -> Recipient {
    Recipient { session, qos, retain: false, subscription_ids: None }
}

/// One session as it can be compared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    pub subscriptions: BTreeMap<String, Vec<u8>>,
    /// payload (`None` once only its end is owed), QoS, stage
    pub queue: Vec<(Option<Vec<u8>>, u8, Stage)>,
    pub inbound: Vec<(u16, u64)>,
}

/// Everything in a store as it can be compared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct All {
    pub sessions: BTreeMap<String, Seen>,
    pub retained: BTreeMap<String, Vec<u8>>,
    pub heard: BTreeMap<u64, Heard>,
}

pub fn all(store: &Store) -> All {
    let mut all = All::default();
    for no in store.sessions() {
        let session = store.session(no).unwrap();
        let mut ids = std::collections::HashSet::new();
        let queue = session.queue.iter().map(|owed| {
            assert!(ids.insert(owed.packet_id()), "a packet identifier stands for two messages");
            let payload = owed.holds_message().then(|| store.message(owed.message).expect("an owed message is there"));
            (payload, owed.qos, owed.stage)
        });
        let seen = Seen {
            queue: queue.collect(),
            subscriptions: session.subscriptions.clone(),
            inbound: session.inbound.iter().map(|i| (i.packet_id, i.hash)).collect(),
        };
        all.sessions.insert(session.record.client_id.clone(), seen);
    }
    for (topic, _) in store.retained() {
        let message = store.retained_message(&topic).expect("a retained message is there");
        all.retained.insert(topic, message);
    }
    all.heard = store.heard();
    all
}

/// What a crash leaves: the files as they are, except that the log was written only up to `upto`, and holds `rest` behind.
pub fn crash(from: &Path, to: &Path, upto: u64, rest: impl Fn(usize) -> u8) {
    copy(from, to);
    let log = to.join("log");
    for path in files(&log) {
        let name = path.file_name().unwrap().to_str().unwrap();
        let Some(base) = name.strip_suffix(".log").map(|n| u64::from_str_radix(n, 16).unwrap()) else { continue };
        let mut bytes = fs::read(&path).unwrap();
        if base > upto {
            // It did not exist yet. One at `upto` may have: a checkpoint relies on it.
            fs::remove_file(&path).unwrap();
            continue;
        }
        let keep = HEADER + (upto - base) as usize;
        for (at, byte) in bytes.iter_mut().enumerate().skip(keep) {
            *byte = rest(at);
        }
        fs::write(&path, bytes).unwrap();
    }
}

/// What a power cut leaves: of what was not `durable` in the log, any blocks, as `keeps` says.
pub fn power_cut(from: &Path, to: &Path, durable: u64, mut keeps: impl FnMut() -> bool) {
    // Smaller than those of a disk, so that a few commands fill many.
    const BLOCK: usize = 64;
    copy(from, to);
    for path in files(&to.join("log")) {
        let name = path.file_name().unwrap().to_str().unwrap();
        let Some(base) = name.strip_suffix(".log").map(|n| u64::from_str_radix(n, 16).unwrap()) else { continue };
        let mut bytes = fs::read(&path).unwrap();
        let first = HEADER + durable.saturating_sub(base) as usize;
        for (n, block) in bytes.chunks_mut(BLOCK).enumerate() {
            // The front of the block in which it begins was on the disk before.
            let front = first.saturating_sub(n * BLOCK).min(block.len());
            if front < block.len() && !keeps() {
                block[front..].fill(0);
            }
        }
        fs::write(&path, bytes).unwrap();
    }
}

pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for path in files(from) {
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut all: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    all.sort();
    all
}

/// A disk of its own, mounted where a directory is. Gone with its owner.
#[cfg(target_os = "linux")]
pub struct SmallDisk(pub PathBuf);

#[cfg(target_os = "linux")]
impl SmallDisk {
    /// `None`, with a word, where mounting is not allowed.
    pub fn mount(at: &Path, size: &str) -> Option<Self> {
        let mount = std::process::Command::new("mount").args(["-t", "tmpfs", "-o", size, "tmpfs"]).arg(at).status();
        if mount.is_ok_and(|status| status.success()) {
            return Some(Self(at.to_owned()));
        }
        println!("SKIPPED: a disk cannot be mounted here; it takes root");
        None
    }
}

#[cfg(target_os = "linux")]
impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a store may still be open.
        std::process::Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}
