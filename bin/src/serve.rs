//! Builds the broker, registers the plugins, runs, drains.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use ciqadamq_auth::{AuthDeps, EnginePeer, HashPool, Sessions};
use ciqadamq_cluster::{AllSessions, Cluster, ClusterDeps, ClusterMetrics, RoutesPart};
use ciqadamq_core::{
    ClusterParts, Condition, Health, InternalServices, Principals, RemoteOwners, RetainedQuota, Revision,
    SessionControl,
};
use ciqadamq_gate::Gate;
use ciqadamq_rest::RestDeps;
use ciqadamq_retain::Keeper;
use ciqadamq_session_store::engine::{Adopt, Deps as SessionDeps, Elsewhere};
use ciqadamq_session_store::{Store as SessionStore, StoreConfig as SessionStoreConfig};
use ciqadamq_user_store::{ReplicatedUsers, StoreConfig, UserStore};
use prometheus::Registry;
use rmqtt::context::ServerContext;
use tracing::{error, info, warn};

use crate::config::{Config, SecretsProvider};
use crate::drain::Running;
use crate::engine::{self, Listeners};
use crate::{official, restart, settings, signals};

/// Why the broker ended.
#[derive(Debug)]
pub enum End {
    /// A signal asked for it.
    Asked,
    /// Only a new process helps.
    Restart(String),
}

/// The condition of readiness that stands for the MQTT listeners.
const LISTENERS: &str = "listeners";

/// The start ends: only a new process helps, and why.
#[derive(Debug)]
struct Lost(String);

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Lost {}

/// Runs the broker until a signal asks for a drain, or the cluster for a new process.
pub async fn serve(config: Config) -> anyhow::Result<End> {
    let mut shutdown = signals::listen()?;
    // A node may wait for its cluster for a long time.
    let running = tokio::select! {
        running = start(&config) => running,
        () = shutdown.requested() => return Ok(End::Asked),
    };
    let running = match running {
        Ok(running) => running,
        Err(error) => return error.downcast().map(|Lost(why)| End::Restart(why)),
    };
    info!("ready");
    let end = tokio::select! {
        () = shutdown.requested() => End::Asked,
        why = lost(running.cluster.as_ref()) => End::Restart(why),
    };
    running.drain().await?;
    Ok(end)
}

