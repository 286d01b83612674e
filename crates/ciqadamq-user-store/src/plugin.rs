//! The store in rmqtt's list of plugins.

use std::sync::Arc;

use async_trait::async_trait;
use ciqadamq_core::UserDirectory;
use prometheus::Registry;
use rmqtt::context::ServerContext;
use rmqtt::macros::Plugin;
use rmqtt::plugin::{DynPlugin, DynPluginResult, Plugin};
use serde_json::{Value, json};

use crate::metrics::StoreMetrics;
use crate::raft::RaftGauges;
use crate::{ReplicatedUsers, UserStore};

/// Name in the plugin manager.
pub const NAME: &str = env!("CARGO_PKG_NAME");

/// Registers and starts the plugin. It shows the store to the operator; the store works without it too.
///
/// # Errors
/// What the plugin manager says; or that the registry has the metrics already.
pub async fn register(scx: &ServerContext, users: &Arc<ReplicatedUsers>, registry: &Registry) -> rmqtt::Result<()> {
    let store = users.store().clone();
    registry.register(Box::new(RaftGauges::new(users.clone())?))?;
    registry.register(Box::new(StoreMetrics::new(store.clone())?))?;
    scx.plugins
        .register(NAME, true, false, move || -> DynPluginResult {
            let plugin: DynPlugin = Box::new(UserStorePlugin { store: store.clone() });
            Box::pin(async move { Ok(plugin) })
        })
        .await
}

#[derive(Plugin)]
struct UserStorePlugin {
    store: Arc<UserStore>,
}

#[async_trait]
impl Plugin for UserStorePlugin {
    async fn get_config(&self) -> rmqtt::Result<Value> {
        let config = self.store.config();
        Ok(json!({
            "path": config.path.display().to_string(),
            "queue": config.queue,
            "batch": config.batch,
            "cache_bytes": config.cache_bytes,
        }))
    }

    async fn start(&mut self) -> rmqtt::Result<()> {
        let status = self.store.status();
        tracing::info!(users = status.users, revision = status.revision.0, "user store plugin started");
        Ok(())
    }

    async fn stop(&mut self) -> rmqtt::Result<bool> {
        tracing::warn!("user store plugin stays active: without the users nobody could log in");
        Ok(false)
    }

    async fn attrs(&self) -> Value {
        let (status, counters) = (self.store.status(), self.store.counters());
        json!({
            "users": status.users,
            "revision": status.revision,
            "bytes": status.bytes,
            "read_only": status.read_only,
            "commits": counters.commits,
            "applied": counters.applied,
            "rejected": counters.rejected,
            "failed": counters.failed,
            "busy": counters.busy,
        })
    }
}
