//! The plugin: hooks and the sweeping task.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use prometheus::{IntCounter, Registry};
use rmqtt::Result;
use rmqtt::context::ServerContext;
use rmqtt::hook::Register;
use rmqtt::macros::Plugin;
use rmqtt::plugin::{DynPlugin, DynPluginResult, Plugin};
use tracing::{debug, info, warn};

use crate::fitter::AsTheStandardSays;
use crate::hooks;
use crate::sweep::Offline;

const NAME: &str = env!("CARGO_PKG_NAME");
/// Longest time between two sweeps; with a short cap they come more often.
const SWEEP_EVERY_MAX: Duration = Duration::from_secs(30);

/// Registers and starts the plugin. `cap_secs` is `mqtt.message_expiry_secs`.
pub async fn register(scx: &ServerContext, cap_secs: NonZeroU32, registry: &Registry) -> Result<()> {
    let expired = IntCounter::new(
        "ciqadamq_expired_offline_messages_total",
        "Messages freed from the queues of offline sessions because they had expired",
    )?;
    registry.register(Box::new(expired.clone()))?;
    let offline = Arc::new(Offline::new(Duration::from_secs(cap_secs.get().into()), expired));
    let scx1 = scx.clone();
    scx.plugins
        .register(NAME, true, false, move || -> DynPluginResult {
            let (scx, offline) = (scx1.clone(), offline.clone());
            Box::pin(async move {
                let register = scx.extends.hook_mgr().register();
                Ok(Box::new(ExpiryPlugin { scx, cap_secs, offline, register }) as DynPlugin)
            })
        })
        .await
}

#[derive(Plugin)]
struct ExpiryPlugin {
    scx: ServerContext,
    cap_secs: NonZeroU32,
    offline: Arc<Offline>,
    register: Box<dyn Register>,
}

#[async_trait]
impl Plugin for ExpiryPlugin {
    async fn init(&mut self) -> Result<()> {
        hooks::add(&*self.register, self.cap_secs, &self.offline).await;
        Ok(())
    }

    async fn start(&mut self) -> Result<()> {
        {
            let mut fitters = self.scx.extends.fitter_mgr_mut().await;
            let inner = std::mem::replace(&mut *fitters, Box::new(rmqtt::fitter::DefaultFitterManager));
            *fitters = Box::new(AsTheStandardSays(inner));
        }
        let offline = self.offline.clone();
        let every = (Duration::from_secs(self.cap_secs.get().into()) / 4).min(SWEEP_EVERY_MAX);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                let swept = offline.sweep();
                if swept > 0 {
                    debug!(swept, "expired messages freed");
                }
            }
        });
        self.register.start().await;
        info!(plugin = NAME, "started");
        Ok(())
    }

    async fn stop(&mut self) -> Result<bool> {
        // Sessions keep the fitter they were made with, and their publishers the promise they were given.
        warn!(plugin = NAME, "stays active; disable it in the configuration instead");
        Ok(false)
    }
}
