//! The replicated state machine: commands in, records changed.
//!
//! **Revisions.** Every command takes the revision of its place in the history, also one that is rejected: that is how
//! a replicated log counts, and it makes the revision of a change depend on nothing but its place. What a command does
//! is decided by [`ciqadamq_core::decide`] alone.
//!
//! **Durability.** A batch is one sled batch (records and the last revision together) and one fsync. Readers see it when
//! it is durable, as a whole; until then, and if it fails, they see what was before.
//!
//! **After a failed write** sled is of no use, and nobody can tell whether the batch is on the disk; it is there as a
//! whole or not at all. If the disk refused the bytes (full, quota) the database is opened again before the next change,
//! and what it then says is true: should the batch be in it after all, it is published like any change. After any other
//! error, of fsync above all, the system's idea of what is on the disk is not to be trusted, so no change is made until
//! the broker is restarted. Readers notice nothing of all this.
//!
//! There is one [`StateMachine`], it is not shared, and it belongs to the writer thread: there is no other way to write.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ciqadamq_core::{
    Applied, Command, Decision, DirectoryError, Rejection, Revision, User, UserChange, Username, decide,
};
use sled::{Batch, Tree};

use crate::database::{Database, WriteError};
use crate::records::{Images, Records, Users, differences};
use crate::{OpenError, StoreConfig, codec, disk};

/// Records written at once while a snapshot is installed.
const INSTALL_CHUNK: usize = 1000;

/// Time between attempts to open the database again.
const REOPEN_EVERY: Duration = Duration::from_secs(1);

/// The writer's side of the users.
pub(crate) struct StateMachine {
    config: StoreConfig,
    records: Arc<Records>,
    database: State,
}

enum State {
    Open(Database),
    /// to be opened again, not before this moment
    Broken {
        retry_at: Instant,
        reason: String,
    },
    /// not to be opened again
    GivenUp {
        reason: String,
    },
}

/// What a batch of commands did.
pub(crate) struct AppliedBatch {
    /// one for each command, in order
    pub(crate) results: Vec<Result<Applied, Rejection>>,
    /// what changed, in order of revisions
    pub(crate) changes: Vec<UserChange>,
}

/// Whose records are not what they were: each with a revision, in order.
pub(crate) type Changed = Vec<(Revision, Username)>;

impl StateMachine {
    /// Opens or makes the database.
    pub(crate) fn open(config: StoreConfig) -> Result<(Self, Arc<Records>), OpenError> {
        config.check()?;
        let (database, contents) = Database::open(&config)?;
        let records = Arc::new(Records::new(contents.users, contents.last));
        records.set_raft_state(contents.raft);
        Ok((Self { config, records: records.clone(), database: State::Open(database) }, records))
    }

    /// The revision of the last command, applied or rejected.
    pub(crate) fn last_applied(&self) -> Revision {
        self.records.revision()
    }

    /// Makes sure that changes can be written, else says why not. Opens the database again if that is due; then there
    /// may be changes that were thought to have failed.
    ///
    /// What is `agreed` is in the replicated log already: it may use the reserve of free space, because refusing it
    /// would only delay it.
    pub(crate) fn recover(&mut self, agreed: bool) -> Result<Changed, String> {
        if let State::GivenUp { reason } = &self.database {
            return Err(reason.clone());
        }
        // Full disks are seen before sled meets them; then nothing is broken and nothing to be repaired.
        if !agreed && let Some(reason) = disk::space_problem(&self.config.path) {
            return Err(reason);
        }
        match &self.database {
            State::Broken { retry_at, reason } if Instant::now() < *retry_at => return Err(reason.clone()),
            State::Broken { .. } => {}
            _ => return Ok(Changed::new()),
        }
        match Database::open(&self.config) {
            Ok((database, contents)) => {
                let (users, last) = (contents.users, contents.last);
                let changed = self.records.with_view(|view| differences(&view.users, &users, last));
                if !changed.is_empty() {
                    self.records.replace(users, last);
                }
                self.records.set_raft_state(contents.raft);
                self.records.set_fault(None);
                self.database = State::Open(database);
                tracing::info!(path = %self.config.path.display(), "user store takes changes again");
                Ok(changed)
            }
            Err(error) => {
                self.database = State::Broken { retry_at: Instant::now() + REOPEN_EVERY, reason: error.to_string() };
                self.records.set_fault(Some(error.to_string()));
                Err(error.to_string())
            }
        }
    }

    /// Applies commands with the revisions `first`, `first + 1`, ...; each sees what those before it did.
    ///
    /// `first` must be beyond [`last_applied`](Self::last_applied); it may leave a gap, as a log does that also holds
    /// other things than commands. On `Err` nothing has changed for any reader.
    ///
    /// `raft_state` is written along, so that the users and how far the replicated log was applied are always of one
    /// moment. It may come without commands.
    pub(crate) fn apply_batch(
        &mut self,
        first: Revision,
        commands: &[Command],
        raft_state: Option<&[u8]>,
    ) -> Result<AppliedBatch, String> {
        let mut last = self.last_applied();
        if first <= last {
            return Err(format!("revision {first} was applied before; the last one is {last}"));
        }
        let mut after = Images::new();
        let mut applied = AppliedBatch { results: Vec::with_capacity(commands.len()), changes: Vec::new() };
        for (command, revision) in commands.iter().zip(first.0..) {
            last = Revision(revision);
            let username = command.username();
            let before = match after.get(username) {
                Some(staged) => staged.clone(),
                None => self.records.get(username.as_str()),
            };
            match decide(before.as_deref(), command, last) {
                Err(rejection) => applied.results.push(Err(rejection)),
                Ok(decision) => {
                    let user = match decision {
                        Decision::Write(user) => Some(Arc::new(user)),
                        Decision::Remove => None,
                    };
                    after.insert(username.clone(), user.clone());
                    applied.results.push(Ok(Applied { revision: last }));
                    applied.changes.push(UserChange { revision: last, username: username.clone(), after: user });
                }
            }
        }

        let mut batch = Batch::default();
        for (username, after) in &after {
            match after {
                Some(user) => batch.insert(codec::user_key(username), codec::encode(user)?),
                None => batch.remove(codec::user_key(username)),
            }
        }
        batch.insert(codec::APPLIED, &codec::encode_revision(last));
        if let Some(state) = raft_state {
            batch.insert(codec::RAFT, state);
            let begun = self.database()?.begin_replication();
            begun.map_err(|e| self.fail(e))?;
        }
        let committed = self.database()?.commit(batch, last);
        committed.map_err(|e| self.fail(e))?;
        self.records.publish(last, after);
        if let Some(state) = raft_state {
            self.records.set_raft_state(Some(state.to_vec()));
        }
        Ok(applied)
    }

