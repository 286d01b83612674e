//! Clients are let in: kept sessions are there again, then the listeners accept.

use std::fmt::Display;
use std::sync::Arc;

use anyhow::Context as _;
use ciqadamq_auth::Auth;
use ciqadamq_core::{Condition, Health, Revision};
use ciqadamq_gate::Gate;
use ciqadamq_rest::RestHandle;
use ciqadamq_session_store::engine::Adopt;
use tracing::error;

use super::Node;
use super::plugins::Plugins;
use crate::drain::Running;
use crate::engine::Listeners;

/// The condition of readiness that stands for the MQTT listeners.
pub(super) const LISTENERS: &str = "listeners";

/// Bound, and not served yet.
pub(super) struct Doors {
    pub(super) gate: Option<Gate>,
    pub(super) listeners: Listeners,
}

impl Node<'_> {
    /// Puts the kept sessions back, and opens the doors.
    pub(super) async fn let_clients_in(
        self,
        Doors { gate, listeners }: Doors,
        Plugins { auth, session_keeper }: Plugins,
        rest: Option<RestHandle>,
    ) -> anyhow::Result<Running> {
        let upstream = listeners.upstream();
        let server = listeners.serve(self.scx.clone());
        if let Some(keeper) = &session_keeper {
            // Whose session it is can be asked only then; asked earlier, all kept sessions would be nobody's.
            self.unless_lost(self.users.caught_up()).await?;
            let adopt = self.adopt(auth.clone());
            let restored = self.unless_lost(keeper.restore(adopt.clone())).await?;
            restored.context("ciqadamq-session-store")?;
            tokio::spawn(keeper.clone().settle_strays(adopt));
        }
        if let Some(cluster) = &self.cluster {
            self.unless_lost(cluster.catch_up_retained()).await?;
            cluster.serve();
        }
        let gate = gate.zip(upstream).map(|(gate, upstream)| gate.serve(upstream));
        // The sockets are open since they were bound: who comes from here on is served. The task has the last word.
        self.health.set(LISTENERS, Condition::Met);
        let server = tokio::spawn(take_clients(server.run(), self.health.clone()));
        let Self { health, sessions, users, secrets, cluster, .. } = self;
        Ok(Running { health, server, gate, sessions, auth, rest, session_keeper, users, secrets, cluster })
    }

    /// Whether an owner still has the right to a kept session.
    fn adopt(&self, auth: Option<Arc<Auth>>) -> Adopt {
        Arc::new(move |owner, id| match (&auth, &owner.username) {
            (Some(auth), Some(name)) => auth.adopt(id, name, owner.userid.as_deref(), Revision(owner.login)),
            // Nobody was asked who it was.
            _ => true,
        })
    }
}

/// Takes clients until that ends, which it does not by itself.
async fn take_clients<E: Display>(listening: impl Future<Output = Result<(), E>>, health: Arc<Health>) {
    let why = listening.await.map_or_else(|error| format!("{error:#}"), |()| "nobody listens any more".into());
    error!(reason = why, "the MQTT listeners have ended, no client gets in; restart the broker");
    health.set(LISTENERS, Condition::Unmet(format!("they have ended: {why}")));
}

#[cfg(test)]
mod tests {
    use super::*;

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
