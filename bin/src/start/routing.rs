//! Where messages go: by the cluster, or by a router of our own.

use std::sync::Arc;

use anyhow::Context as _;
use ciqadamq_cluster::{Cluster, RoutesPart};

use super::Node;
use crate::lost::Lost;
use crate::{official, restart};

impl Node<'_> {
    /// Joins the cluster, or starts it; a node alone has its router.
    pub(super) async fn start_routing(&self) -> anyhow::Result<()> {
        if let Some(cluster) = &self.cluster {
            self.internal.offer(ciqadamq_cluster::SERVICE, cluster.clone());
            self.parts.enter(ciqadamq_cluster::PART, Arc::new(RoutesPart(cluster.clone())));
            return self.join(cluster).await;
        }
        // In a cluster the routing plugin has the subscriptions, and takes those of other nodes past any router of ours.
        if self.starts("ciqadamq-router") {
            ciqadamq_router::register(&self.scx, &self.metrics).await.context("ciqadamq-router")?;
        }
        Ok(())
    }

    async fn join(&self, cluster: &Arc<Cluster>) -> anyhow::Result<()> {
        let (grpc, raft) = (self.config.cluster.grpc_laddr, self.config.cluster.raft_laddr);
        cluster.listen(grpc, raft).await?;
        cluster.form(self.users.caught_up()).await?;
        restart::arm();
        if let Err(error) = official::register_cluster(&self.scx).await {
            // The leader may have died in this very moment; what the plugin has begun cannot be undone.
            return Err(Lost(format!("{error:#}")).into());
        }
        ciqadamq_cluster::register(&self.scx, cluster.clone()).await.context("ciqadamq-cluster")
    }
}
