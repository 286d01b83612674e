//! The secrets of a node: read at start, watched while it runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ciqadamq_core::{Condition, Health, LookedAgain, Secret, SecretName, SecretRefresh, SecretSource};
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::task::JoinHandle;
use tracing::warn;

use crate::metrics::Metrics;
use crate::slot::{Before, First, Slot};
use crate::source::Source;
use crate::start::{Origin, Resolved, StartError, resolve};

/// The condition in `/ready`.
const CONDITION: &str = "secrets";
/// Secrets that may change while a node runs. The pepper may not: it is read once.
const WATCHED: [SecretName; 2] = [SecretName::ApiToken, SecretName::ReplToken];

/// What the configuration itself has: in force without a source, and instead of one that does not answer at start.
#[derive(Debug, Clone, Default)]
pub struct Configured {
    /// management token
    pub api_token: Option<Secret>,
    /// key of the fast verifier
    pub pepper: Option<Secret>,
    /// token of `/internal/*`
    pub repl_token: Option<Secret>,
}

impl Configured {
    /// The value under a name.
    pub fn get(&self, name: SecretName) -> Option<&Secret> {
        match name {
            SecretName::ApiToken => self.api_token.as_ref(),
            SecretName::Pepper => self.pepper.as_ref(),
            SecretName::ReplToken => self.repl_token.as_ref(),
        }
    }
}

/// Where secrets come from.
#[derive(Clone)]
pub struct Setup {
    /// asked first; `None` = the configuration alone
    pub source: Option<Arc<dyn Source>>,
    /// what the configuration has
    pub configured: Configured,
    /// how long a source that fails is tried again at start
    pub start_timeout: Duration,
    /// how long a token counts after another has come into force
    pub overlap: Duration,
}

/// The secrets in force. Shared by whoever needs one.
///
/// In a cluster each node reads for itself. A node that hears of a rotation late still has a token that the others take for
/// the overlap, and hears of it at the latest when one presents the new token to it.
pub struct Secrets {
    source: Option<Arc<dyn Source>>,
    /// in force for as long as the node runs
    fixed: Configured,
    slots: Vec<Arc<Slot>>,
    troubles: Arc<Mutex<BTreeMap<SecretName, String>>>,
    health: Arc<Health>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Secrets {
    /// Reads all secrets; retries for `start_timeout`, all at once.
    ///
    /// Fails without a management token. Without a word from the source about the replication token, and none in the
    /// configuration, `/internal/*` stays closed until the source answers. Without a pepper logins cost an argon2 each.
    pub async fn load(setup: Setup, health: Arc<Health>, registry: &Registry) -> Result<Self, StartError> {
        let Setup { source, configured, start_timeout, overlap } = setup;
        let metrics = Metrics::register(registry)?;
        let read = |name| resolve(source.as_ref(), name, configured.get(name).cloned(), start_timeout, &metrics);
        let (api_token, pepper, repl_token) =
            tokio::join!(read(SecretName::ApiToken), read(SecretName::Pepper), read(SecretName::ReplToken));
        if let (Some(source), Resolved::Absent | Resolved::Unknown(_)) = (&source, &api_token) {
            return Err(refusal(&**source, api_token, start_timeout));
        }
        if let Resolved::Unknown(error) = &pepper {
            warn!(secret = %SecretName::Pepper, %error, remedy = error.remedy(), instead = SecretName::Pepper.variable(),
                "secret cannot be read; the node starts without a pepper, and every first login costs an argon2");
        }
        if let Resolved::Unknown(error) = &repl_token {
            warn!(secret = %SecretName::ReplToken, %error, remedy = error.remedy(), instead = SecretName::ReplToken.variable(),
                "secret cannot be read; /internal/ stays closed until it can");
        }
        let troubles: Arc<Mutex<BTreeMap<SecretName, String>>> = Arc::default();
        let mut slots = Vec::new();
        let mut fixed = Configured { pepper: value(pepper), ..Configured::default() };
        match &source {
            None => (fixed.api_token, fixed.repl_token) = (value(api_token), value(repl_token)),
            Some(source) => {
                let trouble = announce(troubles.clone(), health.clone());
                for (name, resolved) in WATCHED.into_iter().zip([api_token, repl_token]) {
                    let error = match &resolved {
                        Resolved::Unknown(error) | Resolved::Value(_, Origin::Substitute(error)) => Some(error.clone()),
                        _ => None,
                    };
                    let first = match resolved {
                        Resolved::Value(secret, Origin::Source { .. }) => First::Source(secret),
                        Resolved::Value(secret, _) => First::Substitute(secret),
                        Resolved::Absent => First::Absent,
                        Resolved::Unknown(_) => First::Unknown,
                    };
                    let slot = Slot::new(name, source.clone(), overlap, first, metrics.clone(), trouble.clone());
                    if let Some(error) = error {
                        slot.failed_at_start(&error);
                    }
                    slots.push(Arc::new(slot));
                }
            }
        }
        let secrets = Self { source, fixed, slots, troubles, health, tasks: Mutex::default() };
        secrets.show();
        Ok(secrets)
    }

    /// Key of the fast verifier, as it was at start.
    pub fn pepper(&self) -> Option<Secret> {
        self.fixed.pepper.clone()
    }

    /// Whether it is known if there is such a secret.
    pub fn is_known(&self, name: SecretName) -> bool {
        self.slot(name).is_none_or(|slot| slot.is_known())
    }

    /// Calls `observer` with every value that comes into force from now on; with `None` when a source that could not be asked
    /// before says that there is no such secret. It is called before anybody who waits for that value goes on, and must not block.
    pub fn observe(&self, observer: impl Fn(SecretName, Option<&Secret>) + Clone + Send + Sync + 'static) {
        for slot in &self.slots {
            slot.observe(Box::new(observer.clone()));
        }
    }

    /// Begins to watch; call it once, in a runtime. Without a source there is nothing to watch.
    pub fn watch(&self) {
        let Some(source) = &self.source else { return };
        let mut tasks = self.tasks.lock();
        tasks.extend(self.slots.iter().map(|slot| tokio::spawn(slot.clone().run())));
        let source = source.clone();
        tasks.push(tokio::spawn(async move {
            while let Some(next) = source.upkeep().await {
                tokio::time::sleep(next).await;
            }
        }));
    }

    /// Ends the watching; the values stay in force.
    pub fn stop(&self) {
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
    }

    fn slot(&self, name: SecretName) -> Option<&Arc<Slot>> {
        self.slots.iter().find(|slot| slot.name() == name)
    }

    fn show(&self) {
        if self.source.is_some() {
            self.health.set(CONDITION, condition(&self.troubles.lock()));
        }
    }
}

impl SecretSource for Secrets {
    fn current(&self, name: SecretName) -> Option<Secret> {
        match self.slot(name) {
            Some(slot) => slot.current(),
            None => self.fixed.get(name).cloned(),
        }
    }

