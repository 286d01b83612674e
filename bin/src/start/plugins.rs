//! Our plugins, in their order.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use ciqadamq_auth::{Auth, AuthDeps};
use ciqadamq_cluster::{Cluster, GiveStray};
use ciqadamq_core::{OtherMoves, RemoteOwners, RetainedQuota, Revision, UserDirectory as _};
use ciqadamq_retain::Keeper;
use ciqadamq_session_store::Store as SessionStore;
use ciqadamq_session_store::engine::{Deps as SessionDeps, Elsewhere, Judge, SessionKeeper, Whose};
use tracing::warn;

use super::{Node, has_acl};
use crate::settings;

/// Those that are needed later.
pub(super) struct Plugins {
    pub(super) auth: Option<Arc<Auth>>,
    pub(super) session_keeper: Option<Arc<SessionKeeper>>,
}

impl Node<'_> {
    /// Registers and starts all that are on, but for the API and the router, which run already.
    pub(super) async fn register_plugins(&self, session_store: Option<SessionStore>) -> anyhow::Result<Plugins> {
        if self.starts("ciqadamq-metrics") {
            ciqadamq_metrics::register(&self.scx, &self.metrics).await.context("ciqadamq-metrics")?;
        }
        if self.starts("ciqadamq-expiry") {
            let cap = NonZeroU32::new(self.config.mqtt.message_expiry_secs).unwrap_or(NonZeroU32::MIN);
            ciqadamq_expiry::register(&self.scx, cap, &self.metrics).await.context("ciqadamq-expiry")?;
        }
        // Behind the guard that judges logins, which comes with ciqadamq-auth.
        let session_keeper = match session_store {
            Some(store) => Some(self.register_session_store(store).await.context("ciqadamq-session-store")?),
            None => None,
        };
        if self.starts("ciqadamq-user-store") {
            let users = &self.users;
            ciqadamq_user_store::register(&self.scx, users, &self.metrics).await.context("ciqadamq-user-store")?;
        }
        let retained = self.register_retain().await?;
        let auth = self.register_auth().await.context("ciqadamq-auth")?;
        self.register_acl(retained).await?;
        if let (Some(cluster), Some(auth)) = (&self.cluster, &auth) {
            cluster.set_owners(auth.owners());
        }
        if let (Some(cluster), Some(keeper)) = (&self.cluster, &session_keeper) {
            cluster.set_arrivals(keeper.clone());
            cluster.set_moves(keeper.clone(), strays(keeper));
            if let Some(retained) = keeper.retained() {
                cluster.set_retained(retained);
            }
        }
        Ok(Plugins { auth, session_keeper })
    }

    async fn register_session_store(&self, store: SessionStore) -> anyhow::Result<Arc<SessionKeeper>> {
        let cutter = self.sessions.clone();
        let deps = SessionDeps {
            store: Arc::new(store),
            principals: self.principals.clone(),
            health: self.health.clone(),
            message_expiry: Duration::from_secs(self.config.mqtt.message_expiry_secs.into()),
            retained: !self.config.plugins.starts("rmqtt-retainer", false),
            cut: Some(Arc::new(move |id| cutter.cut(id))),
            elsewhere: self.cluster.as_ref().map(elsewhere),
            other_moves: self.cluster.clone().map(|cluster| cluster as Arc<dyn OtherMoves>),
            whose: self.whose(),
        };
        let keeper = ciqadamq_session_store::engine::register(&self.scx, deps, &self.metrics).await?;
        self.sessions.set_waiting(keeper.clone());
        self.users.observe(keeper.clone());
        Ok(keeper)
    }

    /// Whose a session is that is not in use. Who was let in by somebody else is none of our users, and known by name.
    fn whose(&self) -> Judge {
        let users = self.users.clone();
        Arc::new(move |owner, login| {
            let user = |name: Option<&str>| name.and_then(|name| users.get(name).ok().flatten());
            let name = owner.username.as_deref();
            let is_lost = owner.userid.as_ref().is_some_and(|userid| {
                user(name).is_none_or(|user| user.userid.as_str() != userid || !user.admits(Revision(owner.login)))
            });
            let person = |name| user(name).map(|user| user.userid.clone());
            match name == login {
                _ if is_lost => Whose::Nobodys,
                true => Whose::Own,
                // One person under two names.
                false if person(name).is_some() && person(name) == person(login) => Whose::Nobodys,
                false => Whose::Foreign,
            }
        })
    }

    async fn register_retain(&self) -> anyhow::Result<Option<Arc<dyn RetainedQuota>>> {
        if !self.starts("ciqadamq-retain") {
            return Ok(None);
        }
        let max = self.config.limits.retained_per_user;
        let keeper = Keeper::new(max, self.users.clone(), self.principals.clone(), &self.metrics)?;
        ciqadamq_retain::register(&self.scx, keeper.clone(), &*self.users).await.context("ciqadamq-retain")?;
        Ok(Some(keeper))
    }

    /// `None` if nobody is asked who he is.
    async fn register_auth(&self) -> anyhow::Result<Option<Arc<Auth>>> {
        if !self.starts("ciqadamq-auth") {
            return Ok(None);
        }
        if self.config.auth.disabled {
            ciqadamq_auth::register_disabled(&self.scx).await?;
            return Ok(None);
        }
        let deps = AuthDeps {
            directory: self.users.clone(),
            rules: self.rules.clone(),
            principals: self.principals.clone(),
            pool: self.pool.clone(),
            sessions: self.sessions.clone(),
            remote: self.cluster.clone().map(|cluster| cluster as Arc<dyn RemoteOwners>),
        };
        Ok(Some(ciqadamq_auth::register(&self.scx, &self.auth, deps, &self.metrics).await?))
    }

    async fn register_acl(&self, retained: Option<Arc<dyn RetainedQuota>>) -> anyhow::Result<()> {
        if !has_acl(self.config) {
            warn!("the access rule is off: every client may subscribe and publish everything");
            return Ok(());
        }
        let acl = settings::acl(self.config);
        let (rules, principals) = (self.rules.clone(), self.principals.clone());
        ciqadamq_topic_acl::register(&self.scx, acl, rules, principals, retained, &self.metrics)
            .await
            .context("ciqadamq-topic-acl")
    }
}

/// The way to the sessions of this node that are not in use.
fn strays(keeper: &Arc<SessionKeeper>) -> GiveStray {
    let keeper = keeper.clone();
    Arc::new(move |by, clean_start| {
        let keeper = keeper.clone();
        Box::pin(async move { keeper.give_stray(&by, clean_start).await })
    })
}

/// The way to the sessions of other nodes.
fn elsewhere(cluster: &Arc<Cluster>) -> Elsewhere {
    let cluster = cluster.clone();
    Arc::new(move |from, publish, relations, msg_id| {
        let cluster = cluster.clone();
        Box::pin(async move {
            cluster.forward_all(&from, &publish, relations, msg_id).await;
        })
    })
}
