//! Who stands behind each session of this node.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use parking_lot::Mutex;
use thiserror::Error;

use crate::{Meter, Revision, Subject, UserChange, UserId};

/// The user behind one session, as of its login.
///
/// Read on every publish, so it holds what a verdict needs and nothing that must be looked up.
#[derive(Debug)]
pub struct Principal {
    /// login name
    pub username: String,
    /// person
    pub userid: UserId,
    /// the session's client id
    pub client_id: String,
    /// Tells this login from an earlier one with the same client id; chosen by the plugin that lets clients in.
    pub tag: u64,
    /// What the directory had applied when the password was checked.
    pub login: Revision,
    /// what the connection sent lately
    pub meter: Meter,
    since: Instant,
    superuser: AtomicBool,
    admin: AtomicBool,
    withdrawn: AtomicBool,
    left: AtomicBool,
}

impl Principal {
    /// The principal of a fresh login.
    pub fn new(
        username: &str,
        userid: UserId,
        client_id: &str,
        tag: u64,
        login: Revision,
        superuser: bool,
        admin: bool,
    ) -> Self {
        Self {
            username: username.into(),
            userid,
            client_id: client_id.into(),
            tag,
            login,
            meter: Meter::default(),
            since: Instant::now(),
            superuser: AtomicBool::new(superuser),
            admin: AtomicBool::new(admin),
            withdrawn: AtomicBool::new(false),
            left: AtomicBool::new(false),
        }
    }

    /// Time since the login was judged.
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// The right to act is gone: the session is being ended, and everything it tries meanwhile is refused.
    pub fn is_withdrawn(&self) -> bool {
        self.withdrawn.load(Ordering::Acquire)
    }

    /// Takes the right to act away, for good.
    pub fn withdraw(&self) {
        self.withdrawn.store(true, Ordering::Release);
    }

    /// The client has said DISCONNECT: what it still sends on this connection is not acted upon (MQTT-3.14.4-2).
    pub fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Takes down that the client said DISCONNECT. Its next login is another principal.
    pub fn leave(&self) {
        self.left.store(true, Ordering::Release);
    }

    /// The subject for [`crate::AccessRules`], with the flags as they are now.
    pub fn subject(&self) -> Subject<'_> {
        Subject {
            username: &self.username,
            userid: self.userid.as_str(),
            client_id: &self.client_id,
            superuser: self.superuser.load(Ordering::Relaxed),
            admin: self.admin.load(Ordering::Relaxed),
        }
    }

    /// Brings the flags up to date; `false` if this login is no longer admitted.
    fn follow(&self, change: &UserChange) -> bool {
        match &change.after {
            Some(user) if user.admits(self.login) => {
                self.superuser.store(user.superuser, Ordering::Relaxed);
                self.admin.store(user.admin, Ordering::Relaxed);
                true
            }
            _ => {
                self.withdraw();
                false
            }
        }
    }
}

/// A user has as many sessions as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the user has as many sessions as it may")]
pub struct TooManySessions;

/// The principals of all sessions of this node, online or offline, by client id and by username.
///
/// Bounded by the number of sessions.
#[derive(Debug, Default)]
pub struct Principals {
    by_client: DashMap<String, Arc<Principal>>,
    // username -> client ids. Touched at connect and at a user's change, never on a publish.
    by_user: Mutex<HashMap<String, Vec<String>>>,
}

impl Principals {
    /// Nobody.
    pub fn new() -> Self {
        Self::default()
    }

    /// The principal behind a client id.
    pub fn get(&self, client_id: &str) -> Option<Arc<Principal>> {
        self.by_client.get(client_id).map(|p| p.value().clone())
    }

    /// Makes `principal` the one behind its client id.
    pub fn insert(&self, principal: Arc<Principal>) {
        self.put(&mut self.by_user.lock(), principal);
    }

    /// The same, unless it would be one session more than `max` of its user; 0 is no bound.
    ///
    /// Sessions whose client is away count, and one that is taken over counts once.
    pub fn insert_within(&self, principal: Arc<Principal>, max: usize) -> Result<(), TooManySessions> {
        let mut by_user = self.by_user.lock();
        place_in(&by_user, &principal, max)?;
        self.put(&mut by_user, principal);
        Ok(())
    }

    /// Whether [`Principals::insert_within`] would succeed now.
    pub fn has_place(&self, principal: &Principal, max: usize) -> Result<(), TooManySessions> {
        place_in(&self.by_user.lock(), principal, max)
    }

    fn put(&self, by_user: &mut HashMap<String, Vec<String>>, principal: Arc<Principal>) {
        if let Some(old) = self.by_client.insert(principal.client_id.clone(), principal.clone()) {
            forget(by_user, &old);
        }
        by_user.entry(principal.username.clone()).or_default().push(principal.client_id.clone());
    }

