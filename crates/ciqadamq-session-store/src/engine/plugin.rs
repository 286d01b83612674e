//! The plugin: puts the parts into the engine, and looks after them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::anyhow;
use async_trait::async_trait;
use ciqadamq_core::{Arrival, Arrivals, Condition, Health, OtherMoves, Principals, RetainedCopies, Waiting};
use dashmap::DashMap;
use prometheus::Registry;
use rmqtt::Result;
use rmqtt::context::ServerContext;
use rmqtt::macros::Plugin;
use rmqtt::plugin::{DynPlugin, DynPluginResult, Plugin};
use rmqtt::session::Session;
use rmqtt::shared::{DefaultShared, Entry, Shared};
use rmqtt::types::{Id, Tx};
use rmqtt::utils::timestamp_millis;
use tracing::{info, warn};

use super::keeper::{Cut, Elsewhere, Keeper};
use super::metrics::StoreMetrics;
use super::retained::Retained;
use super::session::KeptSessions;
use super::shared::Keeping;
use super::strays::Judge;
use crate::Store;
use crate::records::remember;

const NAME: &str = env!("CARGO_PKG_NAME");
/// The condition that `/ready` shows.
const CONDITION: &str = "session-store";
/// How often what expired is let go of, and a sign of life given.
const SWEEP: Duration = Duration::from_secs(15);
/// How often the state of the disk is told.
const WATCH: Duration = Duration::from_secs(1);

/// What the plugin works with.
pub struct Deps {
    /// the open store
    pub store: Arc<Store>,
    /// who stands behind each session
    pub principals: Arc<Principals>,
    /// where the state of the disk is told
    pub health: Arc<Health>,
    /// Message Expiry Interval of messages without one, and the longest
    pub message_expiry: Duration,
    /// keep Retained Messages too; `false` leaves them to another plugin
    pub retained: bool,
    /// cuts the connection of a client whose publish must not be acknowledged
    pub cut: Option<Cut>,
    /// the way to the sessions of other nodes, in a cluster
    pub elsewhere: Option<Elsewhere>,
    /// what other nodes know of sessions on their way, in a cluster
    pub other_moves: Option<Arc<dyn OtherMoves>>,
    /// asked about a session that is not in use when somebody logs in with its client id
    pub whose: Judge,
}

/// The running plugin.
pub struct SessionKeeper {
    pub(super) keeper: Arc<Keeper>,
    /// unless another plugin has them
    retained: Option<Retained>,
    /// the next ticket
    arrivals: AtomicU32,
    /// what came from each node last, also for sessions of which nothing is kept
    origins: DashMap<u64, VecDeque<u32>>,
}

impl SessionKeeper {
    /// Writes what waits, and ends the store. Blocks; for an orderly end.
    pub fn close(&self) {
        self.keeper.store.close();
    }

    /// The Retained Messages, if they are kept here, for other nodes and from there.
    pub fn retained(&self) -> Option<Arc<dyn RetainedCopies>> {
        self.retained.clone().map(|retained| Arc::new(retained) as Arc<dyn RetainedCopies>)
    }

    /// Puts a session into the engine's own table: past the guard of logins, for this is no login.
    pub(super) async fn set(&self, session: Session, tx: Tx) -> Result<()> {
        self.entry(&session.id)?.set(session, tx).await
    }

    /// The same for one whose place somebody else may have: nobody has it until it is set.
    pub(super) async fn place(&self, id: &Id) -> Result<Box<dyn Entry>> {
        let place = self.entry(id)?.try_lock().await?;
        match self.keeper.kept(&id.client_id) {
            None => Ok(place),
            Some(_) => Err(anyhow!("its client has come")),
        }
    }

    fn entry(&self, id: &Id) -> Result<Box<dyn Entry>> {
        let inner = self.keeper.inner.get().ok_or_else(|| anyhow!("the plugin has not started"))?;
        Ok(inner.entry(id.clone()))
    }
}