    fn peer_token(&self) -> Option<Secret> {
        match self.current(SecretName::ReplToken) {
            None if self.is_known(SecretName::ReplToken) => self.current(SecretName::ApiToken),
            token => token,
        }
    }

    fn peer_tokens(&self) -> Vec<Secret> {
        let before = |name| self.slot(name).and_then(|slot| slot.before());
        let before = match self.current(SecretName::ReplToken) {
            None => before(SecretName::ApiToken),
            Some(_) => match before(SecretName::ReplToken) {
                // Until then it was the management token.
                Some(Before::Absent) => self.current(SecretName::ApiToken).map(Before::Value),
                before => before,
            },
        };
        let before = match before {
            Some(Before::Value(secret)) => Some(secret),
            Some(Before::Absent) | None => None,
        };
        self.peer_token().map(|current| std::iter::once(current).chain(before).collect()).unwrap_or_default()
    }
}

#[async_trait]
impl SecretRefresh for Secrets {
    async fn look_again(&self, name: SecretName, known: &(dyn Fn() -> bool + Send + Sync)) -> LookedAgain {
        match self.slot(name) {
            Some(slot) => slot.look_again(known).await,
            // What the configuration says holds until the next start.
            None => LookedAgain::Asked,
        }
    }
}

impl Drop for Secrets {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets(redacted)")
    }
}

fn value(resolved: Resolved) -> Option<Secret> {
    match resolved {
        Resolved::Value(secret, _) => Some(secret),
        Resolved::Absent | Resolved::Unknown(_) => None,
    }
}

fn refusal(source: &dyn Source, api_token: Resolved, tried: Duration) -> StartError {
    let name = SecretName::ApiToken;
    let source_name = source.describe(name);
    match api_token {
        Resolved::Unknown(error) => StartError::NoAnswer { name, source_name, error, tried_secs: tried.as_secs() },
        Resolved::Value(..) | Resolved::Absent => StartError::NoValue { name, source_name },
    }
}

/// Keeps the list of troubles, and shows it in `/ready`.
fn announce(
    troubles: Arc<Mutex<BTreeMap<SecretName, String>>>,
    health: Arc<Health>,
) -> Arc<dyn Fn(SecretName, Option<String>) + Send + Sync> {
    Arc::new(move |name, trouble| {
        let mut troubles = troubles.lock();
        let changed = match trouble {
            Some(text) => troubles.insert(name, text.clone()).as_ref() != Some(&text),
            None => troubles.remove(&name).is_some(),
        };
        if changed {
            health.set(CONDITION, condition(&troubles));
        }
    })
}

fn condition(troubles: &BTreeMap<SecretName, String>) -> Condition {
    if troubles.is_empty() {
        return Condition::Met;
    }
    Condition::Degraded(troubles.iter().map(|(name, text)| format!("{name}: {text}")).collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests;
