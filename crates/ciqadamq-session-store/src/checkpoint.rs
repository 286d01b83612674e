//! Folding the log into sled.
//!
//! A new segment begins; then the present values of all that has changed are written to sled, in portions, while everything
//! goes on; then sled notes that the log counts from that segment on, and the ones in front of it are let go of. The values are
//! those of different moments. That does no harm: what has changed since the segment began is in the log, which is applied
//! on top; and is there before sled gets a value that was made by it.
//!
//! Messages are read from where they were until sled has made its note. So one that fails, at whatever step, has only to give back
//! the list of what had changed.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::Refusal;
use crate::base::{Base, BaseError, Meta, value};
use crate::journal::sync_dir;
use crate::open::{base_path, generations};
use crate::state::{Key, Place};
use crate::store::{Disk, Inner, count};
use crate::writer;

/// Values in one portion: the state is locked for so many.
const PORTION: usize = 512;
/// Bytes in one portion.
const PORTION_BYTES: usize = 4 << 20;
/// sled is rewritten when it has grown to so many times what is in it, ...
const GARBAGE_FACTOR: u64 = 4;
/// ... and is larger than this.
const GARBAGE_MIN: u64 = 64 << 20;
/// After one that failed the next is not begun before so long.
const PAUSE: Duration = Duration::from_secs(10);

/// Makes checkpoints when they are asked for, until the store is closed.
pub(crate) fn when_wanted(inner: &Inner) {
    loop {
        {
            let mut core = inner.core.lock();
            while !core.closed && !inner.checkpoint_wanted.load(Ordering::Acquire) {
                inner.fold.wait(&mut core);
            }
            if core.closed {
                return;
            }
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| run(inner)));
        let has_failed = !matches!(outcome, Ok(Ok(())));
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => {
                tracing::warn!(%reason, "checkpoint of the session store failed; the log goes on growing")
            }
            Err(_) => tracing::error!("checkpoint of the session store panicked; the log goes on growing"),
        }
        if has_failed {
            let mut core = inner.core.lock();
            // Nobody asks for another one while this is wanted: only the end cuts it short.
            if !core.closed {
                inner.fold.wait_for(&mut core, PAUSE);
            }
        }
        inner.checkpoint_wanted.store(false, Ordering::Release);
    }
}

/// Has one made soon.
pub(crate) fn want(inner: &Inner) {
    if !inner.checkpoint_wanted.swap(true, Ordering::AcqRel) {
        // Whoever has just found nothing wanted is waiting now, and hears it.
        drop(inner.core.lock());
        inner.fold.notify_all();
    }
}

/// Has one made if most of what sled holds is garbage, although the log grows slowly.
pub(crate) fn want_if_garbage(inner: &Inner) {
    let Some(disk) = &inner.disk else { return };
    let base = disk.base.lock().clone();
    if is_garbage(inner, base.bytes()) {
        want(inner);
    }
}

/// Whether a sled of this size is to be replaced by a new one.
fn is_garbage(inner: &Inner, size: u64) -> bool {
    size > GARBAGE_MIN && size > GARBAGE_FACTOR * inner.core.lock().state.size()
}

/// Whether a checkpoint will find room. It has to be certain: a sled that met a full disk in the middle would have to be opened
/// again. It may use the reserve, as all may that is no message.
fn fits(inner: &Inner, disk: &Disk) -> Result<(), Refusal> {
    let config = &inner.config;
    // A file system that cannot say how much is free is not refused for that.
    let Ok(free) = fs2::available_space(&config.path) else { return Ok(()) };
    let is_rewritten = is_garbage(inner, disk.base.lock().bytes());
    let brings = {
        let state = &inner.core.lock().state;
        if is_rewritten { state.size() } else { state.size_of_touched() }
    };
    // sled writes again what stands beside it; and a segment begins.
    let needs = 2 * brings + config.segment_bytes;
    if free < needs {
        return Err(Refusal::DiskFull(format!("{free} bytes free, and a checkpoint may need {needs}")));
    }
    Ok(())
}

/// One checkpoint.
pub(crate) fn run(inner: &Inner) -> Result<(), Refusal> {
    let Some(disk) = &inner.disk else { return Ok(()) };
    let _one_at_a_time = inner.folding.lock();
    writer::flush(inner)?;
    fits(inner, disk)?;
    let cut = {
        let mut journal = disk.journal.lock();
        // A frame that has failed since is for `recover`.
        journal.check().and_then(|()| journal.rotate()).map_err(|e| broken(&e))?
    };
    fold(inner, disk, cut, || writer::flush(inner))
}

