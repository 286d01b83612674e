//! What readers see: every record, in memory, as of the last durable change.
//!
//! Why not read from sled: it shows a batch before it is on disk and goes on showing it when writing it has failed; and
//! its reads write (they finish splits and merges of pages), so after a failed write they fail too. Here the writer
//! puts a batch in when it is durable, as a whole, and whatever happens to the disk, logins go on.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ciqadamq_core::{Revision, User, UserId, UserPage, UserQuery, Username};
use parking_lot::RwLock;

use crate::snapshot::SnapshotState;

/// All records by name.
pub(crate) type Users = BTreeMap<Username, Arc<User>>;

/// Records as they are at one moment, by name: `None` is "does not exist".
pub(crate) type Images = BTreeMap<Username, Option<Arc<User>>>;

/// Readers' side of the state machine.
pub(crate) struct Records {
    view: RwLock<View>,
    revision: AtomicU64,
    /// the state of the replicated log that belongs to these records
    raft_state: RwLock<Option<Vec<u8>>>,
}

/// What one moment looks like.
pub(crate) struct View {
    pub(crate) users: Users,
    /// the names of each person
    people: BTreeSet<(UserId, Username)>,
    fault: Option<String>,
    snapshots: Vec<Weak<SnapshotState>>,
}

impl Records {
    /// Readers of these records.
    pub(crate) fn new(users: Users, last: Revision) -> Self {
        let people = people(&users);
        let view = View { users, people, fault: None, snapshots: Vec::new() };
        Self { view: RwLock::new(view), revision: AtomicU64::new(last.0), raft_state: RwLock::new(None) }
    }

    /// One record.
    pub(crate) fn get(&self, username: &str) -> Option<Arc<User>> {
        self.view.read().users.get(username).cloned()
    }

    /// One page, of one moment.
    pub(crate) fn page(&self, query: &UserQuery) -> UserPage {
        let after = query.after.as_deref();
        let view = self.view.read();
        match &query.userid {
            None => {
                let from = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
                page(view.users.range::<str, _>(from).map(|(_, user)| user), query.limit)
            }
            Some(userid) => {
                let names = view.names_of(userid, after);
                page(names.filter_map(|name| view.users.get(name)), query.limit)
            }
        }
    }

    /// The last applied revision, not younger than what a reader can see.
    pub(crate) fn revision(&self) -> Revision {
        Revision(self.revision.load(Ordering::Acquire))
    }

    /// Number of users and, if nothing is written now, why.
    pub(crate) fn facts(&self) -> (u64, Option<String>) {
        let view = self.view.read();
        (view.users.len() as u64, view.fault.clone())
    }

    /// Runs `f` on what is there at this moment; nothing is published meanwhile.
    pub(crate) fn with_view<T>(&self, f: impl FnOnce(&View) -> T) -> T {
        f(&self.view.read())
    }

    /// Enters a snapshot that begins now. `None` if there are `max` already.
    pub(crate) fn enter_snapshot(&self, max: usize) -> Option<(Arc<SnapshotState>, Revision)> {
        let mut view = self.view.write();
        view.snapshots.retain(|snapshot| snapshot.strong_count() > 0);
        if view.snapshots.len() >= max {
            return None;
        }
        let state = Arc::<SnapshotState>::default();
        view.snapshots.push(Arc::downgrade(&state));
        Some((state, self.revision()))
    }

    /// The state of the replicated log as of the last durable change; `None` if these users were never replicated.
    pub(crate) fn raft_state(&self) -> Option<Vec<u8>> {
        self.raft_state.read().clone()
    }

    // What follows is for the state machine alone.

    /// Notes the state of the replicated log that is on the disk.
    pub(crate) fn set_raft_state(&self, state: Option<Vec<u8>>) {
        *self.raft_state.write() = state;
    }

    /// Shows a change that is durable.
    pub(crate) fn publish(&self, last: Revision, after: Images) {
        let mut view = self.view.write();
        for snapshot in view.snapshots.iter().filter_map(Weak::upgrade) {
            snapshot.keep(after.keys(), &view.users);
        }
        for (username, after) in after {
            let userid = after.as_ref().map(|user| user.userid.clone());
            let before = match after {
                Some(user) => view.users.insert(username.clone(), user),
                None => view.users.remove(&username),
            };
            if before.as_ref().map(|user| &user.userid) != userid.as_ref() {
                if let Some(before) = before {
                    view.people.remove(&(before.userid.clone(), username.clone()));
                }
                if let Some(userid) = userid {
                    view.people.insert((userid, username));
                }
            }
        }
        // Last: a login that reads the new revision and then a record must not get the record from before.
        self.revision.store(last.0, Ordering::Release);
    }

    /// Shows other users instead.
    pub(crate) fn replace(&self, users: Users, last: Revision) {
        let people = people(&users);
        let mut view = self.view.write();
        for snapshot in view.snapshots.drain(..).filter_map(|snapshot| snapshot.upgrade()) {
            snapshot.give_up("all users were replaced meanwhile");
        }
        view.people = people;
        let before = std::mem::replace(&mut view.users, users);
        self.revision.store(last.0, Ordering::Release);
        // Freeing very many records takes its time; nobody shall wait for it.
        drop(view);
        drop(before);
    }

    /// Says why nothing is written now, or that it is again.
    pub(crate) fn set_fault(&self, fault: Option<String>) {
        self.view.write().fault = fault;
    }
}

impl View {
    fn names_of<'a>(&'a self, userid: &'a UserId, after: Option<&'a str>) -> impl Iterator<Item = &'a Username> {
        // What is no name, as it may stand in `after`, cannot be searched for; then the person's names are passed over
        // one by one. `!` is the least of all names.
        let from = match after.map(Username::new) {
            Some(Ok(name)) => Bound::Excluded((userid.clone(), name)),
            _ => Username::new("!").map_or(Bound::Unbounded, |least| Bound::Included((userid.clone(), least))),
        };
        self.people
            .range((from, Bound::Unbounded))
            .take_while(move |(person, _)| person == userid)
            .map(|(_, name)| name)
            .skip_while(move |name| after.is_some_and(|after| name.as_str() <= after))
    }
}

fn page<'a>(mut users: impl Iterator<Item = &'a Arc<User>>, limit: usize) -> UserPage {
    let page: Vec<_> = users.by_ref().take(limit).cloned().collect();
    // Whether there is more costs one step, not the rest.
    let next = page.last().map(|user| user.username.to_string()).filter(|_| users.next().is_some());
    UserPage { users: page, next }
}

fn people(users: &Users) -> BTreeSet<(UserId, Username)> {
    users.values().map(|user| (user.userid.clone(), user.username.clone())).collect()
}

/// Whose record differs, in order of revisions. When a record went away is not known any more: at the end.
pub(crate) fn differences(old: &Users, new: &Users, last: Revision) -> Vec<(Revision, Username)> {
    let mut changed: Vec<_> = new
        .iter()
        .filter(|(name, user)| old.get(*name) != Some(*user))
        .map(|(name, user)| (user.revision, name.clone()))
        .chain(old.keys().filter(|name| !new.contains_key(*name)).map(|name| (last, name.clone())))
        .collect();
    changed.sort_by_key(|(revision, _)| *revision);
    changed
}