    /// Removes the principal behind a client id if it is still the login `tag`.
    pub fn remove(&self, client_id: &str, tag: u64) {
        let mut by_user = self.by_user.lock();
        if let Some((_, old)) = self.by_client.remove_if(client_id, |_, p| p.tag == tag) {
            forget(&mut by_user, &old);
        }
    }

    /// Applies a change of a user to all its sessions here; returns those whose right to act it took away.
    pub fn follow(&self, change: &UserChange) -> Vec<Arc<Principal>> {
        let clients = self.by_user.lock().get(change.username.as_str()).cloned().unwrap_or_default();
        clients
            .iter()
            .filter_map(|client_id| self.get(client_id))
            .filter(|p| p.username == change.username.as_str() && !p.follow(change))
            .collect()
    }

    /// Number of sessions known.
    pub fn len(&self) -> usize {
        self.by_client.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_client.is_empty()
    }
}

fn place_in(by_user: &HashMap<String, Vec<String>>, principal: &Principal, max: usize) -> Result<(), TooManySessions> {
    match by_user.get(&principal.username) {
        Some(clients) if max > 0 && clients.len() >= max && !clients.contains(&principal.client_id) => {
            Err(TooManySessions)
        }
        _ => Ok(()),
    }
}

fn forget(by_user: &mut HashMap<String, Vec<String>>, principal: &Principal) {
    if let Some(clients) = by_user.get_mut(&principal.username) {
        if let Some(at) = clients.iter().position(|c| *c == principal.client_id) {
            clients.swap_remove(at);
        }
        if clients.is_empty() {
            by_user.remove(&principal.username);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PasswordHash, User, Username};

    fn principal(user: &str, client: &str, tag: u64, login: u64) -> Arc<Principal> {
        Arc::new(Principal::new(user, UserId::new("u").unwrap(), client, tag, Revision(login), false, false))
    }

    fn change(user: &str, revision: u64, after: Option<(u64, bool)>) -> UserChange {
        let username = Username::new(user).unwrap();
        let after = after.map(|(valid_from, admin)| {
            Arc::new(User {
                username: username.clone(),
                userid: UserId::new("u").unwrap(),
                password: PasswordHash(String::new()),
                superuser: false,
                admin,
                disabled: false,
                revision: Revision(revision),
                valid_from: Revision(valid_from),
            })
        });
        UserChange { revision: Revision(revision), username, after }
    }

    #[test]
    fn a_deletion_withdraws_all_sessions_of_that_user_and_of_nobody_else() {
        let all = Principals::new();
        for (user, client) in [("a", "c1"), ("a", "c2"), ("b", "c3")] {
            all.insert(principal(user, client, 1, 1));
        }
        let mut gone: Vec<_> = all.follow(&change("a", 2, None)).iter().map(|p| p.client_id.clone()).collect();
        gone.sort();
        assert_eq!(gone, ["c1", "c2"]);
        assert!(all.get("c1").unwrap().is_withdrawn() && !all.get("c3").unwrap().is_withdrawn());
    }

    #[test]
    fn a_user_gets_no_more_sessions_than_the_bound_and_keeps_those_it_has() {
        let all = Principals::new();
        for client in ["c1", "c2"] {
            all.insert_within(principal("a", client, 1, 1), 2).unwrap();
        }
        assert_eq!(all.insert_within(principal("a", "c3", 1, 1), 2), Err(TooManySessions));
        assert!(all.get("c3").is_none());
        all.insert_within(principal("a", "c2", 2, 1), 2).unwrap();
        all.insert_within(principal("b", "c3", 1, 1), 2).unwrap();
        all.remove("c1", 1);
        all.insert_within(principal("a", "c4", 1, 1), 2).unwrap();
        all.insert_within(principal("a", "c5", 1, 1), 0).unwrap();
    }

    #[test]
    fn a_granted_flag_reaches_the_open_session() {
        let all = Principals::new();
        all.insert(principal("a", "c1", 1, 1));
        assert!(all.follow(&change("a", 2, Some((1, true)))).is_empty());
        assert!(all.get("c1").unwrap().subject().admin);
    }

    #[test]
    fn a_late_goodbye_of_an_older_login_does_not_remove_the_newer_one() {
        let all = Principals::new();
        all.insert(principal("a", "c1", 1, 1));
        all.insert(principal("b", "c1", 2, 1));
        all.remove("c1", 1);
        assert_eq!(all.get("c1").unwrap().username, "b");
        assert!(all.follow(&change("a", 3, None)).is_empty());
        all.remove("c1", 2);
        assert!(all.is_empty() && all.by_user.lock().is_empty());
    }
}
