//! What can be refused: sockets, secrets, stores, threads. Nothing runs before all of it is there.

use std::sync::Arc;

use anyhow::Context as _;
use ciqadamq_auth::{EnginePeer, HashPool, Sessions};
use ciqadamq_cluster::{Cluster, ClusterDeps, ClusterMetrics};
use ciqadamq_core::{ClusterParts, Condition, Health, InternalServices, Principals};
use ciqadamq_gate::Gate;
use ciqadamq_session_store::{Store as SessionStore, StoreConfig as SessionStoreConfig};
use ciqadamq_user_store::{ReplicatedUsers, StoreConfig, UserStore};
use prometheus::Registry;
use tracing::error;

use super::clients::{Doors, LISTENERS};
use super::{Node, has_acl};
use crate::config::Config;
use crate::engine::{self, Listeners};
use crate::settings;

impl<'a> Node<'a> {
    /// Opens it. Of the session store there is none if sessions are not kept.
    pub(super) async fn open(config: &'a Config) -> anyhow::Result<(Self, Doors, Option<SessionStore>)> {
        let metrics = Registry::new();
        let health = Arc::new(Health::new());
        health.set(LISTENERS, Condition::Unmet("not open yet".into()));
        let principals = Arc::new(Principals::new());
        let rules = Arc::new(settings::access_rules(config)?);
        let (internal, parts) = (Arc::new(InternalServices::new()), Arc::new(ClusterParts::new()));

        let gate = settings::gate(config, &metrics)?;
        let listeners = Listeners::bind(&config.mqtt, gate.is_some(), has_acl(config))?;
        let secrets = settings::load_secrets(config, health.clone(), &metrics).await?;
        let peers = settings::peers(config, &secrets)?;
        let store = UserStore::open(StoreConfig::at(&config.db.url.path)).context("user store")?;
        let auth = settings::auth(config, secrets.pepper());
        let session_store = match settings::session_store(config) {
            Some(settings) => Some(open_sessions(settings, &health).await?),
            None => None,
        };
        let pool = HashPool::start(auth.hash_concurrency, auth.hash_queue, auth.hash_deadline, auth.params);
        let pool = Arc::new(pool.context("threads for password hashing")?);
        let users =
            ReplicatedUsers::start(store, settings::users(config), peers.clone(), &internal, health.clone()).await;
        let users = users.context("user store")?;
        parts.enter("users", users.clone());

        let scx = engine::context(config).await?;
        let sessions = Arc::new(Sessions::new(scx.clone(), principals.clone(), gate.as_ref().map(engine_peer)));
        let cluster = match settings::cluster(config) {
            Some(settings) => {
                let deps = ClusterDeps {
                    peers: peers.clone(),
                    health: health.clone(),
                    sessions: sessions.clone(),
                    users: users.clone(),
                    directory: users.clone(),
                    credentials: settings::credentials(&secrets),
                };
                Some(Cluster::new(scx.clone(), settings, deps, ClusterMetrics::new(&metrics)?))
            }
            None => None,
        };
        let node = Self {
            config,
            metrics,
            health,
            principals,
            rules,
            internal,
            parts,
            secrets,
            peers,
            auth,
            pool,
            users,
            scx,
            sessions,
            cluster,
        };
        Ok((node, Doors { gate, listeners }, session_store))
    }
}

/// Opens the session store, off the threads of the network. A damaged one is set aside, and said so where people look.
async fn open_sessions(settings: SessionStoreConfig, health: &Health) -> anyhow::Result<SessionStore> {
    let opened = tokio::task::spawn_blocking(move || SessionStore::open_or_set_aside(settings)).await?;
    let (store, set_aside) = opened.context("session store")?;
    if let Some((path, reason)) = set_aside {
        error!(path = %path.display(), reason, "the session store was damaged: it is set aside, and a new one is in use");
        let text = format!("a damaged store was set aside as {}: {reason}", path.display());
        health.set("session-store-damage", Condition::Degraded(text));
    }
    Ok(store)
}

/// Where the engine sees a client that came through the gate.
fn engine_peer(gate: &Gate) -> EnginePeer {
    let peers = gate.engine_peers();
    Arc::new(move |client| peers.engine_peer(client))
}
