//! From a configuration to a broker that takes clients: [`start`] is the order, and each step has a file.

mod api;
mod clients;
mod open;
mod plugins;
mod routing;

use std::sync::Arc;

use ciqadamq_auth::{AuthConfig, HashPool, Sessions};
use ciqadamq_cluster::Cluster;
use ciqadamq_core::{AccessRules, ClusterParts, Health, InternalServices, Peers, Principals};
use ciqadamq_secrets::Secrets;
use ciqadamq_user_store::ReplicatedUsers;
use prometheus::Registry;
use rmqtt::context::ServerContext;

use crate::config::Config;
use crate::drain::Running;
use crate::lost::{Lost, lost, unless};
use crate::official;

/// What the parts of a broker need of each other while it starts.
struct Node<'a> {
    config: &'a Config,
    metrics: Registry,
    health: Arc<Health>,
    principals: Arc<Principals>,
    rules: Arc<AccessRules>,
    /// what other nodes may ask of this one; parts enter themselves
    internal: Arc<InternalServices>,
    /// what it shows of the cluster; the same
    parts: Arc<ClusterParts>,
    secrets: Arc<Secrets>,
    peers: Arc<dyn Peers>,
    auth: AuthConfig,
    pool: Arc<HashPool>,
    users: Arc<ReplicatedUsers>,
    scx: ServerContext,
    /// the sessions of this node
    sessions: Arc<Sessions>,
    /// `None` on a node alone
    cluster: Option<Arc<Cluster>>,
}

/// Starts the broker. A node of a cluster waits for the others, for as long as it takes.
pub async fn start(config: &Config) -> anyhow::Result<Running> {
    // What can be refused is opened before anything runs.
    let (node, doors, session_store) = Node::open(config).await?;
    // Before the cluster: nodes find each other through the API, and `/ready` says what is waited for.
    let rest = node.open_api().await?;
    // Whoever shows a new token to the API has it looked for, also while this node waits for its cluster.
    node.secrets.watch();
    node.start_routing().await?;
    // Ours after the official ones: the guard of client ids goes in front of whatever they put into the engine.
    official::register(&node.scx, config).await?;
    let plugins = node.register_plugins(session_store).await?;
    if let Some(cluster) = &node.cluster {
        node.unless_lost(cluster.works()).await?;
    }
    node.let_clients_in(doors, plugins, rest).await
}

impl Node<'_> {
    /// Whether one of our plugins starts.
    fn starts(&self, name: &str) -> bool {
        self.config.plugins.starts(name, true)
    }

    /// Waits, unless it turns out meanwhile that only a new process helps.
    async fn unless_lost<T>(&self, what: impl Future<Output = T>) -> Result<T, Lost> {
        unless(lost(self.cluster.as_ref()), what).await
    }
}

/// Whether the access rule is in force.
fn has_acl(config: &Config) -> bool {
    let starts = |name: &str| config.plugins.starts(name, true);
    config.acl.enabled && !config.auth.disabled && starts("ciqadamq-auth") && starts("ciqadamq-topic-acl")
}
