//! The API's listener: opened, served, closed.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ciqadamq_core::LogBudget;
use parking_lot::RwLock;
use salvo::Service;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::app::{App, CHANGES_MAX, RestDeps};
use crate::brake::Brake;
use crate::config::RestConfig;
use crate::connection::{Gate, serve};
use crate::docs;
use crate::metrics::Metrics;
use crate::routes;
use crate::service::{Pipeline, Scope};
use crate::state::{NodeView, SERVICE, ThisNode};
use crate::waiting::Waiting;

/// How much longer than the grace a shutdown may take: what was cut has to come to its end.
const CUT_TIME: Duration = Duration::from_secs(1);

/// Why the API does not run.
#[derive(Debug, Error)]
pub enum RestError {
    /// values that cannot work
    #[error("api: {}", .0.join("; "))]
    Config(Vec<String>),
    /// the address is taken, or not ours
    #[error("api.addr: cannot listen on {addr}; stop what holds it or choose another address")]
    Bind {
        /// the address
        addr: SocketAddr,
        /// why
        source: io::Error,
    },
    /// the address of the internal routes is taken, or not ours
    #[error("api.internal_addr: cannot listen on {addr}; stop what holds it or choose another address")]
    BindInternal {
        /// the address
        addr: SocketAddr,
        /// why
        source: io::Error,
    },
    /// the registry has metrics of that name already
    #[error("the metrics of the REST API cannot be registered")]
    Metrics(#[from] prometheus::Error),
    /// the OpenAPI document cannot be made
    #[error("the OpenAPI document cannot be made")]
    OpenApi(#[from] serde_json::Error),
}

impl App {
    /// Everything but the listener.
    pub(crate) fn new(config: RestConfig, deps: RestDeps, node: Arc<dyn NodeView>) -> Result<Arc<Self>, RestError> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(RestError::Config(problems));
        }
        let openapi = docs::openapi(&routes::router(), &config.version)?;
        let metrics = Metrics::register(&deps.metrics)?;
        let this = Arc::new(ThisNode {
            view: node,
            directory: deps.directory.clone(),
            health: deps.health.clone(),
            parts: deps.cluster.clone(),
            peers: deps.peers.clone(),
            version: config.version.clone(),
            started: Instant::now(),
            local_addr: RwLock::new(None),
        });
        deps.internal.offer(SERVICE, this.clone());
        Ok(Arc::new(Self {
            config,
            deps,
            this,
            metrics,
            openapi,
            brake: Brake::default(),
            waiting: Waiting::default(),
            braked: LogBudget::new(1, Duration::from_secs(1)),
            changes: Arc::new(Semaphore::new(CHANGES_MAX as usize)),
        }))
    }
}

/// A running API. Dropping it cuts it off; [`Server::shutdown`] is the polite way.
pub struct Server {
    app: Arc<App>,
    local_addr: SocketAddr,
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
    internal: Option<(SocketAddr, JoinHandle<()>)>,
}

impl Server {
    /// Opens the listener and serves. `node` tells what only the engine knows.
    ///
    /// Must be called in a tokio runtime. Fails if the address cannot be had; nothing runs then.
    pub async fn start(config: RestConfig, deps: RestDeps, node: Arc<dyn NodeView>) -> Result<Self, RestError> {
        Self::open(App::new(config, deps, node)?).await
    }

    pub(crate) async fn open(app: Arc<App>) -> Result<Self, RestError> {
        let addr = app.config.addr;
        let bind = |source| RestError::Bind { addr, source };
        let listener = TcpListener::bind(addr).await.map_err(bind)?;
        let gate = Gate::new(listener, &app.config, app.metrics.connections.clone()).map_err(bind)?;
        let local_addr = gate.local_addr();
        *app.this.local_addr.write() = Some(local_addr);

        let internal = match app.config.internal_addr {
            Some(addr) => Some(internal_gate(&app, addr).await?),
            None => None,
        };
        let (stop, stopped) = watch::channel(false);
        let run = |gate, scope| {
            let service = Service::new(routes::router()).hoop(Pipeline { app: app.clone(), scope });
            tokio::spawn(serve(gate, service, app.config.shutdown_grace, stopped.clone()))
        };
        let scope = if internal.is_some() { Scope::Public } else { Scope::All };
        let task = run(gate, scope);
        let internal = internal.map(|gate| (gate.local_addr(), run(gate, Scope::Internal)));
        if let Some((addr, _)) = &internal {
            tracing::info!(%addr, "internal REST API listens");
        }
        tracing::info!(addr = %local_addr, "REST API listens");
        if app.deps.tokens.management_opens_internal() {
            tracing::warn!(
                "/internal/ takes the management token; set api.repl_token, or the vault's ciqada/repl-token, to keep password \
                 hashes from its holders"
            );
        }
        Ok(Self { app, local_addr, stop, task: Some(task), internal })
    }

    /// Where `/internal/*` answers, if it has a listener of its own.
    pub fn internal_addr(&self) -> Option<SocketAddr> {
        self.internal.as_ref().map(|(addr, _)| *addr)
    }

    /// Where it listens, with the real port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Takes no more connections, lets requests under way end, and cuts what is left after `shutdown_grace`.
    ///
    /// User changes that were begun are waited for within the same time. Returns at the latest a second after it.
    pub async fn shutdown(mut self) {
        let grace = self.app.config.shutdown_grace;
        self.stop.send_replace(true);
        let Some(mut task) = self.task.take() else { return };
        let mut internal = self.internal.take().map(|(_, task)| task);
        let finish = async {
            if (&mut task).await.is_err() {
                tracing::error!("the REST API broke off before it was stopped");
            }
            if let Some(task) = &mut internal
                && task.await.is_err()
            {
                tracing::error!("the internal REST API broke off before it was stopped");
            }
            self.app.changes_finished().await;
        };
        if tokio::time::timeout(grace.saturating_add(CUT_TIME), finish).await.is_err() {
            task.abort();
            internal.iter().for_each(JoinHandle::abort);
            tracing::warn!("REST requests were cut off");
        }
        *self.app.this.local_addr.write() = None;
        tracing::info!(addr = %self.local_addr, "REST API closed");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The connections belong to the task and end with it.
        if let Some(task) = &self.task {
            task.abort();
        }
        if let Some((_, task)) = &self.internal {
            task.abort();
        }
    }
}

async fn internal_gate(app: &App, addr: SocketAddr) -> Result<Gate, RestError> {
    let bind = |source| RestError::BindInternal { addr, source };
    let listener = TcpListener::bind(addr).await.map_err(bind)?;
    Gate::new(listener, &app.config, app.metrics.connections.clone()).map_err(bind)
}
