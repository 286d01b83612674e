//! The plugin.

use std::sync::Arc;

use async_trait::async_trait;
use prometheus::Registry;
use rmqtt::Result;
use rmqtt::context::ServerContext;
use rmqtt::hook::Register;
use rmqtt::macros::Plugin;
use rmqtt::plugin::{DynPlugin, DynPluginResult, Plugin};
use tracing::info;

use crate::gauges::EngineGauges;
use crate::hooks::{self, Counters};

const NAME: &str = env!("CARGO_PKG_NAME");

/// Registers and starts the plugin; its metrics go to `registry`.
pub async fn register(scx: &ServerContext, registry: &Registry) -> Result<()> {
    let counters = Arc::new(Counters::new(registry)?);
    registry.register(Box::new(EngineGauges::new(scx.clone())?))?;
    let scx1 = scx.clone();
    scx.plugins
        .register(NAME, true, false, move || -> DynPluginResult {
            let (scx, counters) = (scx1.clone(), counters.clone());
            Box::pin(async move {
                let register = scx.extends.hook_mgr().register();
                Ok(Box::new(MetricsPlugin { counters, register }) as DynPlugin)
            })
        })
        .await
}

#[derive(Plugin)]
struct MetricsPlugin {
    counters: Arc<Counters>,
    register: Box<dyn Register>,
}

#[async_trait]
impl Plugin for MetricsPlugin {
    async fn init(&mut self) -> Result<()> {
        hooks::add(&*self.register, &self.counters).await;
        Ok(())
    }

    async fn start(&mut self) -> Result<()> {
        self.register.start().await;
        info!(plugin = NAME, "started");
        Ok(())
    }

    async fn stop(&mut self) -> Result<bool> {
        self.register.stop().await;
        Ok(true)
    }
}
