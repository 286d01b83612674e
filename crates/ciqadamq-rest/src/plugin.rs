//! The part that knows the engine: the plugin's life, and what `GET /api/v1/cluster` shows of the engine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use rmqtt::context::ServerContext;
use rmqtt::macros::Plugin;
use rmqtt::plugin::{DynPlugin, PackageInfo, Plugin};

use crate::app::{App, RestDeps};
use crate::config::RestConfig;
use crate::server::Server;
use crate::state::{NodeView, PluginView};

/// The plugin's name in the plugin manager.
pub const PLUGIN_NAME: &str = env!("CARGO_PKG_NAME");

/// How long the list of plugins may take: the manager holds it while it switches one. Another node that asks has little
/// patience.
const PLUGINS_TIMEOUT: Duration = Duration::from_millis(500);

/// A hold on the API for whoever drains the node. Clones are the same API.
#[derive(Clone)]
pub struct RestHandle {
    running: Arc<Mutex<Option<Server>>>,
}

impl RestHandle {
    /// Where it listens, with the real port; `None` while it is stopped.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.running.lock().as_ref().map(Server::local_addr)
    }

    /// Stops it as [`Server::shutdown`] does; nothing happens if it is stopped.
    pub async fn shutdown(&self) {
        let server = self.running.lock().take();
        if let Some(server) = server {
            server.shutdown().await;
        }
    }
}

/// Registers the plugin `ciqadamq-rest` with the engine's plugin manager and starts it.
///
/// When it returns, the listener is open. An address that cannot be had is an error that names it. The plugin can be
/// stopped and started again through the manager.
pub async fn register(scx: &ServerContext, config: RestConfig, deps: RestDeps) -> rmqtt::Result<RestHandle> {
    let view = Arc::new(EngineView { scx: scx.clone(), reading: Arc::default() });
    let app = App::new(config, deps, view)?;
    let handle = RestHandle { running: Arc::default() };
    let running = handle.running.clone();
    scx.plugins
        .register(PLUGIN_NAME, true, false, move || {
            let plugin = RestPlugin { app: app.clone(), handle: RestHandle { running: running.clone() } };
            Box::pin(async move { Ok(Box::new(plugin) as DynPlugin) })
        })
        .await?;
    Ok(handle)
}

#[derive(Plugin)]
struct RestPlugin {
    app: Arc<App>,
    handle: RestHandle,
}

#[async_trait]
impl Plugin for RestPlugin {
    async fn start(&mut self) -> rmqtt::Result<()> {
        let server = Server::open(self.app.clone()).await?;
        // The manager starts only what is stopped, so there is none to replace.
        *self.handle.running.lock() = Some(server);
        Ok(())
    }

    async fn stop(&mut self) -> rmqtt::Result<bool> {
        tracing::info!(plugin = self.name(), "plugin is stopped");
        self.handle.shutdown().await;
        Ok(true)
    }
}

struct EngineView {
    scx: ServerContext,
    /// one reader at a time: see [`EngineView::plugins`]
    reading: Arc<tokio::sync::Mutex<()>>,
}

#[async_trait]
impl NodeView for EngineView {
    fn node_id(&self) -> u64 {
        self.scx.node.id()
    }

    async fn plugins(&self) -> Option<Vec<PluginView>> {
        // The manager's map is locked while it starts or stops a plugin, and waiting for that lock blocks the thread.
        // If the plugin being stopped is this one, it waits for us in turn. So a thread apart waits, one for all
        // requests, and the requests wait with a limit.
        let read = async {
            let reading = self.reading.clone().lock_owned().await;
            let scx = self.scx.clone();
            let runtime = tokio::runtime::Handle::current();
            tokio::task::spawn_blocking(move || {
                let _reading = reading;
                runtime.block_on(list_plugins(&scx))
            })
            .await
        };
        match tokio::time::timeout(PLUGINS_TIMEOUT, read).await {
            Ok(Ok(plugins)) => Some(plugins),
            _ => None,
        }
    }
}

async fn list_plugins(scx: &ServerContext) -> Vec<PluginView> {
    let mut plugins = Vec::new();
    for entry in scx.plugins.iter() {
        match entry.to_info(entry.key()).await {
            Ok(info) => {
                plugins.push(PluginView { name: entry.key().clone(), version: info.version, active: info.active })
            }
            Err(e) => {
                tracing::warn!(plugin = entry.key(), error = %e, "a plugin does not describe itself");
                plugins.push(PluginView { name: entry.key().clone(), version: None, active: entry.active() });
            }
        }
    }
    plugins.sort_by(|a, b| a.name.cmp(&b.name));
    plugins
}