/// Registers and starts the plugin.
///
/// Must come after the cluster, which replaces the engine's session table, and before the plugin that judges logins, whose
/// guard is to be the outermost. Sessions come back with [`SessionKeeper::restore`].
pub async fn register(scx: &ServerContext, deps: Deps, registry: &Registry) -> Result<Arc<SessionKeeper>> {
    registry.register(Box::new(StoreMetrics::new(deps.store.clone())?))?;
    let (store, health, keeps_retained) = (deps.store.clone(), deps.health.clone(), deps.retained);
    let keeper = Arc::new(Keeper::new(scx.clone(), deps));
    let is_clustered = keeper.other_moves.is_some();
    let retained = keeps_retained.then(|| Retained::load(store, is_clustered.then(|| scx.clone())));
    let copies = retained.clone();
    let parts = (scx.clone(), keeper.clone(), retained, health);
    scx.plugins
        .register(NAME, true, false, move || -> DynPluginResult {
            let (scx, keeper, retained, health) = parts.clone();
            Box::pin(async move { Ok(Box::new(SessionStorePlugin { scx, keeper, retained, health }) as DynPlugin) })
        })
        .await?;
    Ok(Arc::new(SessionKeeper { keeper, retained: copies, arrivals: AtomicU32::new(0), origins: DashMap::new() }))
}

impl Arrivals for SessionKeeper {
    fn has(&self, Arrival { node, boot, number, origin, is_again }: Arrival) -> bool {
        let store = &self.keeper.store;
        let has_origin = |origin| {
            let here = self.origins.get(&node).is_some_and(|all| all.contains(&origin));
            here || store.has_origin(node, origin)
        };
        store.has_heard(node, boot, number) || (is_again && origin.is_some_and(has_origin))
    }

    fn begin(&self, arrival: Arrival) -> u32 {
        let ticket = self.arrivals.fetch_add(1, Ordering::Relaxed);
        self.keeper.arriving.insert(ticket, arrival);
        if let Some(origin) = arrival.origin {
            remember(&mut self.origins.entry(arrival.node).or_default(), origin);
        }
        ticket
    }

    fn end(&self, ticket: u32) {
        self.keeper.arriving.remove(&ticket);
    }
}

impl Waiting for SessionKeeper {
    fn waiting(&self, client_id: &str) -> Option<(usize, usize)> {
        let kept = self.keeper.kept(client_id)?;
        let is_only_here = kept.live.dormant.lock().is_some() || kept.live.begun.is_unanswered();
        is_only_here.then(|| self.keeper.store.owes(kept.no))
    }
}

#[derive(Plugin)]
struct SessionStorePlugin {
    scx: ServerContext,
    keeper: Arc<Keeper>,
    retained: Option<Retained>,
    health: Arc<Health>,
}

#[async_trait]
impl Plugin for SessionStorePlugin {
    async fn start(&mut self) -> Result<()> {
        let extends = &self.scx.extends;
        {
            let mut shared = extends.shared_mut().await;
            // The engine's own table is taken out for a moment; nobody looks, the lock is held.
            let placeholder: Box<dyn Shared> = Box::new(DefaultShared::new(None));
            let inner: Arc<dyn Shared> = Arc::from(std::mem::replace(&mut *shared, placeholder));
            *shared = Box::new(Keeping { inner: inner.clone(), keeper: self.keeper.clone() });
            self.keeper.inner.set(inner).map_err(|_| anyhow!("the plugin was started twice"))?;
        }
        *extends.session_mgr_mut().await = Box::new(KeptSessions(self.keeper.clone()));
        if let Some(retained) = &self.retained {
            *extends.retain_mut().await = Box::new(retained.clone());
        }
        // Both run as long as the process: the plugin cannot be stopped.
        tokio::spawn(sweep(self.keeper.store.clone(), self.retained.clone()));
        tokio::spawn(watch(self.keeper.store.clone(), self.health.clone()));
        info!(plugin = NAME, durability = ?self.keeper.store.durability(), "started");
        Ok(())
    }

    async fn stop(&mut self) -> Result<bool> {
        warn!(plugin = NAME, "stays active: sessions rely on it; disable it in the configuration instead");
        Ok(false)
    }

    async fn attrs(&self) -> serde_json::Value {
        let status = self.keeper.store.status();
        serde_json::json!({ "sessions": status.sessions, "owed": status.owed, "retained": status.retained })
    }
}

async fn sweep(store: Arc<Store>, retained: Option<Retained>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let store1 = store.clone();
        let swept = tokio::task::spawn_blocking(move || {
            store1.beat();
            store1.sweep(timestamp_millis())
        });
        // It fails only if it panics, which the log tells.
        if let (Ok(topics), Some(retained)) = (swept.await, &retained) {
            retained.expire(&topics);
        }
    }
}

/// Tells the state of the disk where people look for it. Clients may come all the same: most of what they do needs no disk.
async fn watch(store: Arc<Store>, health: Arc<Health>) {
    loop {
        let condition = match store.refusal() {
            None => Condition::Met,
            Some(reason) => Condition::Degraded(reason.to_string()),
        };
        health.set(CONDITION, condition);
        tokio::time::sleep(WATCH).await;
    }
}
