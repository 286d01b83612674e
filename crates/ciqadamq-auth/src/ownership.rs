//! Whose session is whose, from the verdict on the CONNECT to the end of the session; and the end itself, when a user
//! loses the right to it.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use async_trait::async_trait;
use ciqadamq_core::{
    AUDIT, LocalOwners, LogBudget, Principal, Principals, RemoteOwners, Revision, Subject, UserChange, UserObserver,
};
use dashmap::DashMap;
use parking_lot::Mutex;
use rmqtt::context::ServerContext;
use rmqtt::session::Session;
use rmqtt::types::Id;
use tokio::sync::{Notify, Semaphore};
use tracing::{info, warn};

use crate::config::AuthConfig;
use crate::farewell::{Connection, Farewells, Word};
use crate::login::Judge;
use crate::metrics::AuthMetrics;
use crate::sessions::{ADMINISTRATIVE_ACTION, CONNACK_BY, Ending, Sessions};

/// How long a login waits between its verdict and its session. Longer than any handshake.
const PENDING_MAX: Duration = Duration::from_secs(120);
/// How long after its verdict a client may not be seen online yet: it waits for its client id, and for whoever looks.
const LET_IN_MAX: Duration = Duration::from_secs(10);
/// After what time a session that could not be ended is tried again: until then it cannot act, but it hears.
const END_RETRY: Duration = Duration::from_secs(1);
/// Sessions ended at the same time; each may wait up to five seconds for a stuck client.
const ENDING_AT_ONCE: usize = 64;
/// Reason codes of MQTT 5.0 §3.2.2.2.
const QUOTA_EXCEEDED: u8 = 0x97;
const NOT_AUTHORIZED: u8 = 0x87;
/// Return code of MQTT 3.1.1 §3.2.2.3.
const V3_NOT_AUTHORIZED: u8 = 5;
/// How long a client id is waited for whose session ends with its connection, which is still open: a goodbye that was
/// sent before this CONNECT may be read after it.
const GOODBYE_WAIT: Duration = Duration::from_millis(100);
/// The same once the connection is closed, and the engine has to clean up.
const ENDING_WAIT: Duration = Duration::from_millis(400);
const ENDING_RETRY: Duration = Duration::from_millis(10);

/// No client has this id; the guard claims to know it, and so shows that it is there.
pub(crate) const GUARD_MARK: &str = "\0guard";

/// What a connecting client may do with the session that has its client id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// none is there, or it belongs to the same person
    Own,
    /// it belongs to the same person, under a login that may do more
    OwnWithMoreRights,
    /// its user lost the right to it
    Withdrawn,
    /// it belongs to another person
    Foreign,
}

pub(crate) struct Ownership {
    scx: ServerContext,
    pub(crate) judge: Judge,
    principals: Arc<Principals>,
    pub(crate) sessions: Arc<Sessions>,
    /// The sessions of the other nodes, in a cluster.
    remote: Option<Arc<dyn RemoteOwners>>,
    pub(crate) metrics: Arc<AuthMetrics>,
    max_connections: usize,
    sessions_per_user: usize,
    farewells: Arc<Farewells>,
    pub(crate) defer_unknown: bool,
    /// Clients whose CONNECT is complete and has no answer yet, or a good one lately. Bounded by the connections that are open,
    /// and those of the last half minute.
    judging: DashMap<SocketAddr, Judged>,
    log: LogBudget,
    /// Logins that could not be judged, by tag: told "server unavailable" by the guard.
    unjudged: DashMap<u64, Instant>,
    /// Logins that were allowed and have no session yet, by tag.
    pending: DashMap<u64, Pending>,
    /// Principals whose sessions are to be ended. Bounded by the number of sessions.
    doomed: Mutex<Vec<Arc<Principal>>>,
    wake: Notify,
}

/// A login that was allowed and has no session yet.
struct Pending {
    since: Instant,
    principal: Arc<Principal>,
    is_v5: bool,
}

/// A client whose CONNECT is being judged, or was let in a moment ago.
struct Judged {
    connection: Option<Connection>,
    gone: Arc<Notify>,
    let_in: Option<Instant>,
}

