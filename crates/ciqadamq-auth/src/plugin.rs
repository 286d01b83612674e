//! The plugin: builds the parts, hooks them into the engine, and reports on them.

use std::sync::Arc;

use async_trait::async_trait;
use ciqadamq_core::{AccessRules, Principals, UserDirectory, UserObserver};
use prometheus::{IntCounter, Registry};
use rmqtt::Result;
use rmqtt::context::ServerContext;
use rmqtt::hook::{Register, Type};
use rmqtt::macros::Plugin;
use rmqtt::plugin::{DynPlugin, DynPluginResult, Plugin};
use tracing::{info, warn};

use crate::config::AuthConfig;
use crate::guard::Guarded;
use crate::hooks;
use crate::login::Judge;
use crate::metrics::AuthMetrics;
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
}

/// The running plugin.
pub struct Auth {
    ownership: Arc<Ownership>,
}

impl Auth {
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
    let silent = config.silent.map(|silent| (silent, deps.sessions.clone(), metrics.silent.clone()));
    let judge = Judge::new(config, deps.directory.clone(), deps.rules, deps.pool.clone(), metrics.clone()).await?;
    let ownership = Arc::new(Ownership::new(scx.clone(), judge, deps.principals, deps.sessions, metrics, config));
    deps.directory.observe(ownership.clone() as Arc<dyn UserObserver>);
    let parts = (scx.clone(), ownership.clone(), deps.pool, silent);
    scx.plugins
        .register(NAME, true, false, move || -> DynPluginResult {
            let (scx, ownership, pool, silent) = parts.clone();
            Box::pin(async move {
                let register = scx.extends.hook_mgr().register();
                Ok(Box::new(AuthPlugin { scx, ownership, pool, silent, register }) as DynPlugin)
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

#[derive(Plugin)]
struct AuthPlugin {
    scx: ServerContext,
    ownership: Arc<Ownership>,
    pool: Arc<HashPool>,
    silent: Option<(Silent, Arc<Sessions>, IntCounter)>,
    register: Box<dyn Register>,
}

#[async_trait]
impl Plugin for AuthPlugin {
    async fn init(&mut self) -> Result<()> {
        hooks::add(&*self.register, &self.ownership).await;
        Ok(())
    }

    async fn start(&mut self) -> Result<()> {
        {
            let mut shared = self.scx.extends.shared_mut().await;
            // The engine's own table is taken out for a moment; nobody looks, the lock is held.
            let placeholder: Box<dyn rmqtt::shared::Shared> = Box::new(rmqtt::shared::DefaultShared::new(None));
            let inner = std::mem::replace(&mut *shared, placeholder);
            *shared = Box::new(Guarded::new(inner, self.ownership.clone()));
        }
        // Both run as long as the process: the plugin cannot be stopped.
        tokio::spawn(self.ownership.clone().run());
        if let Some((silent, sessions, closed)) = self.silent.clone() {
            tokio::spawn(silent.watch(sessions, closed));
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
        serde_json::json!({ "hashing": self.pool.load() })
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
