//! The decision on a CONNECT. Knows the user directory and passwords, not the engine.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ciqadamq_core::{
    AUDIT, AccessRules, Command, HashError, LogBudget, PASSWORD_BYTES_MAX, PasswordHash, PasswordHashing, Principal,
    PublishRefusal, Revision, Secret, Subject, User, UserDirectory, Username, excerpt,
};
use tokio::sync::Notify;
use tracing::{debug, warn};

use crate::brake::{Attempt, Brake};
use crate::config::AuthConfig;
use crate::fast::FastVerdicts;
use crate::host::host;
use crate::metrics::AuthMetrics;
use crate::phc;
use crate::pool::HashPool;

/// How long a login waits for a directory that does not answer, and between two tries. Less than a client waits for CONNACK.
const DIRECTORY_WAIT: Duration = Duration::from_secs(2);
const DIRECTORY_RETRY: Duration = Duration::from_millis(20);

/// What a CONNECT says.
pub struct Login<'a> {
    /// user name, if there is one
    pub username: Option<&'a str>,
    /// password, if there is one
    pub password: Option<&'a [u8]>,
    /// Client Identifier
    pub client_id: &'a str,
    /// peer
    pub address: Option<IpAddr>,
    /// the Will Message, if there is one
    pub will: Option<WillOf<'a>>,
    /// tells this login from others, see [`Principal::tag`]
    pub tag: u64,
    /// told when the client has gone away: then nobody waits for the verdict
    pub gone: &'a Notify,
}

/// What is judged of a Will Message.
#[derive(Debug, Clone, Copy)]
pub struct WillOf<'a> {
    /// Topic Name
    pub topic: &'a str,
    /// Will Retain
    pub retain: bool,
    /// a property holds what the standard forbids
    pub is_malformed: bool,
}

/// Why a CONNECT is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// user name or password missing or empty
    MissingCredentials,
    /// no such user
    UnknownUser,
    /// wrong password
    WrongPassword,
    /// too many recent failures of this name or address
    Braked,
    /// the hashing pool has no room
    Busy,
    /// the client went away while its password waited to be hashed
    Gone,
    /// the user directory does not answer
    DirectoryUnavailable,
    /// the user may not log in
    Disabled,
    /// the client id belongs to somebody else's session
    ForeignClientId,
    /// the client id holds U+0000
    InvalidClientId,
    /// the Will may not be published
    Will(PublishRefusal),
}

impl Refusal {
    /// Stable name for counters and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MissingCredentials => "missing_credentials",
            Self::UnknownUser => "unknown_user",
            Self::WrongPassword => "wrong_password",
            Self::Braked => "braked",
            Self::Busy => "busy",
            Self::Gone => "gone",
            Self::DirectoryUnavailable => "directory_unavailable",
            Self::Disabled => "disabled",
            Self::ForeignClientId => "foreign_client_id",
            Self::InvalidClientId => "invalid_client_id",
            Self::Will(_) => "will_not_allowed",
        }
    }

    /// Whether the client is told "bad user name or password" (v5 0x86, v3 4) rather than "not authorized" (0x87, 5).
    ///
    /// A brake looks like a wrong password: it must not tell a guesser more.
    pub fn is_credentials(self) -> bool {
        matches!(self, Self::MissingCredentials | Self::UnknownUser | Self::WrongPassword | Self::Braked)
    }
}

/// Judges logins.
pub struct Judge {
    directory: Arc<dyn UserDirectory>,
    rules: Arc<AccessRules>,
    pool: Arc<HashPool>,
    fast: FastVerdicts,
    users: Brake,
    addresses: Brake,
    /// Verified when the user does not exist, so that both take the same time.
    decoy: PasswordHash,
    metrics: Arc<AuthMetrics>,
    log: LogBudget,
    /// Of what somebody has to repair, so that refusals do not push it out.
    faults: LogBudget,
}

impl Judge {
    /// Opens what a judge needs. Hashes once, to have a decoy.
    pub async fn new(
        config: &AuthConfig,
        directory: Arc<dyn UserDirectory>,
        rules: Arc<AccessRules>,
        pool: Arc<HashPool>,
        metrics: Arc<AuthMetrics>,
    ) -> Result<Self, HashError> {
        let decoy = pool.hash(Secret::new(rand::random::<[u8; 16]>())).await?;
        Ok(Self {
            fast: FastVerdicts::open(config.cache_ttl, config.pepper.clone(), &config.verifiers),
            users: Brake::new(config.failures_per_user, config.brake_window),
            addresses: Brake::new(config.failures_per_address, config.brake_window),
            directory,
            rules,
            pool,
            decoy,
            metrics,
            log: LogBudget::default(),
            faults: LogBudget::default(),
        })
    }

