//! The REST API.

use std::sync::Arc;

use anyhow::Context as _;
use ciqadamq_cluster::AllSessions;
use ciqadamq_core::SessionControl;
use ciqadamq_rest::{RestDeps, RestHandle};

use super::{Node, has_acl};
use crate::config::SecretsProvider;
use crate::settings;

impl Node<'_> {
    /// Opens it, unless it is switched off.
    pub(super) async fn open_api(&self) -> anyhow::Result<Option<RestHandle>> {
        if !self.starts("ciqadamq-rest") {
            return Ok(None);
        }
        let sessions: Arc<dyn SessionControl> = match &self.cluster {
            Some(cluster) => Arc::new(AllSessions(cluster.clone())),
            None => self.sessions.clone(),
        };
        let rotates = self.config.secrets.provider() != SecretsProvider::Environment;
        let deps = RestDeps {
            directory: self.users.clone(),
            passwords: self.pool.clone(),
            sessions,
            rules: self.rules.clone(),
            health: self.health.clone(),
            internal: self.internal.clone(),
            peers: self.peers.clone(),
            cluster: self.parts.clone(),
            tokens: settings::tokens(self.config, &self.secrets)?,
            refresh: rotates.then(|| self.secrets.clone() as _),
            metrics: self.metrics.clone(),
        };
        let config = settings::rest(self.config, has_acl(self.config));
        Ok(Some(ciqadamq_rest::register(&self.scx, config, deps).await.context("ciqadamq-rest")?))
    }
}
