//! The plugin: builds the parts, hooks them into the engine, and reports on them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ciqadamq_core::{AccessRules, LocalOwners, Principals, RemoteOwners, Revision, UserDirectory, UserObserver};
use prometheus::Registry;
use rmqtt::Result;
use rmqtt::context::ServerContext;
use rmqtt::hook::{Register, Type};
use rmqtt::macros::Plugin;
use rmqtt::plugin::{DynPlugin, DynPluginResult, Plugin};
use rmqtt::types::Id;
use tracing::{info, warn};

use crate::config::AuthConfig;
use crate::connection::Connections;
use crate::farewell::Farewells;
use crate::gone;
use crate::guard::Guarded;
use crate::hooks;
use crate::laggards::Laggards;
use crate::login::Judge;
use crate::metrics::{AuthMetrics, HashLoad};
use crate::orphans;
use crate::ownership::Ownership;
use crate::pool::HashPool;
use crate::sessions::Sessions;
use crate::silent::Silent;

const NAME: &str = env!("CARGO_PKG_NAME");

/// What the plugin works with.
pub struct AuthDeps {
    /// the users
    pub directory: Arc<dyn UserDirectory>,
    /// for Wills
    pub rules: Arc<AccessRules>,
    /// filled here, read by the access plugin
    pub principals: Arc<Principals>,
    /// hashing threads, shared with REST
    pub pool: Arc<HashPool>,
    /// the sessions of this node
    pub sessions: Arc<Sessions>,
    /// the sessions of the other nodes, in a cluster
    pub remote: Option<Arc<dyn RemoteOwners>>,
}

/// The running plugin.
pub struct Auth {
    ownership: Arc<Ownership>,
}

impl Auth {
    /// Whether the user behind a session that was kept on disk still has the right to it. If so, a change of that user
    /// reaches the session from now on, as if its client had just logged in.
    ///
    /// `userid` and `login` are what the login was judged by; without a `userid` it was not judged here, and is not now.
    pub fn adopt(&self, id: &Id, username: &str, userid: Option<&str>, login: Revision) -> bool {
        self.ownership.adopt(id, username, userid, login)
    }

    /// Who owns the sessions of this node.
    pub fn owners(&self) -> Arc<dyn LocalOwners> {
        self.ownership.clone()
    }

    /// Writes what is only in memory to disk; for an orderly end.
    pub fn flush(&self) {
        self.ownership.judge.flush();
    }
}

/// Registers and starts the plugin.
///
/// Must come after every plugin that replaces the engine's session table (the cluster): the guard goes in front of
/// what is there then.
pub async fn register(
    scx: &ServerContext,
    config: &AuthConfig,
    deps: AuthDeps,
    registry: &Registry,
) -> Result<Arc<Auth>> {
    let metrics = Arc::new(AuthMetrics::new(registry)?);
    registry.register(Box::new(HashLoad::new(deps.pool.clone())?))?;
    let judge = Judge::new(config, deps.directory.clone(), deps.rules, deps.pool.clone(), metrics.clone()).await?;
    let farewells = Arc::new(Farewells::default());
    let sessions = deps.sessions;
    let ownership = Arc::new(Ownership::new(
        scx.clone(),
        judge,
        deps.principals,
        sessions.clone(),
        deps.remote,
        metrics,
        farewells.clone(),
        config,
    ));
    deps.directory.observe(ownership.clone() as Arc<dyn UserObserver>);
    let parts = Parts { scx: scx.clone(), ownership: ownership.clone(), pool: deps.pool, sessions, farewells };
    let watches = (config.silent, config.lag_max);
    scx.plugins
        .register(NAME, true, false, move || -> DynPluginResult {
            let parts = parts.clone();
            Box::pin(async move {
                let register = parts.scx.extends.hook_mgr().register();
                Ok(Box::new(AuthPlugin { parts, watches, register }) as DynPlugin)
            })
        })
        .await?;
    Ok(Arc::new(Auth { ownership }))
}