    /// Replaces all records by those of a snapshot, in order of names. All or nothing, also through a crash.
    pub(crate) fn install_snapshot(
        &mut self,
        last: Revision,
        records: &mut dyn Iterator<Item = Result<Arc<User>, DirectoryError>>,
        raft_state: Option<&[u8]>,
    ) -> Result<Changed, String> {
        if last < self.last_applied() {
            // Sessions carry the revision of their login; a history that goes back would let old ones in again.
            return Err(format!(
                "the snapshot ends at revision {last}, the users here are at {}; take a newer snapshot",
                self.last_applied()
            ));
        }
        if raft_state.is_some() {
            let begun = self.database()?.begin_replication();
            begun.map_err(|e| self.fail(e))?;
        }
        let begun = self.database()?.begin_generation();
        let tree = begun.map_err(|e| self.fail(e))?;
        let users = self.fill(&tree, last, records, raft_state)?;
        let changed = self.records.with_view(|view| differences(&view.users, &users, last));
        let finished = self.database()?.finish_generation(tree, last);
        finished.map_err(|e| self.fail(e))?;
        self.records.replace(users, last);
        self.records.set_raft_state(raft_state.map(<[u8]>::to_vec));
        Ok(changed)
    }

    /// Everything to the disk, before the end.
    pub(crate) fn close(self) {
        if let State::Open(database) = &self.database
            && let Err(WriteError { reason, .. }) = database.sync()
        {
            tracing::error!(%reason, "user store not flushed; acknowledged changes are on disk all the same");
        }
    }

    /// Takes no more changes: the database did what it must not.
    pub(crate) fn give_up(&mut self, what: &str) -> String {
        self.fail(WriteError { reason: what.to_owned(), refused: false })
    }

    fn database(&mut self) -> Result<&mut Database, String> {
        match &mut self.database {
            State::Open(database) => Ok(database),
            State::Broken { reason, .. } | State::GivenUp { reason } => Err(reason.clone()),
        }
    }

    fn fail(&mut self, WriteError { reason, refused }: WriteError) -> String {
        let remedy = match refused {
            true => "changes are possible again when the disk takes them",
            false => "check the disk, then restart the broker",
        };
        let reason = format!("a write failed ({reason}); {remedy}");
        tracing::error!(path = %self.config.path.display(), %reason, "user store takes no changes");
        self.records.set_fault(Some(reason.clone()));
        let next = match refused {
            true => State::Broken { retry_at: Instant::now(), reason: reason.clone() },
            false => State::GivenUp { reason: reason.clone() },
        };
        match std::mem::replace(&mut self.database, next) {
            // sled syncs when it is dropped, and panics if that fails. It is given up already: nothing is lost by that.
            State::Open(database) if refused => drop(catch_unwind(AssertUnwindSafe(|| drop(database)))),
            // Not even that after an error that is final. The lock is kept until the process ends.
            State::Open(database) => std::mem::forget(database),
            State::Broken { .. } | State::GivenUp { .. } => {}
        }
        reason
    }

    fn fill(
        &mut self,
        tree: &Tree,
        last: Revision,
        records: &mut dyn Iterator<Item = Result<Arc<User>, DirectoryError>>,
        raft_state: Option<&[u8]>,
    ) -> Result<Users, String> {
        let mut users = Users::new();
        let mut head = Batch::default();
        head.insert(codec::APPLIED, &codec::encode_revision(last));
        if let Some(state) = raft_state {
            head.insert(codec::RAFT, state);
        }
        tree.apply_batch(head).map_err(|e| self.fail(e.into()))?;
        loop {
            // Many records are written here: the disk may fill up in between.
            disk::space_problem(&self.config.path).map_or(Ok(()), Err)?;
            let (mut batch, before) = (Batch::default(), users.len());
            for user in records.take(INSTALL_CHUNK) {
                let user = user.map_err(|e| e.reason)?;
                if users.last_key_value().is_some_and(|(previous, _)| user.username <= *previous) {
                    return Err(format!("the snapshot has `{}` out of order", user.username));
                }
                if user.revision > last {
                    return Err(format!("the snapshot has `{}` with a revision beyond its end", user.username));
                }
                batch.insert(codec::user_key(&user.username), codec::encode(&user)?);
                users.insert(user.username.clone(), user);
            }
            if users.len() == before {
                return Ok(users);
            }
            tree.apply_batch(batch).map_err(|e| self.fail(e.into()))?;
        }
    }
}