/// A checkpoint after writing has failed: the writer's thread calls it, nothing is being written. What changes while it is made
/// gathers in frames again, and `write` writes them.
pub(crate) fn recover(inner: &Inner, write: impl Fn() -> Result<(), Refusal>) -> Result<(), Refusal> {
    let Some(disk) = &inner.disk else { return Ok(()) };
    let _one_at_a_time = inner.folding.lock();
    fits(inner, disk)?;
    let cut = disk.journal.lock().rotate().map_err(|e| broken(&e))?;
    {
        // Before it is taken down what has changed: from here on a change is in the log, or in the checkpoint, or in both.
        let mut core = inner.core.lock();
        (core.mending, core.frame_at) = (true, cut);
    }
    fold(inner, disk, cut, write)
}

fn broken(error: &dyn std::fmt::Display) -> Refusal {
    Refusal::Broken(error.to_string())
}

fn fold(inner: &Inner, disk: &Disk, cut: u64, written: impl Fn() -> Result<(), Refusal>) -> Result<(), Refusal> {
    let old = disk.base.lock().clone();
    if is_garbage(inner, old.bytes()) {
        rewrite(inner, disk, &old, cut, &written)?;
    } else {
        let touched = std::mem::take(&mut inner.core.lock().state.touched);
        let mut keys: Vec<Key> = touched.iter().cloned().collect();
        // Messages before those who are owed them.
        keys.sort_unstable_by_key(|key| !matches!(key, Key::Message(_)));
        let outcome = caught(|| {
            write(inner, disk, &old, &old, cut, &keys, &written)?;
            finish(inner, disk, &old, cut, &written)
        });
        settle(inner, cut, outcome, touched, &keys)?;
    }
    disk.journal.lock().forget_before(cut).map_err(|e| broken(&e))?;
    count(&inner.tally.checkpoints, 1);
    Ok(())
}

/// What is done with sled, which has assertions: after one of them, too, it has to be known what was to be written.
fn caught(f: impl FnOnce() -> Result<(), BaseError>) -> Result<(), BaseError> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| Err(BaseError::Corrupt("sled panicked".into())))
}

/// The end of a checkpoint of `keys`, of which `touched` had changed.
fn settle(
    inner: &Inner,
    cut: u64,
    outcome: Result<(), BaseError>,
    touched: HashSet<Key>,
    keys: &[Key],
) -> Result<(), Refusal> {
    match outcome {
        Ok(()) => {
            moved(inner, cut, keys);
            Ok(())
        }
        Err(error) => {
            // Not known how many of them were written: all again, next time.
            inner.core.lock().state.touched.extend(touched);
            Err(broken(&error))
        }
    }
}

/// Makes a new sled with what is in the state, in place of one that is mostly garbage: it does not give space back by itself.
fn rewrite(
    inner: &Inner,
    disk: &Disk,
    old: &Arc<Base>,
    cut: u64,
    written: &impl Fn() -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let path = &inner.config.path;
    let generation = generations(path).map_err(|e| broken(&e))?.pop().unwrap_or(0);
    let new_path = base_path(path, generation + 1);
    let (touched, keys) = {
        let mut core = inner.core.lock();
        let touched = std::mem::take(&mut core.state.touched);
        let state = &core.state;
        let sessions = state.sessions.keys().map(|no| Key::Session(*no));
        let messages = state.messages.keys().map(|id| Key::Message(*id));
        let heard = state.heard.keys().map(|node| Key::Heard(*node));
        let retained = state.retained.keys().cloned().map(Key::Retained);
        let keys: Vec<Key> = sessions.chain(messages).chain(heard).chain(retained).collect();
        (touched, keys)
    };
    let made = caught(|| {
        let new = Arc::new(Base::open(&new_path, inner.config.cache_bytes)?);
        // Its names are durable before its note is: with that it is the one that counts.
        sync_dir(&new_path)?;
        sync_dir(path)?;
        write(inner, disk, old, &new, cut, &keys, written)?;
        finish(inner, disk, &new, cut, written)?;
        *disk.base.lock() = new;
        Ok(())
    });
    let obsolete = if made.is_ok() { old.path() } else { &new_path };
    // Readers that still hold the old one keep its files open until they are done. But one that failed may have its note already,
    // and must not be there when this one goes on.
    let removed = std::fs::remove_dir_all(obsolete).and_then(|()| sync_dir(path));
    if let Err(error) = removed
        && error.kind() != std::io::ErrorKind::NotFound
    {
        let path = obsolete.display();
        tracing::warn!(%path, %error, "a sled that is not used any more cannot be removed; the next start does it");
    }
    settle(inner, cut, made, touched, &keys)
}