    /// Judges a login. `is_foreign` tells whether the session of a client id belongs to somebody else than a person.
    pub async fn judge(
        &self,
        login: &Login<'_>,
        is_foreign: impl AsyncFnOnce(&str, &str) -> bool,
    ) -> Result<Arc<Principal>, Refusal> {
        let since = Instant::now();
        let verdict = self.decide(login, is_foreign).await;
        self.metrics.seconds.observe(since.elapsed().as_secs_f64());
        match &verdict {
            Ok(principal) => {
                self.metrics.logins.with_label_values(&["ok"]).inc();
                debug!(username = principal.username, client_id = login.client_id, "login");
            }
            Err(refusal) => {
                self.metrics.logins.with_label_values(&[refusal.as_str()]).inc();
                if let Some(suppressed) = self.log.spend() {
                    warn!(
                        target: AUDIT,
                        event = "login_refused",
                        reason = refusal.as_str(),
                        username = excerpt(login.username.unwrap_or_default()),
                        client_id = login.client_id,
                        address = login.address.map(tracing::field::display),
                        suppressed,
                        "login refused"
                    );
                }
            }
        }
        verdict
    }

    async fn decide(
        &self,
        login: &Login<'_>,
        is_foreign: impl AsyncFnOnce(&str, &str) -> bool,
    ) -> Result<Arc<Principal>, Refusal> {
        let (Some(username), Some(password)) = (login.username, login.password) else {
            return Err(Refusal::MissingCredentials);
        };
        if username.is_empty() || password.is_empty() {
            return Err(Refusal::MissingCredentials);
        }
        // MQTT-1.5.4-2; the engine's decoder lets it pass.
        if login.client_id.contains('\0') {
            return Err(Refusal::InvalidClientId);
        }
        // A name that cannot exist and a password that cannot have been set tell a guesser nothing: no need to hash.
        if Username::new(username).is_err() {
            return Err(Refusal::UnknownUser);
        }
        if password.len() > PASSWORD_BYTES_MAX {
            return Err(Refusal::WrongPassword);
        }
        // The revision first: a change between the two makes this login too old, not too young.
        let since = Instant::now();
        let (revision, user) = loop {
            let revision = self.directory.revision();
            match self.directory.get(username) {
                Ok(user) => break (revision, user),
                // A node that stood still for a moment catches up in another one.
                Err(_) if since.elapsed() < DIRECTORY_WAIT => tokio::time::sleep(DIRECTORY_RETRY).await,
                Err(error) => {
                    if let Some(suppressed) = self.faults.spend() {
                        warn!(%error, suppressed, "user directory does not answer");
                    }
                    return Err(Refusal::DirectoryUnavailable);
                }
            }
        };
        let user = self.authenticate(username, user, &Secret::new(password), login).await?;
        if user.disabled {
            return Err(Refusal::Disabled);
        }
        let principal = admit(&user, login, revision);
        if let Some(will) = login.will {
            self.judge_will(&principal, will).map_err(Refusal::Will)?;
        }
        if is_foreign(login.client_id, user.userid.as_str()).await {
            return Err(Refusal::ForeignClientId);
        }
        Ok(Arc::new(principal))
    }

    fn judge_will(&self, principal: &Principal, will: WillOf<'_>) -> Result<(), PublishRefusal> {
        self.rules.may_publish(&principal.subject(), will.topic)?;
        if will.is_malformed {
            return Err(PublishRefusal::Malformed);
        }
        if will.retain {
            self.rules.may_retain(&principal.subject())?;
        }
        Ok(())
    }

