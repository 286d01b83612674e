//! The one thread that writes the log.
//!
//! While it waits for the disk the next frame fills: under load many publishers share an fsync, and a lonely one does not wait
//! for company. But whoever was answered by one commit comes back in a moment, most often, and would find the next one just begun: so
//! that one begins when about as many wait as were seen lately, or after a part of the time that the disk takes. What nobody waits for is written a moment later, so that acknowledgements of subscribers do not cost a system
//! call each.
//!
//! A disk gets full in two steps. With less than `reserve_bytes` free it is *short* of space: what makes the store grow is refused,
//! and all else is written, into a space that lasts long for it. When a write fails there is a *fault*: nothing is written before
//! a checkpoint has taken in what changed meanwhile. What changes while that is made is logged behind it.

use std::cell::RefCell;
use std::io;
use std::mem::discriminant;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;

use crate::core::{Core, Frame};
use crate::journal::is_no_room;
use crate::store::{Disk, Inner, count};
use crate::{Durability, OpenError, Refusal, StoreConfig, checkpoint};

/// How long commands that nobody waits for may gather.
const GATHER: Duration = Duration::from_millis(5);
/// The same for those that tell how far a delivery has come.
const GATHER_URGENT: Duration = Duration::from_micros(200);
/// Longest time in which those who wait gather company: half of what the disk took last, and no more than this.
const COMPANY: Duration = Duration::from_millis(1);
/// How often it is tried to write again after a failure, and looked whether a disk that was short of space still is.
const RETRY: Duration = Duration::from_secs(1);
/// A frame that is longer than this is written at once.
const FRAME_MAX: usize = 4 << 20;

/// Starts the writer and the thread that makes checkpoints.
pub(crate) fn start(inner: &Arc<Inner>) -> Result<Vec<thread::JoinHandle<()>>, OpenError> {
    let writer = inner.clone();
    let checkpointer = inner.clone();
    Ok(vec![
        thread::Builder::new()
            .name("session-log".into())
            .spawn(move || {
                Writer { inner: writer, unsynced: None, seen: 0, patience: Duration::ZERO, short: None }.run()
            })
            .map_err(OpenError::Thread)?,
        thread::Builder::new()
            .name("session-fold".into())
            .spawn(move || checkpoint::when_wanted(&checkpointer))
            .map_err(OpenError::Thread)?,
    ])
}

/// Waits until everything so far is written. Blocks.
pub(crate) fn flush(inner: &Inner) -> Result<(), Refusal> {
    let answer = {
        let mut core = inner.core.lock();
        let answer = core.wait_for_all()?;
        drop(core);
        inner.wake.notify_one();
        answer
    };
    match answer {
        Some(answer) => answer.blocking_recv().unwrap_or(Err(Refusal::Closed)),
        // The last frame of a store that is closed may still be on its way; it is written under this lock.
        None => match &inner.disk {
            Some(disk) => disk.journal.lock().check().map_err(|e| Refusal::Broken(e.to_string())),
            None => Ok(()),
        },
    }
}

struct Writer {
    inner: Arc<Inner>,
    /// since when there is something written that is not synced
    unsynced: Option<Instant>,
    /// how many waited for the last commit, and by its end for the next one
    seen: usize,
    /// how long those who wait for the next one are kept waiting
    patience: Duration,
    /// when the disk was seen to be short of space, and how short
    short: Option<(Instant, Refusal)>,
}

