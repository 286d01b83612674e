//! The plugin: builds the parts and hooks them into the engine.

use std::sync::Arc;

use async_trait::async_trait;
use ciqadamq_core::{AccessRules, Principals, Rate, RetainedQuota};
use prometheus::Registry;
use rmqtt::Result;
use rmqtt::codec::types::QoS;
use rmqtt::context::ServerContext;
use rmqtt::hook::Register;
use rmqtt::macros::Plugin;
use rmqtt::plugin::{DynPlugin, DynPluginResult, Plugin};
use tracing::{info, warn};

use crate::auto::OwnTopics;
use crate::hooks::{self, Acl};
use crate::metrics::AclMetrics;

const NAME: &str = env!("CARGO_PKG_NAME");

/// What happens to a client that publishes where it may not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDeny {
    /// its connection is closed
    Disconnect,
    /// The message is dropped and acknowledged: with 0x87 in v5, as if it had been delivered in v3.
    Drop,
}

/// Settings of the plugin.
#[derive(Debug, Clone, Copy)]
pub struct AclConfig {
    /// `acl.on_deny`
    pub on_deny: OnDeny,
    /// `fanout.auto_subscribe`, with `fanout.qos`
    pub auto_subscribe: Option<QoS>,
    /// what one connection and one session may use
    pub limits: Limits,
}

/// Bounds that do not apply to superusers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// `limits.publish_messages_per_sec` and `limits.publish_bytes_per_sec`, for each connection
    pub publish: Rate,
    /// `limits.subscriptions_per_session`; 0 is no bound
    pub subscriptions_per_session: usize,
    /// `limits.subscription_bytes_per_session`: their Topic Filters together; 0 is no bound
    pub subscription_bytes_per_session: usize,
}

/// Registers and starts the plugin. `principals` is filled by whoever lets clients in; `retained` knows how many Retained
/// Messages each user has, if anybody does.
pub async fn register(
    scx: &ServerContext,
    config: AclConfig,
    rules: Arc<AccessRules>,
    principals: Arc<Principals>,
    retained: Option<Arc<dyn RetainedQuota>>,
    registry: &Registry,
) -> Result<()> {
    let metrics = AclMetrics::new(registry)?;
    let acl = Arc::new(Acl { rules, principals, on_deny: config.on_deny, limits: config.limits, retained, metrics });
    let scx1 = scx.clone();
    scx.plugins
        .register(NAME, true, false, move || -> DynPluginResult {
            let (scx, acl) = (scx1.clone(), acl.clone());
            Box::pin(async move {
                let register = scx.extends.hook_mgr().register();
                Ok(Box::new(AclPlugin { scx, acl, config, register }) as DynPlugin)
            })
        })
        .await
}

#[derive(Plugin)]
struct AclPlugin {
    scx: ServerContext,
    acl: Arc<Acl>,
    config: AclConfig,
    register: Box<dyn Register>,
}

#[async_trait]
impl Plugin for AclPlugin {
    async fn init(&mut self) -> Result<()> {
        hooks::add(&*self.register, &self.acl).await;
        Ok(())
    }

    async fn start(&mut self) -> Result<()> {
        if let Some(qos) = self.config.auto_subscribe {
            *self.scx.extends.auto_subscription_mut().await = Box::new(OwnTopics {
                scx: self.scx.clone(),
                rules: self.acl.rules.clone(),
                principals: self.acl.principals.clone(),
                qos,
            });
        }
        self.register.start().await;
        info!(plugin = NAME, "started");
        Ok(())
    }

    async fn stop(&mut self) -> Result<bool> {
        warn!(plugin = NAME, "stays active: without it everything would be allowed; set acl.enabled = false instead");
        Ok(false)
    }

    async fn attrs(&self) -> serde_json::Value {
        serde_json::json!({
            "on_deny": if self.config.on_deny == OnDeny::Drop { "drop" } else { "disconnect" },
            "auto_subscribe": self.config.auto_subscribe.is_some(),
        })
    }
}