impl Judged {
    fn counts(&self) -> bool {
        self.let_in.is_none_or(|since| since.elapsed() < LET_IN_MAX)
    }
}

/// A CONNECT that is being judged, until dropped.
pub(crate) struct Judging<'a> {
    all: &'a DashMap<SocketAddr, Judged>,
    client: Option<SocketAddr>,
    /// told when the client has gone away
    pub(crate) gone: Arc<Notify>,
}

impl Judging<'_> {
    /// The client is let in: it counts until its session is online.
    pub(crate) fn let_in(mut self) {
        if let Some(mut judged) = self.client.take().and_then(|client| self.all.get_mut(&client)) {
            judged.let_in = Some(Instant::now());
        }
    }
}

impl Drop for Judging<'_> {
    fn drop(&mut self) {
        if let Some(client) = self.client {
            self.all.remove_if(&client, |_, judged| Arc::ptr_eq(&judged.gone, &self.gone));
        }
    }
}

/// Whether whoever is `new` may do all that `old` may: several login names may stand for one person.
fn covers(new: &Subject<'_>, old: &Subject<'_>) -> bool {
    new.superuser || (!old.superuser && (new.admin || !old.admin))
}

/// Tells one login from another.
pub(crate) fn tag_of(id: &Id) -> u64 {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    hasher.finish()
}

impl Ownership {
    #[expect(clippy::too_many_arguments, reason = "each is another part, and there is one caller")]
    pub(crate) fn new(
        scx: ServerContext,
        judge: Judge,
        principals: Arc<Principals>,
        sessions: Arc<Sessions>,
        remote: Option<Arc<dyn RemoteOwners>>,
        metrics: Arc<AuthMetrics>,
        farewells: Arc<Farewells>,
        config: &AuthConfig,
    ) -> Self {
        Self {
            scx,
            judge,
            principals,
            sessions,
            remote,
            metrics,
            max_connections: config.max_connections,
            sessions_per_user: config.sessions_per_user,
            farewells,
            judging: DashMap::new(),
            defer_unknown: config.defer_unknown,
            log: LogBudget::default(),
            unjudged: DashMap::new(),
            pending: DashMap::new(),
            doomed: Mutex::default(),
            wake: Notify::new(),
        }
    }

    /// Whether another connection is within `mqtt.max_connections`.
    pub(crate) fn has_room(&self) -> bool {
        self.max_connections == 0 || self.scx.connections.count() < self.max_connections as isize
    }

    /// Remembers a login until its session is set.
    pub(crate) fn expect(&self, principal: Arc<Principal>, is_v5: bool) {
        self.pending.insert(principal.tag, Pending { since: Instant::now(), principal, is_v5 });
    }

    /// A login whose session will not be set: it was refused meanwhile.
    pub(crate) fn give_up(&self, id: &Id) {
        self.pending.remove(&tag_of(id));
    }

    /// Who is behind a login that has no session yet.
    pub(crate) fn expected(&self, id: &Id) -> Option<Arc<Principal>> {
        self.pending.get(&tag_of(id)).map(|pending| pending.principal.clone())
    }

