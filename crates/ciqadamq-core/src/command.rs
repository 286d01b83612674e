//! The commands that change users, and what each does to a record.
//!
//! [`decide`] is the whole state machine: a pure function of the record before, the command and its revision. Whoever
//! drives it (one writer today, a replicated log next) gets the same answer on every node.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{PasswordHash, Revision, User, UserId, Username};

/// A change of one user. Passwords are hashed before they get here: a command is replicated and logged on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Makes a user that must not exist yet.
    Create {
        /// login name
        username: Username,
        /// person
        userid: UserId,
        /// verifier
        password: PasswordHash,
        /// no access rule applies
        superuser: bool,
        /// admin prefixes
        admin: bool,
    },
    /// Makes or replaces a user, whatever was there: migration and restore.
    Put {
        /// login name
        username: Username,
        /// person
        userid: UserId,
        /// verifier
        password: PasswordHash,
        /// no access rule applies
        superuser: bool,
        /// admin prefixes
        admin: bool,
        /// may not log in
        disabled: bool,
    },
    /// Changes some fields of an existing user.
    Update {
        /// login name
        username: Username,
        /// what changes
        patch: UserPatch,
    },
    /// Stores the same password under better hash parameters, unless the record changed meanwhile.
    ///
    /// No right changes, so no session ends and `valid_from` stays.
    Rehash {
        /// login name
        username: Username,
        /// the record that was verified
        expected: Revision,
        /// the new verifier
        password: PasswordHash,
    },
    /// Removes a user.
    Delete {
        /// login name
        username: Username,
    },
}

impl Command {
    /// Whom it concerns.
    pub fn username(&self) -> &Username {
        match self {
            Self::Create { username, .. }
            | Self::Put { username, .. }
            | Self::Update { username, .. }
            | Self::Rehash { username, .. }
            | Self::Delete { username } => username,
        }
    }
}

/// Fields to change; `None` leaves a field alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserPatch {
    /// new verifier
    pub password: Option<PasswordHash>,
    /// another person
    pub userid: Option<UserId>,
    /// flag
    pub superuser: Option<bool>,
    /// flag
    pub admin: Option<bool>,
    /// flag
    pub disabled: Option<bool>,
}

/// Why a command changed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum Rejection {
    /// [`Command::Create`] of an existing name.
    #[error("user exists")]
    Exists,
    /// No such user.
    #[error("no such user")]
    NotFound,
    /// [`Command::Rehash`] of a record that changed meanwhile.
    #[error("the record changed meanwhile")]
    Stale,
}

/// What to do with the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Write this record in place of the old one.
    Write(User),
    /// Remove the record.
    Remove,
}

/// What became of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// The revision the change got.
    pub revision: Revision,
}

/// Decides what `command`, as change number `revision`, does to the record that stands there `before`.
pub fn decide(before: Option<&User>, command: &Command, revision: Revision) -> Result<Decision, Rejection> {
    match command {
        Command::Create { .. } if before.is_some() => Err(Rejection::Exists),
        Command::Create { username, userid, password, superuser, admin } => Ok(Decision::Write(User {
            username: username.clone(),
            userid: userid.clone(),
            password: password.clone(),
            superuser: *superuser,
            admin: *admin,
            disabled: false,
            revision,
            valid_from: revision,
        })),
        // A replaced record is a new one: whatever was logged in before is over.
        Command::Put { username, userid, password, superuser, admin, disabled } => Ok(Decision::Write(User {
            username: username.clone(),
            userid: userid.clone(),
            password: password.clone(),
            superuser: *superuser,
            admin: *admin,
            disabled: *disabled,
            revision,
            valid_from: revision,
        })),
        Command::Update { patch, .. } => {
            let before = before.ok_or(Rejection::NotFound)?;
            Ok(Decision::Write(patched(before, patch, revision)))
        }
        Command::Rehash { expected, password, .. } => match before {
            None => Err(Rejection::NotFound),
            Some(user) if user.revision != *expected => Err(Rejection::Stale),
            Some(user) => Ok(Decision::Write(User { password: password.clone(), revision, ..user.clone() })),
        },
        Command::Delete { .. } => before.map(|_| Decision::Remove).ok_or(Rejection::NotFound),
    }
}

