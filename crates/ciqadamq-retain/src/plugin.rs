//! The plugin: puts the keeper in front of the engine's store.

use std::sync::Arc;

use anyhow::Context as _;
use async_trait::async_trait;
use ciqadamq_core::UserDirectory;
use rmqtt::Result;
use rmqtt::context::ServerContext;
use rmqtt::macros::Plugin;
use rmqtt::plugin::{DynPlugin, DynPluginResult, Plugin};
use tracing::{info, warn};

use crate::keeper::{Inner, Keeper, Kept};

const NAME: &str = env!("CARGO_PKG_NAME");

/// Registers and starts the plugin.
///
/// Must come after every plugin that replaces the engine's store of Retained Messages, and before the listeners open.
pub async fn register(scx: &ServerContext, keeper: Arc<Keeper>, directory: &dyn UserDirectory) -> Result<()> {
    directory.observe(keeper.clone());
    let scx1 = scx.clone();
    scx.plugins
        .register(NAME, true, false, move || -> DynPluginResult {
            let (scx, keeper) = (scx1.clone(), keeper.clone());
            Box::pin(async move { Ok(Box::new(RetainPlugin { scx, keeper }) as DynPlugin) })
        })
        .await
}

#[derive(Plugin)]
struct RetainPlugin {
    scx: ServerContext,
    keeper: Arc<Keeper>,
}

#[async_trait]
impl Plugin for RetainPlugin {
    async fn start(&mut self) -> Result<()> {
        let inner: Inner = {
            let mut store = self.scx.extends.retain_mut().await;
            // The store is taken out for a moment; nobody looks, the lock is held.
            let placeholder = Box::new(rmqtt::retain::DefaultRetainStorage::new());
            let inner: Inner = Arc::new(std::mem::replace(&mut *store, placeholder));
            *store = Box::new(Kept { inner: inner.clone(), keeper: self.keeper.clone() });
            inner
        };
        self.keeper.read(&inner).await.context("retained messages cannot be read")?;
        // As long as the process: the plugin cannot be stopped.
        tokio::spawn(self.keeper.clone().run(inner));
        info!(plugin = NAME, "started");
        Ok(())
    }

    async fn stop(&mut self) -> Result<bool> {
        warn!(plugin = NAME, "stays active; disable it in the configuration instead");
        Ok(false)
    }
}
