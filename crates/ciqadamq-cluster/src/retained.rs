//! Retained Messages of a node that was away: it takes over what the others have that is newer, before clients are let in.
//!
//! What is retained or cleared while a node runs goes to it in order ([`crate::link`]). After a start it asks all
//! others for what they have, page by page; and they ask it, as they do whenever a node comes back. Only what is newer is taken, and what was cleared is told like a message.

use std::sync::Arc;
use std::time::Duration;

use ciqadamq_core::{NodeId, RetainedCopies};
use futures::future::join_all;
use tracing::{debug, info, warn};

use crate::cluster::Cluster;
use crate::liveness;
use crate::wire::{Answer, Ask};

/// Bytes of a page: far fewer than what nodes take from each other, but for one message that is longer.
pub(crate) const PAGE: usize = 1024 * 1024;
/// How long a node may take for a page.
const ANSWER: Duration = Duration::from_secs(5);
/// How often a node is asked that gives no answer. One that is starting, too, is asked again when it takes messages.
const TRIES: usize = 2;
const RETRY: Duration = Duration::from_millis(500);
/// And between two tries to have all.
const PAUSE: Duration = Duration::from_secs(5);

impl Cluster {
    /// Takes note of who has the Retained Messages of this node; nobody, where another plugin keeps them.
    pub fn set_retained(&self, retained: Arc<dyn RetainedCopies>) {
        // Set twice only by a mistake of the launcher's; the first one is as good.
        drop(self.retained.set(retained));
    }

    /// Takes over what the other nodes that are alive have and this one has not.
    pub async fn catch_up_retained(&self) {
        join_all(self.liveness.others_alive().into_iter().map(|node| self.catch_up_from(node))).await;
    }

    /// Takes over what a node has and this one has not. What one has retained before it was cut off or ended may not have come here, so
    /// it is asked whenever it takes messages again, and until it answers or is dead.
    pub(crate) async fn catch_up_patiently(&self, node: NodeId) {
        while !self.catch_up_from(node).await && !self.liveness.is_dead(node) {
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Whether it was possible.
    async fn catch_up_from(&self, node: NodeId) -> bool {
        // A node that serves and has none leaves them to another plugin.
        let Some(retained) = self.retained.get() else { return self.serves() };
        let (mut after, mut taken) = (String::new(), 0_u64);
        loop {
            let Some(page) = self.page_of(node, &after).await else {
                warn!(node, "its retained messages could not be had: this node may serve older ones");
                return false;
            };
            let Some(last) = page.last() else { break };
            after.clone_from(&last.topic);
            for copy in page {
                match retained.take(copy).await {
                    Ok(is_new) => taken += u64::from(is_new),
                    Err(reason) => warn!(node, reason, "a retained message of another node is not kept"),
                }
            }
        }
        if taken > 0 {
            info!(node, taken, "retained messages taken over");
        }
        true
    }

    async fn page_of(&self, node: NodeId, after: &str) -> Option<Vec<ciqadamq_core::RetainedCopy>> {
        for _ in 0..TRIES {
            let ask = Ask::Retained { after: after.to_owned() };
            match liveness::call(&*self.deps.peers, node, &ask, ANSWER).await {
                Ok(Answer::Retained(page)) => return Some(page),
                Ok(other) => debug!(node, ?other, "an answer that is none"),
                Err(error) => debug!(node, %error, "no answer to which messages are retained"),
            }
            if self.liveness.is_dead(node) {
                return None;
            }
            tokio::time::sleep(RETRY).await;
        }
        None
    }
}
