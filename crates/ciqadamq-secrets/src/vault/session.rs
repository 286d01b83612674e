//! The node's own token for the vault: got, kept alive, replaced.

use std::time::{Duration, Instant};

use ciqadamq_core::Secret;
use serde::Deserialize;
use tokio::sync::Mutex;
use tracing::{debug, info, warn};
use vaultrs::api::auth::approle::requests::LoginWithApproleRequest;
use vaultrs::api::auth::kubernetes::requests::LoginWithKubernetesRequest;
use vaultrs::api::token::requests::{LookupTokenSelfRequest, RenewTokenSelfRequest};

use super::call::Api;
use super::config::{Credential, Login};
use crate::error::ReadError;
use crate::http::Answer;
use crate::json::{Field, parse};
use crate::slot::STAY_AWAY;

/// What the answers should have been.
const AUTH: &str = "a vault's answer about a token";
/// A vault that refuses is not logged in to more often than this: every login leaves a lease in it.
const LOGIN_AT_LEAST: Duration = Duration::from_secs(60);
/// The token is looked after at most and at least this often. However long it lives: by the next time it may have been revoked
/// and another one taken, which nobody has looked after yet.
const UPKEEP: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// After an upkeep that failed; also the least after one that was too many for the vault.
const UPKEEP_AGAIN: Duration = Duration::from_secs(5);
/// Longer leases than this are none that anybody sees the end of; the clock's range ends somewhere.
const LEASE_SECS_MAX: u64 = 10 * 366 * 24 * 3600;

/// A token in use.
struct Lease {
    token: Secret,
    since: Instant,
    /// how long it lives from `since`; `None` = for ever, or not known
    lifetime: Option<Duration>,
    renewable: bool,
    /// whether the vault was asked about it
    known: bool,
}

impl Lease {
    fn is_over(&self) -> bool {
        self.lifetime.is_some_and(|lifetime| self.since.elapsed() >= lifetime)
    }

    /// When something has to be done about it: at two thirds of its life.
    fn due_in(&self) -> Option<Duration> {
        Some((self.lifetime? * 2 / 3).saturating_sub(self.since.elapsed()))
    }
}

pub(super) struct Session {
    login: Login,
    /// Held over the login's request: everybody who comes meanwhile needs that very token.
    lease: Mutex<Option<Lease>>,
}

impl Session {
    pub(super) fn new(login: Login) -> Self {
        Self { login, lease: Mutex::new(None) }
    }

    /// A token to read with.
    pub(super) async fn token(&self, api: &Api) -> Result<Secret, ReadError> {
        let mut lease = self.lease.lock().await;
        if let Some(lease) = lease.as_ref().filter(|lease| !lease.is_over()) {
            return Ok(lease.token.clone());
        }
        let new = self.log_in(api).await?;
        Ok(lease.insert(new).token.clone())
    }

    /// A token was refused: whether another can be had, and the refused one is dropped.
    pub(super) async fn give_up(&self, token: &Secret) -> bool {
        let mut lease = self.lease.lock().await;
        match &*lease {
            // Somebody else has a new one already.
            Some(current) if current.token.expose() != token.expose() => true,
            Some(current) => {
                let another = match &self.login {
                    Login::Token(Credential::Value(_)) => false,
                    Login::Token(file) => get(file.clone()).await.is_ok_and(|new| new.expose() != token.expose()),
                    Login::AppRole { .. } | Login::Kubernetes { .. } => current.since.elapsed() >= LOGIN_AT_LEAST,
                };
                if another {
                    *lease = None;
                }
                another
            }
            None => true,
        }
    }

    /// Renews the token, or gets another, when it is time; when to come again.
    pub(super) async fn upkeep(&self, api: &Api) -> Option<Duration> {
        let mut place = self.lease.lock().await;
        let outcome = self.look_after(api, &mut place).await;
        match outcome {
            Ok(next) => next.map(|next| next.clamp(UPKEEP.0, UPKEEP.1)),
            Err(ReadError::RateLimited { retry_after }) => Some(retry_after.unwrap_or(STAY_AWAY).max(UPKEEP_AGAIN)),
            Err(error) => {
                // Reads fail for the same reason, and say so.
                debug!(%error, "the vault token could not be looked after");
                Some(UPKEEP_AGAIN)
            }
        }
    }

    async fn look_after(&self, api: &Api, place: &mut Option<Lease>) -> Result<Option<Duration>, ReadError> {
        let lease = match place {
            Some(lease) if !lease.is_over() => lease,
            _ => place.insert(self.log_in(api).await?),
        };
        if !lease.known {
            self.learn(api, lease).await?;
        }
        if lease.due_in().is_some_and(|due| due.is_zero()) {
            match self.prolong(api, lease).await {
                Err(ReadError::Forbidden) => *place = Some(self.log_in(api).await?),
                outcome => outcome?,
            }
        }
        let next = place.as_ref().and_then(Lease::due_in);
        // A file may hold another token soon; reading it is cheap, and asking about the token shows whether it still works.
        Ok(next.or(match &self.login {
            Login::Token(Credential::Value(_)) => None,
            _ => Some(UPKEEP.1),
        }))
    }