/// Registers a plugin that lets everybody in, as a superuser. For tests; the launcher guards its use.
pub async fn register_disabled(scx: &ServerContext) -> Result<()> {
    let scx1 = scx.clone();
    scx.plugins
        .register(NAME, true, false, move || -> DynPluginResult {
            let scx = scx1.clone();
            Box::pin(
                async move { Ok(Box::new(OpenPlugin { register: scx.extends.hook_mgr().register() }) as DynPlugin) },
            )
        })
        .await
}

#[derive(Clone)]
struct Parts {
    scx: ServerContext,
    ownership: Arc<Ownership>,
    pool: Arc<HashPool>,
    sessions: Arc<Sessions>,
    farewells: Arc<Farewells>,
}

#[derive(Plugin)]
struct AuthPlugin {
    parts: Parts,
    watches: (Option<Silent>, Duration),
    register: Box<dyn Register>,
}

impl Parts {
    /// Puts ours in front of the engine's session table and of what makes its sessions.
    async fn stand_in_front(&self) {
        {
            let mut shared = self.scx.extends.shared_mut().await;
            // The engine's own table is taken out for a moment; nobody looks, the lock is held.
            let placeholder: Box<dyn rmqtt::shared::Shared> = Box::new(rmqtt::shared::DefaultShared::new(None));
            let inner = std::mem::replace(&mut *shared, placeholder);
            *shared = Box::new(Guarded::new(inner, self.ownership.clone()));
        }
        let mut managers = self.scx.extends.session_mgr_mut().await;
        let inner = std::mem::replace(&mut *managers, Box::new(rmqtt::session::DefaultSessionManager));
        *managers = Box::new(Connections::new(
            inner,
            self.ownership.clone(),
            self.sessions.clone(),
            self.farewells.clone(),
            self.ownership.metrics.clone(),
        ));
    }
}

#[async_trait]
impl Plugin for AuthPlugin {
    async fn init(&mut self) -> Result<()> {
        hooks::add(&*self.register, &self.parts.ownership).await;
        Ok(())
    }

    async fn start(&mut self) -> Result<()> {
        self.parts.stand_in_front().await;
        // All run as long as the process: the plugin cannot be stopped.
        let Parts { ownership, sessions, farewells, .. } = self.parts.clone();
        tokio::spawn(async move { farewells.run().await });
        tokio::spawn(ownership.clone().run());
        tokio::spawn(gone::watch(ownership.clone(), self.parts.pool.clone()));
        let metrics = ownership.metrics.clone();
        let (silent, lag_max) = self.watches;
        if let Some(silent) = silent {
            tokio::spawn(silent.watch(sessions.clone(), ownership.clone(), metrics.silent.clone()));
        }
        tokio::spawn(orphans::watch(self.parts.scx.clone(), sessions.clone(), metrics.orphans.clone()));
        if !lag_max.is_zero() {
            tokio::spawn(Laggards::new(lag_max).watch(self.parts.scx.clone(), sessions, metrics));
        }
        self.register.start().await;
        info!(plugin = NAME, "started");
        Ok(())
    }

    async fn stop(&mut self) -> Result<bool> {
        warn!(plugin = NAME, "stays active: without it nobody could log in; disable it in the configuration instead");
        Ok(false)
    }

    async fn attrs(&self) -> serde_json::Value {
        serde_json::json!({ "hashing": self.parts.pool.load() })
    }
}

#[derive(Plugin)]
struct OpenPlugin {
    register: Box<dyn Register>,
}

#[async_trait]
impl Plugin for OpenPlugin {
    async fn init(&mut self) -> Result<()> {
        self.register.add_priority(Type::ClientAuthenticate, hooks::PRIORITY, Box::new(hooks::Open)).await;
        Ok(())
    }

    async fn start(&mut self) -> Result<()> {
        self.register.start().await;
        warn!(plugin = NAME, "AUTHENTICATION IS SWITCHED OFF: everybody may connect, as a superuser");
        Ok(())
    }

    async fn stop(&mut self) -> Result<bool> {
        Ok(false)
    }
}
