//! The user directory as the other parts see it.

use std::sync::Arc;

use async_trait::async_trait;
use thiserror::Error;

use crate::{Applied, Command, Rejection, Revision, User, UserChange, UserId};

/// The directory could not answer. Whoever asked must refuse.
#[derive(Debug, Clone, Error)]
#[error("user directory: {reason}")]
pub struct DirectoryError {
    /// for the operator's log
    pub reason: String,
}

/// Why a change was not made. In every case but [`Unconfirmed`](ExecuteError::Unconfirmed) nothing was changed.
#[derive(Debug, Clone, Error)]
pub enum ExecuteError {
    /// The command does not fit the record.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// Too many changes are waiting; try again.
    #[error("too many user changes are waiting")]
    Busy,
    /// No quorum, or the disk does not take writes; try again later.
    #[error("the user directory does not take changes now: {0}")]
    Unavailable(String),
    /// It was begun, and its outcome is not known: it may have been made, or be made later. Look before trying again.
    #[error("the outcome of a user change is not known: {0}")]
    Unconfirmed(String),
}

/// Which users to list.
#[derive(Debug, Clone, Default)]
pub struct UserQuery {
    /// only names that sort after this one
    pub after: Option<String>,
    /// only this person's names
    pub userid: Option<UserId>,
    /// at most so many; the caller bounds it
    pub limit: usize,
}

/// One page of a listing, sorted by username (bytewise).
#[derive(Debug, Clone, Default)]
pub struct UserPage {
    /// the users
    pub users: Vec<Arc<User>>,
    /// there are more: pass this as `after`
    pub next: Option<String>,
}

/// Facts for metrics and `/api/v1/cluster`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DirectoryStatus {
    /// number of users
    pub users: u64,
    /// last applied change
    pub revision: Revision,
    /// bytes on disk
    pub bytes: u64,
    /// why writes are refused, if they are
    pub read_only: Option<String>,
}

/// Every user, readable locally, changed through one ordered history.
#[async_trait]
pub trait UserDirectory: Send + Sync {
    /// The record of `username`, from this node, without waiting for others. May touch the disk.
    fn get(&self, username: &str) -> Result<Option<Arc<User>>, DirectoryError>;

    /// A page of users in order.
    fn list(&self, query: &UserQuery) -> Result<UserPage, DirectoryError>;

    /// Waits until reads show all that was acknowledged before this call, on whatever node. Without it they may be of a moment
    /// ago, where this node could not be reached when a change was made.
    ///
    /// # Errors
    /// If that cannot be known now.
    async fn up_to_date(&self) -> Result<(), DirectoryError> {
        Ok(())
    }

    /// Makes a change. When it returns `Ok` the change is on disk and every observer has been told.
    async fn execute(&self, command: Command) -> Result<Applied, ExecuteError>;

    /// The last applied change. Read it *before* a record to know what a login was based on.
    fn revision(&self) -> Revision;

    /// Tells `observer` of every change from now on.
    fn observe(&self, observer: Arc<dyn UserObserver>);

    /// Facts for the operator.
    fn status(&self) -> DirectoryStatus;
}

/// Hears of every change, in the order of revisions, before the change is acknowledged.
pub trait UserObserver: Send + Sync {
    /// Must not block and must not call back into the directory's `execute`.
    fn user_changed(&self, change: &UserChange);
}
