//! Opening: sled first, then the log on top of it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::base::{Base, BaseError, Meta};
use crate::command::Command;
use crate::core::{Core, Frame, now};
use crate::journal::{Journal, ReplayError, sync_dir};
use crate::records::Millis;
use crate::state::State;
use crate::store::{Disk, Inner, Tally};
use crate::wire::Take;
use crate::{Durability, OpenError, StoreConfig};

/// A broker that is being restarted may still be letting go of the store.
const LOCK_WAIT: Duration = Duration::from_secs(2);

pub(crate) fn open(config: StoreConfig) -> Result<Inner, OpenError> {
    let mut state = State { next_session: 1, next_message: 1, ..State::default() };
    let (disk, last, frame_at, log_bytes) = if config.durability == Durability::Memory {
        (None, now(), 0, 0)
    } else {
        let (opened, last) = open_disk(&config, &mut state).map_err(|error| error.at(&config.path))?;
        let (end, bytes) = {
            let journal = opened.journal.lock();
            (journal.end(), journal.bytes())
        };
        (Some(opened), last, end, bytes)
    };
    let mut core = Core {
        state,
        frame: Frame::default(),
        frame_at,
        fault: None,
        mending: false,
        folded: 0,
        unsettled: false,
        short: None,
        closed: false,
        volatile: disk.is_none(),
        enough: 0,
    };
    disconnect(&mut core, last);
    // By its files, not by what is in them: each start begins another one.
    let checkpoint_wanted = AtomicBool::new(log_bytes >= config.checkpoint_bytes);
    Ok(Inner {
        config,
        core: Mutex::new(core),
        wake: Condvar::new(),
        disk,
        faulted: AtomicBool::new(false),
        checkpoint_wanted,
        fold: Condvar::new(),
        folding: Mutex::new(()),
        tally: Tally::default(),
    })
}

enum Failure {
    Base(BaseError),
    Replay(ReplayError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Base(BaseError::Io(error))
    }
}
impl From<BaseError> for Failure {
    fn from(error: BaseError) -> Self {
        Self::Base(error)
    }
}
impl From<ReplayError> for Failure {
    fn from(error: ReplayError) -> Self {
        Self::Replay(error)
    }
}

impl Failure {
    fn at(self, path: &Path) -> OpenError {
        let path = path.to_owned();
        match self {
            Self::Base(BaseError::Io(source)) | Self::Replay(ReplayError::Io(source)) => OpenError::Io { path, source },
            Self::Base(BaseError::Corrupt(reason)) | Self::Replay(ReplayError::Corrupt(reason)) => {
                OpenError::Corrupt { path, reason }
            }
            Self::Base(BaseError::Locked) => OpenError::Locked { path },
            Self::Base(error @ BaseError::Version(_)) => OpenError::Version { path, reason: error.to_string() },
            Self::Replay(ReplayError::Version(reason)) => OpenError::Version { path, reason },
        }
    }
}

/// Also when the store was alive for the last time.
fn open_disk(config: &StoreConfig, state: &mut State) -> Result<(Disk, Millis), Failure> {
    let path = &config.path;
    let log = path.join("log");
    make_private(path)?;
    make_private(&log)?;
    let began = Instant::now();
    let (base, meta) = open_base(config, &log)?;
    base.load(state)?;
    state.next_session = state.next_session.max(meta.next_session);
    state.next_message = state.next_message.max(meta.next_message);
    state.count();

    let mut journal = Journal::new(&log, meta.store, config.segment_bytes);
    let mut last = None;
    journal.replay(meta.replay_from, meta.has_log, |payload, at| {
        last = Some(apply(state, payload, at).map_err(|e| ReplayError::Corrupt(e.to_string()))?);
        Ok(())
    })?;
    let dangling = state.settle();
    if dangling > 0 {
        return Err(BaseError::Corrupt(format!("{dangling} sessions are owed messages that are nowhere")).into());
    }
    if !meta.has_log {
        // Before anything is promised: from here on a log that is not there is one that was lost.
        if journal.segments().start().is_none() {
            journal.rotate()?;
        }
        base.finish(Meta { has_log: true, ..meta })?;
    }
    tracing::info!(
        path = %path.display(),
        sessions = state.sessions.len(),
        messages = state.messages.len(),
        retained = state.retained.len(),
        seconds = began.elapsed().as_secs_f64(),
        "session store open"
    );
    let segments = journal.segments();
    let disk = Disk { store: meta.store, segments, journal: Mutex::new(journal), base: Mutex::new(Arc::new(base)) };
    Ok((disk, last.unwrap_or_else(now)))
}