    /// Notes that a CONNECT is complete, for as long as it is being judged.
    pub(crate) fn judging(&self, id: &Id) -> Judging<'_> {
        let (client, gone) = (id.remote_addr, Arc::new(Notify::new()));
        if let Some(client) = client {
            let connection = self.sessions.connection(id);
            self.judging.insert(client, Judged { connection, gone: gone.clone(), let_in: None });
        }
        Judging { all: &self.judging, client, gone }
    }

    /// The connections whose CONNECT is being judged, and who wants to hear of their end.
    pub(crate) fn connections_judged(&self) -> Vec<(Connection, Arc<Notify>)> {
        let waiting = self.judging.iter().filter(|judged| judged.let_in.is_none());
        waiting.filter_map(|judged| Some((judged.connection?, judged.gone.clone()))).collect()
    }

    /// Whether the CONNECT of a client is being judged, or it was let in a moment ago.
    pub(crate) fn is_judged(&self, client: &SocketAddr) -> bool {
        self.judging.get(client).is_some_and(|judged| judged.counts())
    }

    /// A client said DISCONNECT: it is not on its way in any more, and its socket is looked after like any without a session.
    pub(crate) fn left(&self, id: &Id) {
        if let Some(client) = id.remote_addr {
            self.judging.remove(&client);
        }
    }

    /// Answers a CONNECT in the engine's place, which is about to refuse it.
    pub(crate) async fn answer(&self, id: &Id, word: Word) {
        if let Some(connection) = self.sessions.connection(id) {
            self.farewells.say(connection, word).await;
        }
    }

    /// Has the guard answer a login that could not be judged, with a code after which clients try again; the engine's
    /// hooks know none. `false` if the guard is not in place: then the login must be refused here.
    pub(crate) async fn leave_to_guard(&self, tag: u64) -> bool {
        let is_guarded = { self.scx.extends.shared().await.exist(GUARD_MARK) };
        if is_guarded {
            self.unjudged.insert(tag, Instant::now());
        }
        is_guarded
    }

    /// Whether a login was left to the guard, which asks once.
    pub(crate) fn is_unjudged(&self, id: &Id) -> bool {
        self.unjudged.remove(&tag_of(id)).is_some()
    }

    /// Whether a login is being made on another node.
    pub(crate) fn is_elsewhere(&self, login: &Id) -> bool {
        login.node_id != self.scx.node.id()
    }

    /// Whether the session of a client id belongs to somebody else than `userid`, who logs in as `username`: here or on
    /// another node.
    ///
    /// A session that ends with its connection may be ending this very moment: its client said goodbye, and the engine
    /// has not finished. That is waited for, shortly, before the newcomer is refused.
    pub(crate) async fn is_foreign(&self, client_id: &str, username: &str, userid: &str) -> bool {
        let since = Instant::now();
        loop {
            match self.owner_here(client_id).await {
                None => {
                    return match &self.remote {
                        Some(remote) => remote.is_foreign(client_id, username, userid).await,
                        None => false,
                    };
                }
                Some(owner) if owner == userid => return false,
                Some(_) => match self.sessions.ending(client_id).await {
                    Ending::Stays => return true,
                    Ending::Online if since.elapsed() >= GOODBYE_WAIT => return true,
                    Ending::Offline if since.elapsed() >= ENDING_WAIT => return true,
                    _ => tokio::time::sleep(ENDING_RETRY).await,
                },
            }
        }
    }

    /// The person whose session has this client id now; the login name where it is no user of ours.
    ///
    /// `None` if there is no session, or if its user lost the right to it: then nobody owns it any more.
    async fn owner_here(&self, client_id: &str) -> Option<String> {
        let session = self.sessions.session(client_id).await?;
        if let Some(principal) = self.principal_of(&session.id) {
            return (!principal.is_withdrawn()).then(|| principal.userid.to_string());
        }
        Some(self.owner_without_principal(&session.id))
    }

    /// For sessions that another authentication plugin let in or a storage plugin restored. The separator cannot stand
    /// in a user id, so a foreign name never equals one.
    fn owner_without_principal(&self, id: &Id) -> String {
        self.person_of(id.username.as_deref().unwrap_or_default())
    }

    fn person_of(&self, username: &str) -> String {
        self.judge.userid_of(username).unwrap_or_else(|| format!("/{username}"))
    }

    fn principal_of(&self, id: &Id) -> Option<Arc<Principal>> {
        let tag = tag_of(id);
        self.principals.get(&id.client_id).filter(|p| p.tag == tag)
    }

    /// Asked under the engine's lock of the client id.
    pub(crate) fn claim(&self, connecting: &Id, existing: Option<&Session>) -> Claim {
        let Some(existing) = existing else { return Claim::Own };
        let held = self.principal_of(&existing.id);
        if held.as_ref().is_some_and(|p| p.is_withdrawn()) {
            return Claim::Withdrawn;
        }
        let owner = match &held {
            Some(principal) => principal.userid.to_string(),
            None => self.owner_without_principal(&existing.id),
        };
        let pending = self.expected(connecting);
        let claimant = match &pending {
            Some(principal) => principal.userid.to_string(),
            None => self.owner_without_principal(connecting),
        };
        if owner == claimant {
            let same_name = existing.id.username == connecting.username;
            let is_covered = match (held, pending) {
                (Some(held), Some(pending)) => covers(&pending.subject(), &held.subject()),
                // A login that another node let in.
                (Some(held), None) => self.judge.may_do_all_of(connecting.username.as_deref(), &held.subject(), covers),
                _ => false,
            };
            return if same_name || is_covered { Claim::Own } else { Claim::OwnWithMoreRights };
        }
        self.metrics.contested.inc();
        if let Some(suppressed) = self.log.spend() {
            warn!(
                target: AUDIT,
                event = "session_refused",
                reason = "foreign_client_id",
                username = connecting.username_ref(),
                client_id = &*connecting.client_id,
                address = connecting.remote_addr.map(tracing::field::display),
                suppressed,
                "session refused"
            );
        }
        Claim::Foreign
    }

    /// The session of a login is about to be set: its principal stands behind the client id from now on.
    pub(crate) async fn admit(&self, id: &Id) -> anyhow::Result<Option<Arc<Principal>>> {
        let Some((_, Pending { principal, is_v5, .. })) = self.pending.remove(&tag_of(id)) else {
            // Let in by another plugin: no principal, and certainly not the one of an earlier session.
            if let Some(earlier) = self.principals.get(&id.client_id) {
                // The same session once more, with another task.
                if earlier.tag == tag_of(id) {
                    return Ok(Some(earlier));
                }
                self.principals.remove(&id.client_id, earlier.tag);
            }
            return Ok(None);
        };
        // First into the map, where a change of the user finds it, then the look at the directory: whichever way the
        // two fall, one of them sees the other.
        if let Err(error) = self.principals.insert_within(principal.clone(), self.sessions_max(&principal)) {
            self.too_many(id, &principal, is_v5).await;
            return Err(error.into());
        }
        if !self.judge.still_admits(&principal) {
            principal.withdraw();
            self.principals.remove(&principal.client_id, principal.tag);
            return Err(anyhow!("the user changed during the login"));
        }
        Ok(Some(principal))
    }

    /// Asked before an existing session is touched: whether the user of a login may have one more.
    pub(crate) async fn has_place(&self, id: &Id) -> anyhow::Result<()> {
        let pending = self.pending.get(&tag_of(id)).map(|pending| (pending.principal.clone(), pending.is_v5));
        let Some((principal, is_v5)) = pending else { return Ok(()) };
        if let Err(error) = self.principals.has_place(&principal, self.sessions_max(&principal)) {
            self.too_many(id, &principal, is_v5).await;
            return Err(error.into());
        }
        Ok(())
    }

    /// Tells a login whose client id turned out to be somebody else's. One that another node let in is not heard here.
    pub(crate) async fn not_yours(&self, id: &Id) {
        let is_v5 = self.pending.get(&tag_of(id)).map(|pending| pending.is_v5);
        let word = match is_v5 {
            Some(true) => Word::Connack5(NOT_AUTHORIZED),
            Some(false) => Word::Connack3(V3_NOT_AUTHORIZED),
            None => return,
        };
        self.answer(id, word).await;
    }

    fn sessions_max(&self, principal: &Principal) -> usize {
        if principal.subject().superuser { 0 } else { self.sessions_per_user }
    }

    async fn too_many(&self, id: &Id, principal: &Principal, is_v5: bool) {
        self.metrics.too_many_sessions.inc();
        if let Some(suppressed) = self.log.spend() {
            warn!(
                target: AUDIT,
                event = "session_refused",
                reason = "too_many_sessions",
                username = principal.username,
                client_id = principal.client_id,
                address = id.remote_addr.map(tracing::field::display),
                suppressed,
                "session refused"
            );
        }
        if is_v5 {
            self.answer(id, Word::Connack5(QUOTA_EXCEEDED)).await;
        }
    }

    /// Takes a session from the disk over: whoever logged in as `username` then has the right to it still, or not.
    ///
    /// `userid` is `None` if the login was not judged here: then it is not judged now, and has no principal.
    pub(crate) fn adopt(&self, id: &Id, username: &str, userid: Option<&str>, login: Revision) -> bool {
        let Some(userid) = userid else { return true };
        let Some(user) = self.judge.user(username) else { return false };
        if user.userid.as_str() != userid || !user.admits(login) {
            return false;
        }
        let (tag, userid) = (tag_of(id), user.userid.clone());
        let principal = Principal::new(username, userid, &id.client_id, tag, login, user.superuser, user.admin);
        let principal = Arc::new(principal);
        // As at a login: first into the map, then the look at the directory.
        self.principals.insert(principal.clone());
        if !self.judge.still_admits(&principal) {
            self.principals.remove(&principal.client_id, principal.tag);
            return false;
        }
        true
    }

    /// The session `id` is over.
    pub(crate) fn forget(&self, id: &Id) {
        self.principals.remove(&id.client_id, tag_of(id));
    }

    /// Ends sessions of withdrawn principals, and forgets logins that never got a session. Runs for ever.
    pub(crate) async fn run(self: Arc<Self>) {
        let slots = Arc::new(Semaphore::new(ENDING_AT_ONCE));
        let mut sweep = tokio::time::interval(PENDING_MAX / 4);
        loop {
            tokio::select! {
                // However often the other wakes us.
                biased;
                _ = sweep.tick() => self.sweep(),
                () = self.wake.notified() => {}
            }
            let doomed = std::mem::take(&mut *self.doomed.lock());
            let (young, doomed): (Vec<_>, Vec<_>) = doomed.into_iter().partition(|p| p.age() < CONNACK_BY);
            if !young.is_empty() {
                self.postpone(young, CONNACK_BY);
            }
            if doomed.is_empty() {
                continue;
            }
            let mut ending = Vec::with_capacity(doomed.len());
            for principal in &doomed {
                ending.extend(self.sessions.session(&principal.client_id).await);
            }
            let tags: HashSet<u64> = doomed.iter().map(|principal| principal.tag).collect();
            ending.retain(|session| tags.contains(&tag_of(&session.id)));
            self.sessions.say_goodbye(&ending, ADMINISTRATIVE_ACTION).await;
            for principal in doomed {
                // The semaphore is never closed.
                let Ok(slot) = slots.clone().acquire_owned().await else { return };
                let this = self.clone();
                tokio::spawn(async move {
                    if !this.end(&principal).await {
                        this.postpone(vec![principal], END_RETRY);
                    }
                    drop(slot);
                });
            }
        }
    }

    /// Forgets logins that never got a session: nobody tells of a handshake that failed.
    fn sweep(&self) {
        self.pending.retain(|_, pending| pending.since.elapsed() < PENDING_MAX);
        self.unjudged.retain(|_, since| since.elapsed() < PENDING_MAX);
        self.judging.retain(|_, judged| judged.counts());
    }

    fn postpone(self: &Arc<Self>, doomed: Vec<Arc<Principal>>, by: Duration) {
        let this = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(by).await;
            this.doomed.lock().extend(doomed);
            this.wake.notify_one();
        });
    }

    /// Ends the session of a principal; `false` if it is still there.
    async fn end(&self, principal: &Principal) -> bool {
        let ended = self.sessions.terminate(&principal.client_id, |s| tag_of(&s.id) == principal.tag).await;
        if ended {
            self.metrics.withdrawn.inc();
            info!(
                target: AUDIT,
                event = "session_withdrawn",
                username = principal.username,
                client_id = principal.client_id,
                "session ended: its user lost the right to it"
            );
            return true;
        }
        let session = self.sessions.session(&principal.client_id).await;
        session.is_none_or(|session| tag_of(&session.id) != principal.tag)
    }
}

impl UserObserver for Ownership {
    fn user_changed(&self, change: &UserChange) {
        self.judge.forget(change.username.as_str(), change.after.as_ref().map(|user| user.valid_from));
        let withdrawn = self.principals.follow(change);
        if !withdrawn.is_empty() {
            self.doomed.lock().extend(withdrawn);
            self.wake.notify_one();
        }
    }
}

#[async_trait]
impl LocalOwners for Ownership {
    async fn owner(&self, client_id: &str) -> Option<String> {
        self.owner_here(client_id).await
    }

    fn person(&self, username: &str) -> String {
        self.person_of(username)
    }
}