impl Writer {
    fn run(mut self) {
        let inner = self.inner.clone();
        let Some(disk) = &inner.disk else { return };
        loop {
            let mut core = inner.core.lock();
            let done = self.wait_for_work(&mut core);
            if core.fault.is_some() {
                drop(core);
                // At the end, too: the disk may work again, and all that has changed meanwhile is in memory alone.
                self.try_again(disk);
                if done {
                    return;
                }
                continue;
            }
            let nothing = core.frame.bytes.is_empty();
            drop(core);
            if nothing {
                self.sync_late(disk, done);
                if done {
                    seal(disk);
                    return;
                }
                if self.short.is_some() {
                    let short = self.shortage();
                    self.note(&mut inner.core.lock(), short);
                }
                continue;
            }
            // Taken under the journal's lock, so that whoever sees an empty frame and gets that lock knows that all is written.
            // And that lock first: a checkpoint may hold it for a while, in which the state must not be locked.
            let mut journal = disk.journal.lock();
            let short = self.shortage();
            let mut frame = {
                let mut core = inner.core.lock();
                self.note(&mut core, short);
                core.take_frame()
            };
            let began = Instant::now();
            let must_sync = inner.config.durability == Durability::Fsync && !frame.waiters.is_empty();
            let written =
                journal.append(&mut frame.bytes).and_then(|()| if must_sync { journal.sync() } else { Ok(()) });
            let log_bytes = journal.end();
            drop(journal);
            match written {
                Ok(()) => {
                    self.patience = (began.elapsed() / 2).min(COMPANY);
                    {
                        let mut core = inner.core.lock();
                        self.seen = frame.waiters.len() + core.frame.waiters.len();
                        core.unsettled = !must_sync && inner.config.durability == Durability::Fsync;
                    }
                    count(&inner.tally.commits, 1);
                    self.unsynced = if must_sync { None } else { self.unsynced.or_else(|| Some(Instant::now())) };
                    for waiter in frame.waiters {
                        // Whoever does not wait any more does not need the answer.
                        let _ = waiter.send(frame.refused.clone().map_or(Ok(()), Err));
                    }
                    self.want_checkpoint(log_bytes);
                }
                Err(error) => self.fail(frame, &error),
            }
        }
    }

    /// Waits until there is something to do; `true` when it is the last time.
    fn wait_for_work(&self, core: &mut MutexGuard<'_, Core>) -> bool {
        let wake = &self.inner.wake;
        let enough = self.seen - self.seen / 8;
        let company = Instant::now() + self.patience;
        loop {
            if core.closed {
                return true;
            }
            if core.fault.is_some() {
                wake.wait_for(core, RETRY);
                return core.closed;
            }
            let frame = &core.frame;
            if frame.bytes.len() >= FRAME_MAX || (!frame.waiters.is_empty() && frame.waiters.len() >= enough) {
                return false;
            }
            if !frame.waiters.is_empty() {
                if Instant::now() >= company {
                    return false;
                }
                core.enough = enough;
                wake.wait_until(core, company);
                core.enough = 0;
                continue;
            }
            let until = match (frame.since, self.unsynced) {
                (Some(since), _) => since + if frame.urgent { GATHER_URGENT } else { GATHER },
                (None, Some(since)) => since + self.inner.config.flush_every,
                (None, None) => match &self.short {
                    Some((at, _)) => *at + RETRY,
                    None => {
                        wake.wait(core);
                        continue;
                    }
                },
            };
            if Instant::now() >= until {
                return false;
            }
            wake.wait_until(core, until);
        }
    }

    fn sync_late(&mut self, disk: &Disk, now: bool) {
        if self.unsynced.is_some_and(|since| now || since.elapsed() >= self.inner.config.flush_every) {
            let synced = disk.journal.lock().sync();
            self.unsynced = None;
            match synced {
                Ok(()) => self.inner.core.lock().unsettled = false,
                Err(error) => self.fail(Frame::default(), &error),
            }
        }
    }

    /// Why the disk has no room for messages: as it is now, or was when it was looked for a moment ago.
    fn shortage(&mut self) -> Option<Refusal> {
        if self.short.as_ref().is_none_or(|(at, _)| at.elapsed() >= RETRY) {
            let short = shortage(&self.inner.config).map(|reason| (Instant::now(), reason));
            match (&self.short, &short) {
                (None, Some((_, reason))) => {
                    tracing::error!(%reason, "session store has no room for messages; all else is written");
                }
                (Some(_), None) => tracing::info!("session store has room for messages again"),
                _ => {}
            }
            self.short = short;
        }
        self.short.as_ref().map(|(_, reason)| reason.clone())
    }

    /// Has messages refused, or taken again.
    fn note(&self, core: &mut Core, short: Option<Refusal>) {
        if core.short != short {
            core.short = short;
            self.inner.faulted.store(core.refusal().is_some(), Ordering::Release);
        }
    }