fn patched(before: &User, patch: &UserPatch, revision: Revision) -> User {
    let after = User {
        username: before.username.clone(),
        userid: patch.userid.clone().unwrap_or_else(|| before.userid.clone()),
        password: patch.password.clone().unwrap_or_else(|| before.password.clone()),
        superuser: patch.superuser.unwrap_or(before.superuser),
        admin: patch.admin.unwrap_or(before.admin),
        disabled: patch.disabled.unwrap_or(before.disabled),
        revision,
        valid_from: before.valid_from,
    };
    // Only what takes something away ends sessions. A flag that is granted reaches the open connection instead.
    let withdraws = patch.password.is_some()
        || after.userid != before.userid
        || (before.superuser && !after.superuser)
        || (before.admin && !after.admin)
        || (!before.disabled && after.disabled);
    User { valid_from: if withdraws { revision } else { before.valid_from }, ..after }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(s: &str) -> Username {
        Username::new(s).unwrap()
    }

    fn create() -> Command {
        Command::Create {
            username: name("t"),
            userid: UserId::new("u").unwrap(),
            password: PasswordHash("h1".into()),
            superuser: false,
            admin: false,
        }
    }

    fn written(before: Option<&User>, command: &Command, revision: u64) -> User {
        match decide(before, command, Revision(revision)).unwrap() {
            Decision::Write(user) => user,
            Decision::Remove => panic!("removed"),
        }
    }

    fn update(patch: UserPatch) -> Command {
        Command::Update { username: name("t"), patch }
    }

    #[test]
    fn a_second_creation_loses() {
        let user = written(None, &create(), 1);
        assert_eq!(decide(Some(&user), &create(), Revision(2)), Err(Rejection::Exists));
    }

    #[test]
    fn a_recreated_user_admits_no_older_login() {
        let first = written(None, &create(), 1);
        assert!(first.admits(Revision(1)));
        assert_eq!(decide(Some(&first), &Command::Delete { username: name("t") }, Revision(2)), Ok(Decision::Remove));
        let second = written(None, &create(), 3);
        assert!(!second.admits(Revision(1)) && !second.admits(Revision(2)) && second.admits(Revision(3)));
    }

    #[test]
    fn what_takes_a_right_away_ends_older_sessions() {
        let user = User { superuser: true, admin: true, ..written(None, &create(), 1) };
        for patch in [
            UserPatch { password: Some(PasswordHash("h2".into())), ..Default::default() },
            UserPatch { userid: Some(UserId::new("other").unwrap()), ..Default::default() },
            UserPatch { superuser: Some(false), ..Default::default() },
            UserPatch { admin: Some(false), ..Default::default() },
            UserPatch { disabled: Some(true), ..Default::default() },
        ] {
            let after = written(Some(&user), &update(patch.clone()), 5);
            assert!(!after.admits(Revision(4)), "{patch:?}");
        }
    }

    #[test]
    fn what_grants_a_right_leaves_sessions_alone() {
        let user = written(None, &create(), 1);
        for patch in [
            UserPatch { superuser: Some(true), ..Default::default() },
            UserPatch { admin: Some(true), ..Default::default() },
            UserPatch { disabled: Some(false), ..Default::default() },
            UserPatch { userid: Some(user.userid.clone()), ..Default::default() },
            UserPatch::default(),
        ] {
            let after = written(Some(&user), &update(patch.clone()), 5);
            assert!(after.admits(Revision(1)), "{patch:?}");
            assert_eq!(after.revision, Revision(5));
        }
    }

    #[test]
    fn a_rehash_keeps_sessions_and_never_overwrites_a_newer_password() {
        let user = written(None, &create(), 1);
        let rehash =
            Command::Rehash { username: name("t"), expected: Revision(1), password: PasswordHash("h9".into()) };
        let after = written(Some(&user), &rehash, 2);
        assert!(after.admits(Revision(1)));
        let changed = written(
            Some(&user),
            &update(UserPatch { password: Some(PasswordHash("new".into())), ..Default::default() }),
            2,
        );
        assert_eq!(decide(Some(&changed), &rehash, Revision(3)), Err(Rejection::Stale));
    }

    #[test]
    fn nothing_happens_to_who_is_not_there() {
        assert_eq!(decide(None, &update(UserPatch::default()), Revision(1)), Err(Rejection::NotFound));
        assert_eq!(decide(None, &Command::Delete { username: name("t") }, Revision(1)), Err(Rejection::NotFound));
    }
}
