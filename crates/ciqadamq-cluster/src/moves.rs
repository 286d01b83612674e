//! Where sessions on their way are asked for: see [`ciqadamq_core::Moves`].

use async_trait::async_trait;
use ciqadamq_core::{MoveTag, NodeId, OtherMoves};
use futures::FutureExt as _;
use tracing::debug;

use crate::cluster::Cluster;
use crate::wire::{Answer, Ask, OwnerHere};

#[async_trait]
impl OtherMoves for Cluster {
    async fn has_taken(&self, node: NodeId, tag: MoveTag) -> Option<bool> {
        match self.ask(node, Ask::Taken { from: self.config.node, tag }).await {
            Ok(Answer::Taken(has)) => return Some(has),
            Ok(other) => debug!(node, ?other, "an answer that is none"),
            Err(error) => debug!(node, %error, "no answer to whether a session was taken"),
        }
        None
    }

    async fn settled(&self, node: NodeId, client_id: &str, tag: MoveTag) {
        let ask = Ask::Settled { client_id: client_id.to_owned(), tag };
        if let Err(error) = self.ask(node, ask).await {
            debug!(node, client_id, %error, "node has not heard that its session is here");
        }
    }

    async fn stays(&self, node: NodeId, client_id: &str, tag: MoveTag) {
        let ask = Ask::Stays { client_id: client_id.to_owned(), tag };
        if let Err(error) = self.ask(node, ask).await {
            debug!(node, client_id, %error, "node has not heard that its session is not taken");
        }
    }

    async fn has_session(&self, client_id: &str) -> Option<bool> {
        let status = self.engine().ok()?.session_status(client_id).await;
        let Some(node) = status.map(|status| status.id.node_id) else { return Some(false) };
        if node == self.config.node || self.liveness.is_dead(node) {
            return Some(false);
        }
        match self.owner_at(node, client_id).await {
            Ok(OwnerHere::Person(_)) => Some(true),
            Ok(OwnerHere::Nobody | OwnerHere::AskNode(_)) => Some(false),
            Err(_) => None,
        }
    }

    fn has_place(&self, client_id: &str) -> bool {
        let Ok(engine) = self.engine() else { return false };
        // The plugin looks into a map of its own, and waits for nothing.
        let status = engine.session_status(client_id).now_or_never().flatten();
        status.is_some_and(|s| s.id.node_id != self.config.node && !self.liveness.is_dead(s.id.node_id))
    }
}