fn finish(
    inner: &Inner,
    disk: &Disk,
    base: &Base,
    cut: u64,
    written: &impl Fn() -> Result<(), Refusal>,
) -> Result<(), BaseError> {
    // Nor does it know of them now; but their frames may not be durable yet, and its note relies on them.
    written().map_err(|e| BaseError::Corrupt(e.to_string()))?;
    disk.journal.lock().sync()?;
    let (next_session, next_message) = {
        let core = inner.core.lock();
        (core.state.next_session, core.state.next_message)
    };
    base.finish(Meta { store: disk.store, replay_from: cut, has_log: true, next_session, next_message })
}

/// What a portion found under a key.
enum Found {
    Value(Vec<u8>),
    Message {
        place: Place,
        len: u32,
        expires_at: i64,
    },
    Nothing,
    /// It came after the segment began, and its bytes may not be written yet: the log has it.
    Later,
}

/// Writes the present values of `keys` to `to`; messages that are in sled are found in `from`.
///
/// Messages are removed last: one that is made after a fault has changes that are not in the log, and if a crash cuts it short
/// nobody may be owed what is not there any more.
fn write(
    inner: &Inner,
    disk: &Disk,
    from: &Arc<Base>,
    to: &Arc<Base>,
    cut: u64,
    keys: &[Key],
    written: &impl Fn() -> Result<(), Refusal>,
) -> Result<(), BaseError> {
    let mut gone = Vec::new();
    for portion in keys.chunks(PORTION) {
        let found: Vec<(Key, Found)> = {
            let mut core = inner.core.lock();
            portion.iter().map(|key| (key.clone(), look(&mut core.state, key, cut))).collect()
        };
        // sled must not know of changes that a crash takes from the log, or that are taken back: it writes when it likes.
        written().map_err(|e| BaseError::Corrupt(e.to_string()))?;
        disk.journal.lock().sync()?;
        let mut values = Vec::new();
        let mut bytes = 0;
        for (key, found) in found {
            let value = match found {
                Found::Later => continue,
                Found::Nothing if matches!(key, Key::Message(_)) => {
                    gone.push((key, None));
                    continue;
                }
                Found::Nothing => None,
                Found::Value(value) => Some(value),
                Found::Message { place, len, expires_at } => {
                    let message = match place {
                        Place::Log(at) => disk.segments.read(at, len as usize)?,
                        Place::Base => from.message(&key)?,
                    };
                    Some(value(expires_at, &message))
                }
            };
            bytes += value.as_ref().map_or(0, Vec::len);
            values.push((key, value));
            if bytes >= PORTION_BYTES {
                to.write(std::mem::take(&mut values))?;
                bytes = 0;
            }
        }
        to.write(values)?;
    }
    gone.chunks(PORTION).try_for_each(|portion| to.write(portion.to_vec()))
}

/// From now on the messages under `keys` are read from sled. Before it is durable, and in use, an error leaves everything as it was.
fn moved(inner: &Inner, cut: u64, keys: &[Key]) {
    inner.core.lock().folded = cut;
    for portion in keys.chunks(PORTION) {
        let state = &mut inner.core.lock().state;
        for key in portion {
            let stored = match key {
                Key::Message(id) => state.messages.get_mut(id),
                Key::Retained(topic) => state.retained.get_mut(topic),
                Key::Session(_) | Key::Heard(_) => None,
            };
            if let Some(stored) = stored
                && matches!(stored.place, Place::Log(at) if at < cut)
            {
                stored.place = Place::Base;
            }
        }
    }
}

fn look(state: &mut crate::state::State, key: &Key, cut: u64) -> Found {
    let stored = match key {
        Key::Session(no) => {
            let Some(session) = state.sessions.get_mut(no) else { return Found::Nothing };
            // Marked now: whatever happens to it from here on is for the next checkpoint.
            (session.in_base, session.touched) = (true, false);
            return Found::Value(session.encode());
        }
        Key::Message(id) => state.messages.get_mut(id),
        Key::Retained(topic) => state.retained.get_mut(topic),
        Key::Heard(node) => {
            return state.heard.get(node).map_or(Found::Nothing, |heard| Found::Value(heard.encode()));
        }
    };
    let Some(stored) = stored else { return Found::Nothing };
    if matches!(stored.place, Place::Log(at) if at >= cut) {
        state.touched.insert(key.clone());
        return Found::Later;
    }
    stored.in_base = true;
    Found::Message { place: stored.place, len: stored.len, expires_at: stored.expires_at }
}

#[cfg(test)]
mod retained_tests;
#[cfg(test)]
mod tests;
