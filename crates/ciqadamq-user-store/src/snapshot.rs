//! All records as of one revision, read while changes go on.

use std::collections::{BTreeMap, btree_map};
use std::ops::Bound;
use std::sync::Arc;

use ciqadamq_core::{DirectoryError, Revision, User, Username};
use parking_lot::Mutex;

use crate::records::{Images, Records, Users};

/// Most snapshots at a time.
const SNAPSHOTS_MAX: usize = 4;

/// Most records that may change behind the back of one snapshot before it is given up: they are kept in memory.
const KEPT_MAX: usize = 100_000;

/// Records read at once, while the writer waits.
const CHUNK: usize = 256;

/// All users as they were at one revision, in order of names.
///
/// Changes go on while it is read; it keeps the records that they replace. It ends with an error if more than 100,000
/// users change before it is through, or if all users are replaced.
pub struct Snapshot {
    records: Arc<Records>,
    state: Arc<SnapshotState>,
    last_applied: Revision,
    chunk: btree_map::IntoValues<Username, Arc<User>>,
    over: bool,
}

/// What the writer leaves for a snapshot.
#[derive(Default)]
pub(crate) struct SnapshotState(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// records that have changed since, as they were
    images: Images,
    /// the last name that was read
    after: Option<Username>,
    given_up: Option<&'static str>,
}

impl SnapshotState {
    /// Keeps records that are about to change, unless the snapshot is past them or has an older image.
    pub(crate) fn keep<'a>(&self, changing: impl Iterator<Item = &'a Username>, users: &Users) {
        let mut inner = self.0.lock();
        if inner.given_up.is_some() {
            return;
        }
        for name in changing {
            if inner.after.as_ref().is_none_or(|after| name > after) {
                inner.images.entry(name.clone()).or_insert_with(|| users.get(name).cloned());
            }
        }
        if inner.images.len() > KEPT_MAX {
            inner.give_up("too many users changed meanwhile");
        }
    }

    pub(crate) fn give_up(&self, why: &'static str) {
        self.0.lock().give_up(why);
    }
}

impl Inner {
    fn give_up(&mut self, why: &'static str) {
        self.images.clear();
        self.given_up = Some(why);
    }

    /// The next records as they were, and whether those were the last.
    fn read(&mut self, users: &Users) -> (BTreeMap<Username, Arc<User>>, bool) {
        let from = self.after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut chunk: BTreeMap<_, _> = users
            .range::<Username, _>((from, Bound::Unbounded))
            .take(CHUNK)
            .map(|(name, user)| (name.clone(), user.clone()))
            .collect();
        let over = chunk.len() < CHUNK;
        let last = chunk.keys().next_back().filter(|_| !over).cloned();
        let later = last.as_ref().map_or_else(Images::new, |last| {
            let mut later = self.images.split_off(last);
            if let Some(image) = later.remove(last) {
                self.images.insert(last.clone(), image);
            }
            later
        });
        for (name, image) in std::mem::replace(&mut self.images, later) {
            match image {
                Some(user) => chunk.insert(name, user),
                None => chunk.remove(&name),
            };
        }
        self.after = last;
        (chunk, over)
    }
}

impl Snapshot {
    pub(crate) fn begin(records: &Arc<Records>) -> Result<Self, DirectoryError> {
        let (state, last_applied) = records.enter_snapshot(SNAPSHOTS_MAX).ok_or_else(|| DirectoryError {
            reason: format!("{SNAPSHOTS_MAX} snapshots are being read; wait until one of them is finished"),
        })?;
        let chunk = BTreeMap::new().into_values();
        Ok(Self { records: records.clone(), state, last_applied, chunk, over: false })
    }

    /// The revision as of which the records stand.
    pub fn last_applied(&self) -> Revision {
        self.last_applied
    }
}

impl Iterator for Snapshot {
    type Item = Result<Arc<User>, DirectoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(user) = self.chunk.next() {
                return Some(Ok(user));
            }
            if self.over {
                return None;
            }
            // While the view is held nothing is published, so what has changed has its image here.
            let read = self.records.with_view(|view| {
                let mut inner = self.state.0.lock();
                match inner.given_up {
                    None => Ok(inner.read(&view.users)),
                    Some(why) => Err(DirectoryError { reason: format!("{why}; read the snapshot again") }),
                }
            });
            match read {
                Ok((chunk, over)) => (self.chunk, self.over) = (chunk.into_values(), over),
                Err(error) => {
                    self.over = true;
                    return Some(Err(error));
                }
            }
        }
    }
}
