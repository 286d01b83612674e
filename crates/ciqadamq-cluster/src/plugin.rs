//! The plugin: goes in front of what `rmqtt-cluster-raft` put into the engine.

use std::sync::Arc;

use async_trait::async_trait;
use rmqtt::Result;
use rmqtt::context::ServerContext;
use rmqtt::hook::Register;
use rmqtt::macros::Plugin;
use rmqtt::plugin::{DynPlugin, DynPluginResult, Plugin};
use rmqtt::router::{DefaultRouter, Router};
use rmqtt::shared::{DefaultShared, Shared};
use serde_json::json;
use tracing::{info, warn};

use crate::cluster::Cluster;
use crate::failover::Failover;
use crate::hooks;
use crate::nodelay::send_at_once;
use crate::router::FailoverRouter;
use crate::wire::Phase;

const NAME: &str = env!("CARGO_PKG_NAME");

/// Registers and starts the plugin.
///
/// Must come after `rmqtt-cluster-raft` has started, and before what decides about ownership goes in front of the engine's
/// table of sessions.
pub async fn register(scx: &ServerContext, cluster: Arc<Cluster>) -> Result<()> {
    let scx1 = scx.clone();
    scx.plugins
        .register(NAME, true, false, move || -> DynPluginResult {
            let (scx, cluster) = (scx1.clone(), cluster.clone());
            Box::pin(async move {
                let register = scx.extends.hook_mgr().register();
                Ok(Box::new(ClusterPlugin { scx, cluster, register }) as DynPlugin)
            })
        })
        .await
}

#[derive(Plugin)]
struct ClusterPlugin {
    scx: ServerContext,
    cluster: Arc<Cluster>,
    register: Box<dyn Register>,
}

#[async_trait]
impl Plugin for ClusterPlugin {
    async fn init(&mut self) -> Result<()> {
        hooks::add(&*self.register, &self.cluster).await;
        Ok(())
    }

    async fn start(&mut self) -> Result<()> {
        {
            let mut shared = self.scx.extends.shared_mut().await;
            // Taken out for a moment; nobody looks, the lock is held.
            let inner = std::mem::replace(&mut *shared, Box::new(DefaultShared::new(None)));
            let inner: Arc<dyn Shared> = Arc::from(inner);
            self.cluster.set_engine(inner.clone());
            *shared = Box::new(Failover::new(inner, self.cluster.clone()));
        }
        {
            let mut router = self.scx.extends.router_mut().await;
            let inner = std::mem::replace(&mut *router, Box::new(DefaultRouter::new(None)));
            let inner: Arc<dyn Router> = Arc::from(inner);
            *router = Box::new(FailoverRouter { inner, cluster: self.cluster.clone() });
        }
        self.cluster.liveness.set_phase(Phase::Running);
        self.register.start().await;
        self.cluster.connect();
        // All run as long as the process: the plugin cannot be stopped.
        tokio::spawn(self.cluster.clone().watch());
        tokio::spawn(self.cluster.clone().keep_voters());
        tokio::spawn(self.cluster.clone().sweep());
        tokio::spawn(self.cluster.clone().look_for_unrouted());
        tokio::spawn(self.cluster.clone().hear_of_unrouted());
        tokio::spawn(send_at_once(self.cluster.config.raft.laddr));
        info!(plugin = NAME, "started");
        Ok(())
    }

    async fn stop(&mut self) -> Result<bool> {
        warn!(plugin = NAME, "stays active as long as the node is part of the cluster");
        Ok(false)
    }

    async fn attrs(&self) -> serde_json::Value {
        let views = self.cluster.liveness.views();
        let nodes: serde_json::Map<_, _> = views
            .iter()
            .map(|(node, view)| {
                let phase = view.alive().map(|state| format!("{:?}", state.phase).to_lowercase());
                (node.to_string(), json!(phase.unwrap_or_else(|| "dead".into())))
            })
            .collect();
        json!({
            "leader": self.cluster.liveness.own().leader,
            "nodes": nodes,
            "messages_waiting": self.cluster.links.waiting(),
        })
    }
}