    /// Renews; near the end of what renewal can give, a role logs in anew.
    async fn prolong(&self, api: &Api, lease: &mut Lease) -> Result<(), ReadError> {
        let before = lease.lifetime.unwrap_or_default();
        if lease.renewable {
            let renew = RenewTokenSelfRequest { increment: None };
            let answer = api.call(renew, Some(&lease.token)).await?;
            answer.check_status()?;
            let auth = auth(&answer)?;
            lease.since = Instant::now();
            lease.lifetime = secs(auth.lease_duration);
            lease.renewable = auth.renewable;
            debug!(lease_secs = auth.lease_duration, "vault token renewed");
            if lease.lifetime.is_none_or(|lifetime| lifetime * 2 >= before) {
                return Ok(());
            }
        }
        match &self.login {
            Login::Token(Credential::Value(_)) => {
                let left = lease.lifetime.map(|l| l.saturating_sub(lease.since.elapsed()).as_secs());
                warn!(left_secs = left, "the vault token ends and cannot be renewed; give the node another one");
                // Said once; when it is over, reads fail.
                lease.lifetime = None;
                Ok(())
            }
            _ => {
                *lease = self.log_in(api).await?;
                Ok(())
            }
        }
    }

    /// How long a token that we were given lives.
    async fn learn(&self, api: &Api, lease: &mut Lease) -> Result<(), ReadError> {
        let answer = api.call(LookupTokenSelfRequest {}, Some(&lease.token)).await?;
        // A token may be forbidden to look itself up; then nobody knows when it ends.
        if answer.status == 403 {
            lease.known = true;
            return Ok(());
        }
        answer.check_status()?;
        #[derive(Deserialize)]
        struct Envelope {
            data: Told,
        }
        #[derive(Deserialize)]
        struct Told {
            ttl: u64,
            #[serde(default)]
            renewable: bool,
        }
        let Envelope { data } = parse(&answer.body, AUTH)?;
        (lease.since, lease.lifetime, lease.renewable) = (Instant::now(), secs(data.ttl), data.renewable);
        lease.known = true;
        Ok(())
    }

    async fn log_in(&self, api: &Api) -> Result<Lease, ReadError> {
        let file = ReadError::File;
        let text = |secret: &Secret| String::from_utf8_lossy(secret.expose()).into_owned();
        let answer = match &self.login {
            Login::Token(credential) => {
                let token = get(credential.clone()).await.map_err(file)?;
                return Ok(Lease { token, since: Instant::now(), lifetime: None, renewable: false, known: false });
            }
            Login::AppRole { mount, role_id, secret_id } => {
                let role_id = get(role_id.clone()).await.map_err(file)?;
                let secret_id = match secret_id {
                    Some(secret_id) => text(&get(secret_id.clone()).await.map_err(file)?),
                    None => String::new(),
                };
                let login = LoginWithApproleRequest { mount: mount.clone(), role_id: text(&role_id), secret_id };
                api.call(login, None).await?
            }
            Login::Kubernetes { mount, role, jwt_file } => {
                let jwt = get(Credential::File(jwt_file.clone())).await.map_err(file)?;
                let login = LoginWithKubernetesRequest { mount: mount.clone(), role: role.clone(), jwt: text(&jwt) };
                api.call(login, None).await?
            }
        };
        if let 400..=403 = answer.status {
            return Err(ReadError::Login(match &self.login {
                Login::AppRole { .. } => "role id or secret id refused",
                _ => "role or service account refused",
            }));
        }
        if answer.status == 404 {
            return Err(ReadError::Login("no such auth method at this path"));
        }
        answer.check_status()?;
        let auth = auth(&answer)?;
        let Field::Text(token) = auth.client_token else { return Err(ReadError::Nonsense(AUTH)) };
        info!(method = self.login.method(), lease_secs = auth.lease_duration, "logged in to the vault");
        let lifetime = secs(auth.lease_duration);
        Ok(Lease { token, since: Instant::now(), lifetime, renewable: auth.renewable, known: true })
    }
}

#[derive(Deserialize)]
struct Auth {
    client_token: Field,
    #[serde(default)]
    lease_duration: u64,
    #[serde(default)]
    renewable: bool,
}

fn auth(answer: &Answer) -> Result<Auth, ReadError> {
    #[derive(Deserialize)]
    struct Envelope {
        auth: Option<Auth>,
    }
    parse::<Envelope>(&answer.body, AUTH)?.auth.ok_or(ReadError::Nonsense(AUTH))
}

/// 0 is for ever.
fn secs(secs: u64) -> Option<Duration> {
    (secs > 0).then(|| Duration::from_secs(secs.min(LEASE_SECS_MAX)))
}

/// Files are read off the network threads.
async fn get(credential: Credential) -> Result<Secret, String> {
    let reading = tokio::task::spawn_blocking(move || credential.get());
    reading.await.unwrap_or_else(|_| Err("reading broke off".into()))
}

#[cfg(test)]
mod tests;
