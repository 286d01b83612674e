//! The orderly end: no new clients, goodbye to the old ones, everything on disk.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use ciqadamq_auth::{Auth, Sessions};
use ciqadamq_cluster::Cluster;
use ciqadamq_core::{Condition, Health};
use ciqadamq_gate::GateHandle;
use ciqadamq_rest::RestHandle;
use ciqadamq_secrets::Secrets;
use ciqadamq_session_store::engine::SessionKeeper;
use ciqadamq_user_store::ReplicatedUsers;
use tokio::task::JoinHandle;
use tracing::{info, warn};

/// How long clients may take to go.
const CLIENTS: Duration = Duration::from_secs(5);
/// How long the gate may take to forward what is on its way.
const GATE: Duration = Duration::from_secs(2);
/// rmqtt-retainer writes to disk every half a second and cannot be asked to do it now.
const RETAINER_FLUSH: Duration = Duration::from_millis(600);

/// What runs, and must end in order.
pub struct Running {
    pub health: Arc<Health>,
    pub server: JoinHandle<()>,
    pub gate: Option<GateHandle>,
    pub sessions: Arc<Sessions>,
    pub auth: Option<Arc<Auth>>,
    pub rest: Option<RestHandle>,
    pub session_keeper: Option<Arc<SessionKeeper>>,
    pub users: Arc<ReplicatedUsers>,
    pub secrets: Arc<Secrets>,
    pub cluster: Option<Arc<Cluster>>,
}

impl Running {
    /// Ends everything; bounded by the deadlines above.
    pub async fn drain(self) -> anyhow::Result<()> {
        // `/ready` says no from here on; a load balancer sends nobody any more.
        self.health.set("running", Condition::Unmet("shutting down".into()));
        if let Some(cluster) = &self.cluster {
            cluster.leave();
        }
        if let Some(gate) = &self.gate {
            gate.stop_accepting();
        }
        // The listeners live in the server's task.
        self.server.abort();
        if !self.sessions.drain(CLIENTS).await {
            warn!("some clients did not go in time");
        }
        if let Some(gate) = &self.gate {
            gate.shutdown(GATE).await;
        }
        if let Some(rest) = &self.rest {
            rest.shutdown().await;
        }
        self.secrets.stop();
        self.users.close().await;
        let (auth, sessions) = (self.auth, self.session_keeper);
        let retainer_flush = if sessions.is_some() { Duration::ZERO } else { RETAINER_FLUSH };
        tokio::task::spawn_blocking(move || {
            if let Some(auth) = auth {
                auth.flush();
            }
            if let Some(sessions) = sessions {
                sessions.close();
            }
        })
        .await
        .context("stores did not close")?;
        tokio::time::sleep(retainer_flush).await;
        info!("stopped");
        Ok(())
    }
}