/// Applies the commands of a frame; returns when it was written.
fn apply(state: &mut State, payload: &[u8], at: u64) -> Result<Millis, crate::wire::Malformed> {
    let mut from = Take::new(payload);
    let time = from.i64()?;
    while !from.is_empty() && !from.is_padding() {
        let command = Command::decode(&mut from)?;
        let message = match &command {
            Command::Publish { message, .. } | Command::Retain { message, .. } => message.len(),
            _ => 0,
        };
        state.apply(command, at + (from.position() - message) as u64);
    }
    Ok(time)
}

/// Connections end with the process: sessions that were online are not, since the last sign of life. It is written, for the next
/// start finds later ones.
fn disconnect(core: &mut Core, last: Millis) {
    let online: Vec<_> = core
        .state
        .sessions
        .iter()
        .filter(|(_, session)| session.record.disconnected_at.is_none())
        .map(|(no, session)| (*no, session.record.clone()))
        .collect();
    for (no, mut record) in online {
        record.disconnected_at = Some(last.min(now()));
        core.push(Command::Session { no, record });
    }
}

/// The newest sled that was finished. Another one is what a rewriting that was cut short has left.
fn open_base(config: &StoreConfig, log: &Path) -> Result<(Base, Meta), Failure> {
    let mut generations = generations(&config.path)?;
    let is_new = generations.is_empty();
    if is_new && fs::read_dir(log)?.next().is_some() {
        return Err(BaseError::Corrupt("there is a log, but nothing it belongs to".into()).into());
    }
    while let Some(generation) = generations.pop() {
        let path = base_path(&config.path, generation);
        let base = open_patiently(&path, config.cache_bytes)?;
        let Some(meta) = base.meta()? else {
            // Without a note it was never in use, unless it was the only one and has something in it.
            if generations.is_empty() && !(base.is_empty() && fs::read_dir(log)?.next().is_none()) {
                return Err(
                    BaseError::Corrupt("sled came up without its note, though it was in use before".into()).into()
                );
            }
            drop(base);
            fs::remove_dir_all(&path)?;
            continue;
        };
        for older in generations {
            fs::remove_dir_all(base_path(&config.path, older))?;
        }
        return Ok((base, meta));
    }
    let path = base_path(&config.path, 1);
    let base = Base::open(&path, config.cache_bytes)?;
    let meta = Meta { store: random(), replay_from: 0, has_log: false, next_session: 1, next_message: 1 };
    base.finish(meta)?;
    sync_dir(&path)?;
    sync_dir(&config.path)?;
    if let Some(parent) = config.path.parent().filter(|p| !p.as_os_str().is_empty()) {
        // It may belong to somebody else; then its durability is theirs too.
        sync_dir(parent).or_else(|e| if e.kind() == io::ErrorKind::PermissionDenied { Ok(()) } else { Err(e) })?;
    }
    Ok((base, meta))
}

fn open_patiently(path: &Path, cache_bytes: u64) -> Result<Base, BaseError> {
    let began = Instant::now();
    loop {
        match Base::open(path, cache_bytes) {
            Err(BaseError::Locked) if began.elapsed() < LOCK_WAIT => std::thread::sleep(Duration::from_millis(20)),
            other => return other,
        }
    }
}

/// The numbers of the sleds in the store's directory, in order.
pub(crate) fn generations(path: &Path) -> io::Result<Vec<u32>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        all.extend(name.to_str().and_then(|n| n.strip_prefix("base.")).and_then(|n| n.parse::<u32>().ok()));
    }
    all.sort_unstable();
    Ok(all)
}

pub(crate) fn base_path(path: &Path, generation: u32) -> PathBuf {
    path.join(format!("base.{generation}"))
}

fn make_private(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        fs::create_dir_all(parent)?;
    }
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// A number that no other store has.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(now())
}

#[cfg(test)]
mod tests;