async fn start(config: &Config) -> anyhow::Result<Running> {
    let starts = |name: &str| config.plugins.starts(name, true);
    let metrics = Registry::new();
    let health = Arc::new(Health::new());
    health.set(LISTENERS, Condition::Unmet("not open yet".into()));
    let principals = Arc::new(Principals::new());
    let rules = Arc::new(settings::access_rules(config)?);

    // What other nodes may ask of this one, and what it shows of the cluster: parts enter themselves.
    let (internal, parts) = (Arc::new(InternalServices::new()), Arc::new(ClusterParts::new()));

    // What can be refused is opened before anything runs.
    let gate = settings::gate(config, &metrics)?;
    let acl_enabled =
        config.acl.enabled && !config.auth.disabled && starts("ciqadamq-auth") && starts("ciqadamq-topic-acl");
    let listeners = Listeners::bind(&config.mqtt, gate.is_some(), acl_enabled)?;
    let secrets = settings::load_secrets(config, health.clone(), &metrics).await?;
    let peers = settings::peers(config, &secrets)?;
    let store = UserStore::open(StoreConfig::at(&config.db.url.path)).context("user store")?;
    let auth_config = settings::auth(config, secrets.pepper());
    let session_store = match settings::session_store(config) {
        Some(settings) => Some(open_sessions(settings, &health).await?),
        None => None,
    };
    let pool = Arc::new(
        HashPool::start(
            auth_config.hash_concurrency,
            auth_config.hash_queue,
            auth_config.hash_deadline,
            auth_config.params,
        )
        .context("threads for password hashing")?,
    );
    let users = ReplicatedUsers::start(store, settings::users(config), peers.clone(), &internal, health.clone()).await;
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
                credentials: settings::credentials(&secrets),
            };
            Some(Cluster::new(scx.clone(), settings, deps, ClusterMetrics::new(&metrics)?))
        }
        None => None,
    };
    let all_sessions: Arc<dyn SessionControl> = match &cluster {
        Some(cluster) => Arc::new(AllSessions(cluster.clone())),
        None => sessions.clone(),
    };

    // Before the cluster: nodes find each other through the API, and `/ready` says what is waited for.
    let mut rest = None;
    if starts("ciqadamq-rest") {
        let rotates = config.secrets.provider() != SecretsProvider::Environment;
        let deps = RestDeps {
            directory: users.clone(),
            passwords: pool.clone(),
            sessions: all_sessions,
            rules: rules.clone(),
            health: health.clone(),
            internal: internal.clone(),
            peers: peers.clone(),
            cluster: parts.clone(),
            tokens: settings::tokens(config, &secrets)?,
            refresh: rotates.then(|| secrets.clone() as _),
            metrics: metrics.clone(),
        };
        let rest_config = settings::rest(config, acl_enabled);
        rest = Some(ciqadamq_rest::register(&scx, rest_config, deps).await.context("ciqadamq-rest")?);
    }
    // Whoever shows a new token to the API has it looked for, also while this node waits for its cluster.
    secrets.watch();

    if let Some(cluster) = &cluster {
        internal.offer(ciqadamq_cluster::SERVICE, cluster.clone());
        parts.enter(ciqadamq_cluster::PART, Arc::new(RoutesPart(cluster.clone())));
        join(&scx, config, cluster).await?;
    } else if starts("ciqadamq-router") {
        // In a cluster the routing plugin has the subscriptions, and takes those of other nodes past any router of ours.
        ciqadamq_router::register(&scx, &metrics).await.context("ciqadamq-router")?;
    }
    // Ours after the official ones: the guard of client ids goes in front of whatever they put into the engine.
    official::register(&scx, config).await?;
    if starts("ciqadamq-metrics") {
        ciqadamq_metrics::register(&scx, &metrics).await.context("ciqadamq-metrics")?;
    }
    if starts("ciqadamq-expiry") {
        let cap = NonZeroU32::new(config.mqtt.message_expiry_secs).unwrap_or(NonZeroU32::MIN);
        ciqadamq_expiry::register(&scx, cap, &metrics).await.context("ciqadamq-expiry")?;
    }
    // Behind the guard that judges logins, which comes with ciqadamq-auth.
    let mut session_keeper = None;
    if let Some(store) = session_store {
        let cutter = sessions.clone();
        let deps = SessionDeps {
            store: Arc::new(store),
            principals: principals.clone(),
            health: health.clone(),
            message_expiry: Duration::from_secs(config.mqtt.message_expiry_secs.into()),
            retained: !config.plugins.starts("rmqtt-retainer", false),
            cut: Some(Arc::new(move |id| cutter.cut(id))),
            elsewhere: cluster.as_ref().map(elsewhere),
        };
        let keeper = ciqadamq_session_store::engine::register(&scx, deps, &metrics).await;
        session_keeper = Some(keeper.context("ciqadamq-session-store")?);
    }
    if starts("ciqadamq-user-store") {
        ciqadamq_user_store::register(&scx, &users, &metrics).await.context("ciqadamq-user-store")?;
    }
    let mut retained = None;
    if starts("ciqadamq-retain") {
        let max = config.limits.retained_per_user;
        let keeper = Keeper::new(max, users.clone(), principals.clone(), &metrics)?;
        ciqadamq_retain::register(&scx, keeper.clone(), &*users).await.context("ciqadamq-retain")?;
        retained = Some(keeper as Arc<dyn RetainedQuota>);
    }
    let mut auth = None;
    if starts("ciqadamq-auth") && config.auth.disabled {
        ciqadamq_auth::register_disabled(&scx).await.context("ciqadamq-auth")?;
    } else if starts("ciqadamq-auth") {
        let deps = AuthDeps {
            directory: users.clone(),
            rules: rules.clone(),
            principals: principals.clone(),
            pool: pool.clone(),
            sessions: sessions.clone(),
            remote: cluster.clone().map(|cluster| cluster as Arc<dyn RemoteOwners>),
        };
        auth = Some(ciqadamq_auth::register(&scx, &auth_config, deps, &metrics).await.context("ciqadamq-auth")?);
    }
    if acl_enabled {
        let acl = settings::acl(config);
        ciqadamq_topic_acl::register(&scx, acl, rules.clone(), principals, retained, &metrics)
            .await
            .context("ciqadamq-topic-acl")?;
    } else {
        warn!("the access rule is off: every client may subscribe and publish everything");
    }
    if let (Some(cluster), Some(auth)) = (&cluster, &auth) {
        cluster.set_owners(auth.owners());
    }
    let lost = || lost(cluster.as_ref());
    if let Some(cluster) = &cluster {
        unless(lost(), cluster.works()).await?;
    }

    let upstream = listeners.upstream();
    let server = listeners.serve(scx);
    if let Some(keeper) = &session_keeper {
        let (adopter, routes) = (auth.clone(), cluster.clone());
        let adopt: Adopt = Arc::new(move |owner, id| match (&adopter, &owner.username) {
            // Its client has connected to another node meanwhile, and begun anew there.
            _ if routes.as_ref().is_some_and(|routes| routes.has_elsewhere(&id.client_id)) => false,
            (Some(auth), Some(name)) => auth.adopt(id, name, owner.userid.as_deref(), Revision(owner.login)),
            // Nobody was asked who it was.
            _ => true,
        });
        // Whose session it is can be asked only then; asked earlier, all kept sessions would be nobody's.
        unless(lost(), users.caught_up()).await?;
        unless(lost(), keeper.restore(adopt)).await?.context("ciqadamq-session-store")?;
    }
    if let Some(cluster) = &cluster {
        cluster.serve();
    }
    let gate = gate.zip(upstream).map(|(gate, upstream)| gate.serve(upstream));
    // The sockets are open since they were bound: who comes from here on is served. The task has the last word.
    health.set(LISTENERS, Condition::Met);
    let server = tokio::spawn(take_clients(server.run(), health.clone()));
    Ok(Running { health, server, gate, sessions, auth, rest, session_keeper, users, secrets, cluster })
}