    /// A frame could not be written: whoever waits hears so, its messages are taken back, and nothing is accepted until
    /// writing works again.
    fn fail(&mut self, frame: Frame, error: &io::Error) {
        let fault =
            if is_no_room(error) { Refusal::DiskFull(error.to_string()) } else { Refusal::Broken(error.to_string()) };
        tracing::error!(%error, "session store cannot write; messages for persistent sessions are refused until it can");
        let mut core = self.inner.core.lock();
        self.inner.faulted.store(true, Ordering::Release);
        core.fault = Some(fault.clone());
        give_up(core, vec![frame], &fault);
    }

    /// A checkpoint writes everything that has changed meanwhile; if it works, so does the log.
    fn try_again(&mut self, disk: &Disk) {
        if shortage(&self.inner.config).is_some() {
            return;
        }
        // Who waits for a change that came while it was made is told when it is there: before, nothing counts that the log has.
        let frames = RefCell::new(Vec::new());
        let write = || {
            let mut journal = disk.journal.lock();
            let mut frame = self.inner.core.lock().take_frame();
            if frame.bytes.is_empty() {
                return Ok(());
            }
            let written = journal.append(&mut frame.bytes).and_then(|()| journal.sync());
            frames.borrow_mut().push(frame);
            written.map_err(|e| Refusal::Broken(e.to_string()))
        };
        let worked = catch_unwind(AssertUnwindSafe(|| checkpoint::recover(&self.inner, write)));
        let frames = frames.into_inner();
        let mut core = self.inner.core.lock();
        core.mending = false;
        if !matches!(worked, Ok(Ok(()))) {
            let before = core.fault.take().unwrap_or(Refusal::Closed);
            // A disk that works again may have no room for all that is to be written.
            let fault = worked.ok().and_then(Result::err).unwrap_or_else(|| before.clone());
            if discriminant(&fault) != discriminant(&before) {
                tracing::warn!(reason = %fault, "session store still cannot write");
            }
            core.fault = Some(fault.clone());
            return give_up(core, frames, &fault);
        }
        (core.fault, core.short, self.short) = (None, None, None);
        core.unsettled = false;
        self.inner.faulted.store(false, Ordering::Release);
        drop(core);
        self.unsynced = None;
        for waiter in frames.into_iter().flat_map(|frame| frame.waiters) {
            // As above.
            let _ = waiter.send(Ok(()));
        }
        tracing::info!("session store writes again");
    }

    fn want_checkpoint(&self, end: u64) {
        let Some(disk) = &self.inner.disk else { return };
        if end - disk.segments.start().unwrap_or(end) >= self.inner.config.checkpoint_bytes {
            checkpoint::want(&self.inner);
        }
    }
}

/// Lets the log say that all of it is durable: damage of its last frame is then no end that a crash has left.
fn seal(disk: &Disk) {
    let mut journal = disk.journal.lock();
    if journal.has_unproven_end() {
        // Nothing relies on it.
        let _ = journal.append(&mut Frame::without_commands().bytes);
    }
}

/// These frames, and the one that is being filled, are not written: their messages are taken back, and whoever waits hears why.
fn give_up(mut core: MutexGuard<'_, Core>, mut frames: Vec<Frame>, fault: &Refusal) {
    frames.push(std::mem::take(&mut core.frame));
    frames.iter().rev().for_each(|frame| core.take_back(frame));
    drop(core);
    for waiter in frames.into_iter().flat_map(|frame| frame.waiters) {
        // Whoever does not wait any more does not need the answer.
        let _ = waiter.send(Err(fault.clone()));
    }
}

/// Why the disk has no room for messages.
fn shortage(config: &StoreConfig) -> Option<Refusal> {
    // A file system that cannot say how much is free is not refused for that: a failed write is noticed anyway.
    let free = fs2::available_space(&config.path).ok()?;
    (free < config.reserve_bytes)
        .then(|| Refusal::DiskFull(format!("{free} bytes free, less than {}", config.reserve_bytes)))
}
