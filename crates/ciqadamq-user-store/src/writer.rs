//! The one thread that changes users.
//!
//! It takes what is waiting, up to a batch, applies it, makes it durable with one fsync, tells the observers, and then
//! answers. While it waits for the disk the next batch gathers: under load many commands share an fsync, and a lonely
//! command does not wait for company.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;

use ciqadamq_core::{
    Applied, Command, DirectoryError, ExecuteError, Rejection, Revision, User, UserChange, UserObserver,
};
use parking_lot::RwLock;
use tokio::sync::oneshot;

use crate::records::Records;
use crate::state_machine::{AppliedBatch, Changed, StateMachine};

/// Where the outcome of a command goes.
pub(crate) type Answer = oneshot::Sender<Result<Applied, ExecuteError>>;

/// Records to install.
pub(crate) type Source = Box<dyn Iterator<Item = Result<Arc<User>, DirectoryError>> + Send>;

/// What the writer is asked to do.
pub(crate) enum Job {
    /// One change.
    Execute(Command, Answer),
    /// Changes of the replicated log, and its state after them.
    Agreed(Vec<Command>, Vec<u8>, AgreedAnswer),
    /// Other users instead of these, and the state of the replicated log that belongs to them.
    Install(Revision, Source, Option<Vec<u8>>, Answer),
}

/// Where the outcomes of agreed commands go: one each, or why none could be written.
pub(crate) type AgreedAnswer = oneshot::Sender<Result<Vec<Result<Applied, Rejection>>, String>>;

/// What has happened since the store was opened.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) commits: AtomicU64,
    pub(crate) applied: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) busy: AtomicU64,
}

/// Adds to a counter; the order of counts among each other does not matter.
pub(crate) fn count(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

/// Who is told of changes.
pub(crate) type Observers = RwLock<Vec<Arc<dyn UserObserver>>>;

/// The thread's state.
pub(crate) struct Writer {
    pub(crate) machine: StateMachine,
    pub(crate) records: Arc<Records>,
    pub(crate) observers: Arc<Observers>,
    pub(crate) tally: Arc<Tally>,
    pub(crate) batch: usize,
}

impl Writer {
    /// Works until the queue is closed and empty.
    pub(crate) fn run(mut self, jobs: Receiver<Job>) {
        while let Ok(first) = jobs.recv() {
            let (mut commands, mut answers) = (Vec::new(), Vec::new());
            let mut next = Some(first);
            // Anything but a single change ends the batch and comes after it, as it was sent.
            let other = loop {
                match next {
                    Some(Job::Execute(command, answer)) => {
                        commands.push(command);
                        answers.push(answer);
                    }
                    other => break other,
                }
                if commands.len() >= self.batch {
                    break None;
                }
                next = jobs.try_recv().ok();
            };
            if !commands.is_empty() {
                self.execute(&commands, answers);
            }
            match other {
                Some(Job::Agreed(commands, raft_state, answer)) => self.agreed(&commands, &raft_state, answer),
                Some(Job::Install(last, source, raft_state, answer)) => {
                    self.install(last, source, raft_state.as_deref(), answer);
                }
                Some(Job::Execute(..)) | None => {}
            }
        }
        self.machine.close();
    }

    fn execute(&mut self, commands: &[Command], answers: Vec<Answer>) {
        match self.apply(commands, None) {
            Ok(batch) => {
                for (answer, result) in answers.into_iter().zip(batch.results) {
                    reply(answer, result.map_err(ExecuteError::Rejected));
                }
            }
            Err(reason) => {
                count(&self.tally.failed, commands.len());
                tracing::warn!(commands = commands.len(), %reason, "user changes refused");
                for answer in answers {
                    reply(answer, Err(ExecuteError::Unavailable(reason.clone())));
                }
            }
        }
    }

    /// Commands that a quorum has in its logs. They cannot be refused, only delayed.
    fn agreed(&mut self, commands: &[Command], raft_state: &[u8], answer: AgreedAnswer) {
        let outcome = self.apply(commands, Some(raft_state));
        if let Err(reason) = &outcome {
            count(&self.tally.failed, commands.len());
            tracing::error!(commands = commands.len(), %reason, "agreed user changes cannot be written");
        }
        // Whoever asked may be gone; the changes stand.
        let _ = answer.send(outcome.map(|batch| batch.results));
    }

    fn apply(&mut self, commands: &[Command], raft_state: Option<&[u8]>) -> Result<AppliedBatch, String> {
        self.recover(raft_state.is_some())?;
        let first = Revision(self.machine.last_applied().0 + 1);
        let batch = self.guarded(|machine| machine.apply_batch(first, commands, raft_state))?;
        count(&self.tally.commits, 1);
        count(&self.tally.applied, batch.changes.len());
        count(&self.tally.rejected, commands.len() - batch.changes.len());
        for change in &batch.changes {
            self.tell(change);
        }
        Ok(batch)
    }

    fn install(&mut self, last: Revision, mut source: Source, raft_state: Option<&[u8]>, answer: Answer) {
        let install = |machine: &mut StateMachine| machine.install_snapshot(last, &mut source, raft_state);
        let outcome = self.recover(false).and_then(|()| self.guarded(install));
        match outcome {
            Ok(changed) => {
                count(&self.tally.commits, 1);
                tracing::info!(revision = last.0, changed = changed.len(), "users replaced by a snapshot");
                self.tell_all(changed);
                reply(answer, Ok(Applied { revision: last }));
            }
            Err(reason) => {
                tracing::warn!(revision = last.0, %reason, "snapshot not installed");
                reply(answer, Err(ExecuteError::Unavailable(reason)));
            }
        }
    }

    fn recover(&mut self, agreed: bool) -> Result<(), String> {
        let changed = self.guarded(|machine| machine.recover(agreed))?;
        self.tell_all(changed);
        Ok(())
    }

    /// sled panics where it finds its own files inconsistent: that ends the changes, not the thread, which still has to
    /// answer.
    fn guarded<T>(&mut self, f: impl FnOnce(&mut StateMachine) -> Result<T, String>) -> Result<T, String> {
        catch_unwind(AssertUnwindSafe(|| f(&mut self.machine)))
            .unwrap_or_else(|_| Err(self.machine.give_up("the database panicked, see the log")))
    }

    fn tell_all(&self, changed: Changed) {
        for (revision, username) in changed {
            let after = self.records.get(username.as_str());
            self.tell(&UserChange { revision, username, after });
        }
    }

    fn tell(&self, change: &UserChange) {
        let observers = self.observers.read().clone();
        for observer in observers {
            if catch_unwind(AssertUnwindSafe(|| observer.user_changed(change))).is_err() {
                tracing::error!(username = %change.username, revision = change.revision.0, "observer of user changes panicked");
            }
        }
    }
}

fn reply(answer: Answer, result: Result<Applied, ExecuteError>) {
    // A caller that went away does not want the answer; its change stands.
    let _ = answer.send(result);
}