/// Resolves with the reason when only a new process helps; never on a node alone.
async fn lost(cluster: Option<&Arc<Cluster>>) -> String {
    match cluster {
        Some(cluster) => cluster.restart_wanted().await,
        None => std::future::pending().await,
    }
}

/// Waits, unless it turns out meanwhile that only a new process helps.
async fn unless<T>(lost: impl Future<Output = String>, what: impl Future<Output = T>) -> Result<T, Lost> {
    tokio::select! {
        done = what => Ok(done),
        why = lost => Err(Lost(why)),
    }
}

/// Takes clients until that ends, which it does not by itself.
async fn take_clients<E: std::fmt::Display>(listening: impl Future<Output = Result<(), E>>, health: Arc<Health>) {
    let why = listening.await.map_or_else(|error| format!("{error:#}"), |()| "nobody listens any more".into());
    error!(reason = why, "the MQTT listeners have ended, no client gets in; restart the broker");
    health.set(LISTENERS, Condition::Unmet(format!("they have ended: {why}")));
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

/// The way to the sessions of other nodes.
fn elsewhere(cluster: &Arc<Cluster>) -> Elsewhere {
    let cluster = cluster.clone();
    Arc::new(move |from, publish, relations, msg_id| {
        let cluster = cluster.clone();
        Box::pin(async move {
            for (node, relations) in relations {
                cluster.forward(node, from.clone(), publish.clone(), relations, msg_id).await;
            }
        })
    })
}

/// Finds the routing cluster, or starts it, and takes part.
async fn join(scx: &ServerContext, config: &Config, cluster: &Arc<Cluster>) -> anyhow::Result<()> {
    cluster.listen(config.cluster.grpc_laddr).await?;
    cluster.form().await?;
    restart::arm();
    if let Err(error) = official::register_cluster(scx).await {
        // The leader may have died in this very moment; what the plugin has begun cannot be undone.
        return Err(Lost(format!("{error:#}")).into());
    }
    ciqadamq_cluster::register(scx, cluster.clone()).await.context("ciqadamq-cluster")
}

/// Where the engine sees a client that came through the gate.
fn engine_peer(gate: &Gate) -> EnginePeer {
    let peers = gate.engine_peers();
    Arc::new(move |client| peers.engine_peer(client))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_waited_for_is_given_up_when_only_a_new_process_helps() {
        let never = || std::future::pending::<String>();
        assert!(matches!(unless(never(), async { 5 }).await, Ok(5)));
        let given_up = unless(async { "no quorum".to_owned() }, std::future::pending::<()>()).await;
        assert!(matches!(given_up, Err(Lost(why)) if why == "no quorum"));
    }

    #[tokio::test]
    async fn a_node_whose_listeners_have_ended_is_not_ready_and_says_so() {
        let health = Arc::new(Health::new());
        for (end, wanted) in [(Err("out of sockets"), "out of sockets"), (Ok(()), "nobody listens")] {
            health.set(LISTENERS, Condition::Met);
            take_clients(async move { end }, health.clone()).await;
            let said = health.conditions().remove(LISTENERS);
            assert!(matches!(&said, Some(Condition::Unmet(why)) if why.contains(wanted)), "{said:?}");
        }
    }
}
