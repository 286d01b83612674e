//! The official RMQTT plugins that are compiled in: which start by default, with what settings, and how.
//!
//! One table; `plugins.enable`, `plugins.disable` and the command line switch each of them. A plugin's settings are
//! `NAME.toml` in `plugins.dir`, else the built-in ones here, which are chosen so that switching a plugin on opens
//! nothing. A plugin that is off is known to the plugin manager all the same and can be loaded through rmqtt-http-api.

mod settings;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::Pin;

use anyhow::Context as _;
use rmqtt::context::ServerContext;

use crate::config::Config;

pub use settings::{check, prepare};

type Registered<'a> = Pin<Box<dyn Future<Output = rmqtt::Result<()>> + Send + 'a>>;

/// One official plugin.
pub struct Official {
    /// the name of its package
    pub name: &'static str,
    /// starts unless it is switched off
    pub default_on: bool,
    /// is of no use, or of no safety, without a file of its own in `plugins.dir`
    pub needs_file: bool,
    register: for<'a> fn(&'a ServerContext, bool) -> Registered<'a>,
}

impl Official {
    /// Whether it starts. The session store keeps Retained Messages itself, unless rmqtt-retainer is asked for by name.
    pub fn starts(&self, config: &Config) -> bool {
        let default = self.default_on && !(self.name == "rmqtt-retainer" && config.keeps_sessions());
        config.plugins.starts(self.name, default)
    }
}

macro_rules! official {
    ($($(#[$meta:meta])* $name:literal $krate:ident $on:ident $needs:ident;)*) => {
        /// In the order in which they start.
        pub const PLUGINS: &[Official] = &[$($(#[$meta])* Official {
            name: $name,
            default_on: official!(@ $on),
            needs_file: official!(@ $needs),
            // Not immutable: an official plugin may be stopped and reloaded at run time, if it lets itself.
            register: |scx, start| Box::pin($krate::register(scx, start, false)),
        }),*];
    };
    (@ on) => { true };
    (@ off) => { false };
    (@ file) => { true };
    (@ built_in) => { false };
}

official! {
    "rmqtt-counter"              rmqtt_counter              off built_in;
    "rmqtt-retainer"             rmqtt_retainer             on  built_in;
    "rmqtt-shared-subscription"  rmqtt_shared_subscription  on  built_in;
    "rmqtt-message-storage"      rmqtt_message_storage      off built_in;
    "rmqtt-session-storage"      rmqtt_session_storage      off built_in;
    "rmqtt-delayed"              rmqtt_delayed              off built_in;
    "rmqtt-acl"                  rmqtt_acl                  off file;
    "rmqtt-auth-http"            rmqtt_auth_http            off file;
    "rmqtt-auth-jwt"             rmqtt_auth_jwt             off file;
    "rmqtt-topic-rewrite"        rmqtt_topic_rewrite        off file;
    "rmqtt-auto-subscription"    rmqtt_auto_subscription    off file;
    "rmqtt-p2p-messaging"        rmqtt_p2p_messaging        off built_in;
    "rmqtt-sys-topic"            rmqtt_sys_topic            off built_in;
    "rmqtt-web-hook"             rmqtt_web_hook             off file;
    "rmqtt-bridge-egress-mqtt"   rmqtt_bridge_egress_mqtt   off file;
    "rmqtt-bridge-ingress-mqtt"  rmqtt_bridge_ingress_mqtt  off file;
    #[cfg(feature = "bridge-kafka")]
    "rmqtt-bridge-egress-kafka"  rmqtt_bridge_egress_kafka  off file;
    #[cfg(feature = "bridge-kafka")]
    "rmqtt-bridge-ingress-kafka" rmqtt_bridge_ingress_kafka off file;
    #[cfg(feature = "bridge-nats")]
    "rmqtt-bridge-egress-nats"   rmqtt_bridge_egress_nats   off file;
    #[cfg(feature = "bridge-nats")]
    "rmqtt-bridge-ingress-nats"  rmqtt_bridge_ingress_nats  off file;
    #[cfg(feature = "bridge-pulsar")]
    "rmqtt-bridge-egress-pulsar" rmqtt_bridge_egress_pulsar off file;
    #[cfg(feature = "bridge-pulsar")]
    "rmqtt-bridge-ingress-pulsar" rmqtt_bridge_ingress_pulsar off file;
    #[cfg(feature = "bridge-reductstore")]
    "rmqtt-bridge-egress-reductstore" rmqtt_bridge_egress_reductstore off file;
    // Last: it shows and steers all the others.
    "rmqtt-http-api"             rmqtt_http_api             off built_in;
}

/// The names of all of them.
pub fn names() -> Vec<&'static str> {
    PLUGINS.iter().map(|plugin| plugin.name).collect()
}

/// The plugin that makes several nodes one broker. Not in the table: it starts when `cluster.enabled` says so, and before
/// all others, for they find its table of sessions in the engine.
pub const CLUSTER: &str = "rmqtt-cluster-raft";

/// Starts the routing cluster on this node. Whether it joins or leads was decided before.
pub async fn register_cluster(scx: &ServerContext) -> anyhow::Result<()> {
    // Immutable: it can neither be stopped nor reloaded.
    rmqtt_cluster_raft::register(scx, true, true).await.with_context(|| format!("plugin `{CLUSTER}` does not start"))
}

/// Registers all of them with the plugin manager and starts those that are on, in the order of the table.
///
/// The context must have been built with the settings of [`prepare`].
pub async fn register(scx: &ServerContext, config: &Config) -> anyhow::Result<()> {
    for plugin in PLUGINS {
        let start = plugin.starts(config);
        (plugin.register)(scx, start)
            .await
            .with_context(|| format!("plugin `{}` does not start; correct its settings or disable it", plugin.name))?;
    }
    Ok(())
}
