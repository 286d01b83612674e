//! The store as the rest of the broker has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::{self, JoinHandle, ThreadId};

use async_trait::async_trait;
use ciqadamq_core::{
    Applied, Command, DirectoryError, DirectoryStatus, ExecuteError, Rejection, Revision, User, UserDirectory,
    UserObserver, UserPage, UserQuery,
};
use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;

use crate::records::Records;
use crate::state_machine::StateMachine;
use crate::writer::{Job, Observers, Tally, Writer, count};
use crate::{OpenError, Snapshot, StoreConfig, disk};

/// Longest password hash stored, in bytes; a PHC string of argon2 has about 100. Small records keep every page of the
/// database inside its log, where it is synced; sled puts huge pages into files that it does not sync.
const PASSWORD_HASH_BYTES_MAX: usize = 1024;

const CLOSED: &str = "the user store is closed; the broker is going down";

/// What has happened since the store was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// batches made durable, each with one fsync
    pub commits: u64,
    /// commands that changed a record
    pub applied: u64,
    /// commands that did not fit the record
    pub rejected: u64,
    /// commands refused because they could not be written
    pub failed: u64,
    /// commands refused because too many were waiting
    pub busy: u64,
}

/// The user directory on sled.
///
/// Reads come from memory and never wait for the disk. Closes itself when the last reference is dropped.
pub struct UserStore {
    config: StoreConfig,
    records: Arc<Records>,
    observers: Arc<Observers>,
    tally: Arc<Tally>,
    /// `None` when closed
    queue: RwLock<Option<SyncSender<Job>>>,
    writer: Mutex<Option<JoinHandle<()>>>,
    writer_id: ThreadId,
    /// the replicated log makes the changes
    replicated: AtomicBool,
}

impl UserStore {
    /// Opens the database, or makes it if there is nothing yet, and starts the writer thread.
    ///
    /// Reads every record into memory, which takes seconds for a million users. A database that was just
    /// let go of by another process is waited for, up to a second.
    ///
    /// # Errors
    /// See [`OpenError`]; a damaged database is never emptied or replaced.
    pub fn open(config: StoreConfig) -> Result<Arc<Self>, OpenError> {
        let (machine, records) = StateMachine::open(config.clone())?;
        let (observers, tally) = (Arc::<Observers>::default(), Arc::<Tally>::default());
        let (queue, jobs) = sync_channel(config.queue);
        let writer = Writer {
            machine,
            records: records.clone(),
            observers: observers.clone(),
            tally: tally.clone(),
            batch: config.batch,
        };
        let handle = thread::Builder::new()
            .name("user-store".into())
            .spawn(move || writer.run(jobs))
            .map_err(OpenError::Thread)?;
        let writer_id = handle.thread().id();
        let (queue, writer) = (RwLock::new(Some(queue)), Mutex::new(Some(handle)));
        let replicated = AtomicBool::new(records.raft_state().is_some());
        Ok(Arc::new(Self { config, records, observers, tally, queue, writer, writer_id, replicated }))
    }

    /// Takes no more commands, finishes those that wait, flushes, and ends the writer. Blocks for that long.
    ///
    /// Reading goes on, and the directory is free for another process. Once is enough, more often does no harm; each call returns when the writer has ended.
    pub fn close(&self) {
        // Nobody can send any more: the writer ends when it has done what is in the queue.
        drop(self.queue.write().take());
        if thread::current().id() == self.writer_id {
            // An observer that closes the store cannot wait for the thread that called it.
            return;
        }
        let mut writer = self.writer.lock();
        if let Some(handle) = writer.take() {
            match handle.join() {
                Ok(()) => tracing::info!(path = %self.config.path.display(), "user store closed"),
                Err(_) => tracing::error!(path = %self.config.path.display(), "user store's writer thread panicked"),
            }
        }
    }

    /// All users as of now, in order of names, while changes go on: for a backup or another node.
    ///
    /// # Errors
    /// If four are being read already.
    pub fn snapshot(&self) -> Result<Snapshot, DirectoryError> {
        Snapshot::begin(&self.records)
    }

    /// Replaces all users by those of a snapshot that ends at `last_applied`, all or nothing.
    ///
    /// `records` come in order of names, none with a revision beyond `last_applied`. Observers hear of every user whose
    /// record is not what it was, in order of revisions; users that are gone come last. Other commands wait meanwhile.
    ///
    /// # Errors
    /// [`ExecuteError::Unavailable`] with the reason: the users stay as they were. A snapshot older than the last
    /// change here is refused.
    pub async fn install_snapshot<I>(&self, last_applied: Revision, records: I) -> Result<Applied, ExecuteError>
    where
        I: Iterator<Item = Result<Arc<User>, DirectoryError>> + Send + 'static,
    {
        let (answer, outcome) = oneshot::channel();
        self.send(Job::Install(last_applied, Box::new(records), None, answer))?;
        outcome.await.unwrap_or_else(|_| Err(writer_gone()))
    }