    async fn authenticate(
        &self,
        username: &str,
        user: Option<Arc<User>>,
        password: &Secret,
        login: &Login<'_>,
    ) -> Result<Arc<User>, Refusal> {
        if let Some(user) = &user
            && self.fast.knows(user, password)
        {
            return Ok(user.clone());
        }
        let attempts = self.attempt(username, login.address).ok_or(Refusal::Braked)?;
        let stored = user.as_ref().map_or(&self.decoy, |u| &u.password);
        let verdict = tokio::select! {
            verdict = self.pool.verify(stored, password) => verdict,
            // What waits in the pool without an asker is thrown away.
            () = login.gone.notified() => {
                attempts.into_iter().for_each(|a| a.cancel());
                return Err(Refusal::Gone);
            }
        };
        match verdict {
            // Whoever hits the decoy's random password is still nobody.
            Ok(true) if user.is_some() => attempts.into_iter().for_each(|a| a.succeed()),
            Ok(_) => return Err(if user.is_some() { Refusal::WrongPassword } else { Refusal::UnknownUser }),
            Err(HashError::Busy) => {
                attempts.into_iter().for_each(|a| a.cancel());
                return Err(Refusal::Busy);
            }
            Err(HashError::Failed) => {
                attempts.into_iter().for_each(|a| a.cancel());
                if let Some(suppressed) = self.faults.spend() {
                    warn!(username, suppressed, "stored password hash cannot be verified; set the password anew");
                }
                return Err(Refusal::WrongPassword);
            }
        }
        let Some(user) = user else { return Err(Refusal::UnknownUser) };
        self.fast.learn(&user, password);
        if phc::is_outdated(&user.password.0, self.pool.params()) {
            self.upgrade(user.clone(), password.clone());
        }
        Ok(user)
    }

    /// Starts an attempt by both brakes. What one of them refuses is not hashed, so nothing was guessed: the other does not
    /// count it.
    fn attempt(&self, username: &str, address: Option<IpAddr>) -> Option<[Attempt; 2]> {
        let address = address.map(|a| host(a).to_string()).unwrap_or_default();
        let by_name = self.users.attempt(username)?;
        match self.addresses.attempt(&address) {
            Some(by_address) => Some([by_name, by_address]),
            None => {
                by_name.cancel();
                None
            }
        }
    }

    /// Stores the password under today's parameters, in the background: the client does not wait for it.
    ///
    /// Bounded by the hashing pool's queue; an upgrade that finds no room is tried again at the next login.
    fn upgrade(&self, user: Arc<User>, password: Secret) {
        let (pool, directory) = (self.pool.clone(), self.directory.clone());
        tokio::spawn(async move {
            let Ok(hash) = pool.hash(password).await else { return };
            let rehash = Command::Rehash { username: user.username.clone(), expected: user.revision, password: hash };
            match directory.execute(rehash).await {
                Ok(_) => debug!(username = %user.username, "password hash upgraded"),
                Err(error) => debug!(username = %user.username, %error, "password hash not upgraded"),
            }
        });
    }

    /// Drops what is remembered of a user's password once it is no longer valid; failures too, so that a new password
    /// works at once.
    pub fn forget(&self, username: &str, valid_from: Option<Revision>) {
        self.users.reset(username);
        self.fast.forget(username, valid_from);
    }

    /// Whether a principal may still act, by the directory as it is now. A directory that cannot answer says no.
    pub fn still_admits(&self, principal: &Principal) -> bool {
        let user = self.directory.get(&principal.username).ok().flatten();
        user.is_some_and(|user| user.admits(principal.login) && user.userid == principal.userid)
    }

    /// A user by name; none if the directory cannot answer.
    pub fn user(&self, username: &str) -> Option<Arc<User>> {
        self.directory.get(username).ok().flatten()
    }

    /// The person behind a user name.
    pub fn userid_of(&self, username: &str) -> Option<String> {
        Some(self.directory.get(username).ok()??.userid.to_string())
    }

    /// Whether the user of that name may do all that `held` may, as `covers` compares them.
    pub fn may_do_all_of(
        &self,
        username: Option<&str>,
        held: &Subject<'_>,
        covers: impl Fn(&Subject<'_>, &Subject<'_>) -> bool,
    ) -> bool {
        let Some(Ok(Some(user))) = username.map(|name| self.directory.get(name)) else { return false };
        let subject = Subject {
            username: user.username.as_str(),
            userid: user.userid.as_str(),
            client_id: held.client_id,
            superuser: user.superuser,
            admin: user.admin,
        };
        covers(&subject, held)
    }

    /// Writes what is only in memory to disk.
    pub fn flush(&self) {
        self.fast.flush();
    }
}

fn admit(user: &User, login: &Login<'_>, revision: Revision) -> Principal {
    Principal::new(
        user.username.as_str(),
        user.userid.clone(),
        login.client_id,
        login.tag,
        revision,
        user.superuser,
        user.admin,
    )
}

#[cfg(test)]
mod tests;
