//! The plugin: puts the router into the engine.

use std::sync::Arc;

use async_trait::async_trait;
use prometheus::Registry;
use rmqtt::Result;
use rmqtt::context::ServerContext;
use rmqtt::macros::Plugin;
use rmqtt::plugin::{DynPlugin, DynPluginResult, Plugin};
use tracing::{info, warn};

use crate::memo::{Memo, PLACES};
use crate::metrics::RouterMetrics;
use crate::router::RememberingRouter;

const NAME: &str = env!("CARGO_PKG_NAME");

/// Registers and starts the plugin. Not for a node of a cluster, whose routing plugin has a router of its own.
///
/// To be called while nobody has subscribed: what the router before knew is not taken over.
pub async fn register(scx: &ServerContext, registry: &Registry) -> Result<()> {
    let memo = Arc::new(Memo::new());
    registry.register(Box::new(RouterMetrics::new(memo.clone())?))?;
    let scx1 = scx.clone();
    // Started here and now: started later, over the API, it would begin without the subscriptions that are there.
    let (default_startup, immutable) = (true, true);
    scx.plugins
        .register(NAME, default_startup, immutable, move || -> DynPluginResult {
            let (scx, memo) = (scx1.clone(), memo.clone());
            Box::pin(async move { Ok(Box::new(RouterPlugin { scx, memo }) as DynPlugin) })
        })
        .await
}

#[derive(Plugin)]
struct RouterPlugin {
    scx: ServerContext,
    memo: Arc<Memo>,
}

#[async_trait]
impl Plugin for RouterPlugin {
    async fn start(&mut self) -> Result<()> {
        let router = RememberingRouter::new(self.scx.clone(), self.memo.clone());
        *self.scx.extends.router_mut().await = Box::new(router);
        info!(plugin = NAME, places = PLACES, "started");
        Ok(())
    }

    async fn stop(&mut self) -> Result<bool> {
        // It has the subscriptions.
        warn!(plugin = NAME, "stays active; disable it in the configuration instead");
        Ok(false)
    }
}
