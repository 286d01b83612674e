//! What all handlers share, and the one way in which they change something.

use std::net::SocketAddr;
use std::sync::Arc;

use ciqadamq_core::{
    AUDIT, AccessRules, Applied, ClusterParts, Command, Health, InternalServices, LogBudget, PasswordHashing, Peers,
    SecretRefresh, SessionControl, User, UserDirectory,
};
use salvo::Depot;
use tokio::sync::Semaphore;

use crate::brake::Brake;
use crate::config::RestConfig;
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::state::ThisNode;
use crate::tokens::Tokens;
use crate::waiting::Waiting;

/// Changes under way at once. At the bound a further one is answered with 503 and Retry-After.
pub(crate) const CHANGES_MAX: u32 = 1024;

/// What the API works on. The launcher wires it.
#[derive(Clone)]
pub struct RestDeps {
    /// users
    pub directory: Arc<dyn UserDirectory>,
    /// makes password hashes
    pub passwords: Arc<dyn PasswordHashing>,
    /// lists and ends sessions
    pub sessions: Arc<dyn SessionControl>,
    /// what `POST /api/v1/acl/check` asks
    pub rules: Arc<AccessRules>,
    /// what `GET /ready` asks
    pub health: Arc<Health>,
    /// what `/internal/v1/{service}` calls; the API adds its own
    pub internal: Arc<InternalServices>,
    /// whom `GET /api/v1/cluster` asks
    pub peers: Arc<dyn Peers>,
    /// what `/api/v1/cluster` shows and changes
    pub cluster: Arc<ClusterParts>,
    /// who may call; keep a clone to rotate them
    pub tokens: Arc<Tokens>,
    /// asked when a token is presented that is not in force: it may have rotated; `None` = tokens do not rotate
    pub refresh: Option<Arc<dyn SecretRefresh>>,
    /// what `GET /metrics` shows; the API adds its own
    pub metrics: prometheus::Registry,
}

/// Everything behind the handlers.
pub(crate) struct App {
    pub(crate) config: RestConfig,
    pub(crate) deps: RestDeps,
    pub(crate) this: Arc<ThisNode>,
    pub(crate) metrics: Metrics,
    pub(crate) brake: Brake,
    pub(crate) waiting: Waiting,
    /// log lines about braked sources
    pub(crate) braked: LogBudget,
    pub(crate) openapi: String,
    pub(crate) changes: Arc<Semaphore>,
}

/// One request's surroundings, as the pipeline hands them to a handler.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) app: Arc<App>,
    pub(crate) peer: Option<SocketAddr>,
    /// which token opened the route
    pub(crate) by: &'static str,
    /// the path's parameter, decoded
    pub(crate) parameter: String,
}

impl Call {
    pub(crate) fn of(depot: &Depot) -> Result<&Self, ApiError> {
        depot.obtain::<Self>().map_err(|_| ApiError::internal("a handler ran outside the pipeline"))
    }

    /// The peer for a log line.
    pub(crate) fn peer(&self) -> String {
        self.peer.map(|p| p.to_string()).unwrap_or_default()
    }

    pub(crate) fn user(&self, username: &str) -> Result<Option<Arc<User>>, ApiError> {
        Ok(self.app.deps.directory.get(username)?)
    }

    /// The user as it is on all nodes: this one may just be back, and not know yet what was done meanwhile.
    pub(crate) async fn latest(&self, username: &str) -> Result<Option<Arc<User>>, ApiError> {
        self.app.deps.directory.up_to_date().await?;
        self.user(username)
    }

    /// Makes a change and writes the audit line.
    ///
    /// It runs as a task of its own: a client that hangs up may miss the answer, but not split the change from its
    /// audit line. [`App::changes_finished`] waits for these tasks.
    pub(crate) async fn change(
        &self,
        event: &'static str,
        detail: String,
        command: Command,
    ) -> Result<Applied, ApiError> {
        let permit = self
            .app
            .changes
            .clone()
            .try_acquire_owned()
            .map_err(|_| ApiError::unavailable("too many user changes are under way; try again"))?;
        let directory = self.app.deps.directory.clone();
        let (peer, by) = (self.peer(), self.by);
        let task = tokio::spawn(async move {
            let username = command.username().clone();
            let outcome = directory.execute(command).await;
            if let Ok(applied) = &outcome {
                let revision = tracing::field::display(applied.revision);
                tracing::info!(target: AUDIT, event, %username, detail, revision, by, %peer, "user changed");
            }
            drop(permit);
            outcome
        });
        match task.await {
            Ok(outcome) => Ok(outcome?),
            Err(_) => Err(ApiError::internal("a user change broke off")),
        }
    }
}

impl App {
    /// Waits until no change is under way. Called when no request can begin one any more.
    pub(crate) async fn changes_finished(&self) {
        // Fails only when it is closed already, which says the same.
        let _ = self.changes.acquire_many(CHANGES_MAX).await;
    }
}