    /// The same for a snapshot of the replicated log, with the log's state.
    pub(crate) async fn install_agreed<I>(
        &self,
        last_applied: Revision,
        records: I,
        raft_state: Vec<u8>,
    ) -> Result<Applied, ExecuteError>
    where
        I: Iterator<Item = Result<Arc<User>, DirectoryError>> + Send + 'static,
    {
        let (answer, outcome) = oneshot::channel();
        self.replicated.store(true, Ordering::Release);
        self.send(Job::Install(last_applied, Box::new(records), Some(raft_state), answer))?;
        outcome.await.unwrap_or_else(|_| Err(writer_gone()))
    }

    /// Applies commands of the replicated log, and notes the log's state with them. From the first call on the log alone
    /// makes changes.
    pub(crate) async fn apply_agreed(
        &self,
        commands: Vec<Command>,
        raft_state: Vec<u8>,
    ) -> Result<Vec<Result<Applied, Rejection>>, String> {
        let (answer, outcome) = oneshot::channel();
        self.replicated.store(true, Ordering::Release);
        self.send(Job::Agreed(commands, raft_state, answer)).map_err(|e| e.to_string())?;
        outcome.await.unwrap_or_else(|_| Err(writer_gone().to_string()))
    }

    /// The last applied revision.
    pub(crate) fn last_applied(&self) -> Revision {
        self.records.revision()
    }

    /// The state of the replicated log as of the last durable change.
    pub(crate) fn raft_state(&self) -> Option<Vec<u8>> {
        self.records.raft_state()
    }

    /// What has happened since the store was opened.
    pub fn counters(&self) -> Counters {
        let Tally { commits, applied, rejected, failed, busy } = &*self.tally;
        let [commits, applied, rejected, failed, busy] =
            [commits, applied, rejected, failed, busy].map(|counter| counter.load(Ordering::Relaxed));
        Counters { commits, applied, rejected, failed, busy }
    }

    /// The settings it was opened with.
    pub fn config(&self) -> &StoreConfig {
        &self.config
    }

    fn send(&self, job: Job) -> Result<(), ExecuteError> {
        match self.queue.read().as_ref().map(|queue| queue.try_send(job)) {
            Some(Ok(())) => Ok(()),
            // The replicated log sends one job at a time, so this is never its answer.
            Some(Err(TrySendError::Full(_))) => {
                count(&self.tally.busy, 1);
                Err(ExecuteError::Busy)
            }
            Some(Err(TrySendError::Disconnected(_))) => Err(writer_gone()),
            None => Err(ExecuteError::Unavailable(CLOSED.into())),
        }
    }
}

#[async_trait]
impl UserDirectory for UserStore {
    fn get(&self, username: &str) -> Result<Option<Arc<User>>, DirectoryError> {
        Ok(self.records.get(username))
    }

    fn list(&self, query: &UserQuery) -> Result<UserPage, DirectoryError> {
        Ok(self.records.page(query))
    }

    async fn execute(&self, command: Command) -> Result<Applied, ExecuteError> {
        check(&command)?;
        if self.replicated.load(Ordering::Acquire) {
            return Err(ExecuteError::Unavailable("these users are changed through their replicated log alone".into()));
        }
        let (answer, outcome) = oneshot::channel();
        self.send(Job::Execute(command, answer))?;
        outcome.await.unwrap_or_else(|_| Err(writer_gone()))
    }

    fn revision(&self) -> Revision {
        self.records.revision()
    }

    fn observe(&self, observer: Arc<dyn UserObserver>) {
        self.observers.write().push(observer);
    }

    fn status(&self) -> DirectoryStatus {
        let (users, fault) = self.records.facts();
        // A size that cannot be had is shown as 0; what is wrong with the disk shows in the writes.
        let bytes = disk::size(&self.config.path).unwrap_or(0);
        let closed = self.queue.read().is_none().then(|| CLOSED.to_owned());
        let read_only = fault.or(closed).or_else(|| disk::space_problem(&self.config.path));
        DirectoryStatus { users, revision: self.revision(), bytes, read_only }
    }
}

impl Drop for UserStore {
    fn drop(&mut self) {
        self.close();
    }
}

/// Refuses what could not be stored.
pub(crate) fn check(command: &Command) -> Result<(), ExecuteError> {
    match password_hash(command).filter(|len| *len > PASSWORD_HASH_BYTES_MAX) {
        None => Ok(()),
        Some(len) => Err(ExecuteError::Unavailable(format!(
            "the password hash has {len} bytes; at most {PASSWORD_HASH_BYTES_MAX} are stored"
        ))),
    }
}

fn password_hash(command: &Command) -> Option<usize> {
    match command {
        Command::Create { password, .. } | Command::Put { password, .. } | Command::Rehash { password, .. } => {
            Some(password.0.len())
        }
        Command::Update { patch, .. } => patch.password.as_ref().map(|password| password.0.len()),
        Command::Delete { .. } => None,
    }
}

fn writer_gone() -> ExecuteError {
    ExecuteError::Unavailable("the user store's writer has ended; restart the broker".into())
}
