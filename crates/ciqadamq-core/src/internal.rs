//! What nodes say to each other, as the parts that speak and listen see it.
//!
//! A part that answers other nodes is an [`InternalService`], offered under a name. A part that asks them has
//! [`Peers`]. Neither knows how the bytes travel; the launcher wires both to `/internal/v1/{service}` of the REST API.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::RwLock;
use thiserror::Error;

/// A node's number in the cluster, 1 to 65,535; 0 only where there is no cluster.
pub type NodeId = u64;

/// Longest body of a call or its answer, in bytes. A service that has more to say says it in pieces.
pub const INTERNAL_BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Why a service did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ServiceError {
    /// The call makes no sense to it; the same call will not fare better.
    #[error("{0}")]
    BadRequest(String),
    /// It cannot do it now. Nothing was done.
    #[error("{0}")]
    Unavailable(String),
}

/// Answers other nodes. Whoever calls has shown the nodes' credential.
#[async_trait]
pub trait InternalService: Send + Sync {
    /// Answers one call. A caller that goes away ends it at an await.
    async fn call(&self, body: Vec<u8>) -> Result<Vec<u8>, ServiceError>;
}

/// The services of this node, by name.
#[derive(Default)]
pub struct InternalServices(RwLock<BTreeMap<&'static str, Arc<dyn InternalService>>>);

impl InternalServices {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Offers a service from now on, in place of one of the same name. A name is one plain path segment.
    pub fn offer(&self, name: &'static str, service: Arc<dyn InternalService>) {
        self.0.write().insert(name, service);
    }

    /// The service of that name.
    pub fn get(&self, name: &str) -> Option<Arc<dyn InternalService>> {
        self.0.read().get(name).cloned()
    }
}

impl std::fmt::Debug for InternalServices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.read().keys()).finish()
    }
}

/// Why a call to another node has no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PeerError {
    /// Nobody knows where this node is.
    #[error("the address of node {0} is not known; add it to cluster.node_api_addrs")]
    NoAddress(NodeId),
    /// The call did not get there: nothing was done.
    #[error("not reachable: {0}")]
    Unreachable(String),
    /// The call may have got there, and no answer came back: it may have been done, or be done later.
    #[error("no answer: {0}")]
    NoAnswer(String),
    /// The node answered that it cannot do it now, or this one cannot ask; nothing was done.
    #[error("{0}")]
    Unavailable(String),
    /// The node answered that the call is wrong, such as for a wrong credential or an unknown service; nothing was done.
    #[error("refused: {0}")]
    Refused(String),
}

impl PeerError {
    /// Whether it is certain that the call had no effect.
    pub fn nothing_was_done(&self) -> bool {
        !matches!(self, Self::NoAnswer(_))
    }
}

/// What the last call to a node says of the way there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reachability {
    /// It was not called yet.
    Unknown,
    /// It answered.
    Reachable,
    /// It did not answer.
    Unreachable {
        /// for how long no call was answered
        since: Duration,
        /// what happened to the last one
        reason: String,
    },
}

/// Which calls to a node wait for each other: those of one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// What the cluster falls apart without: heartbeats, votes, questions whether a node is alive. Few, and soon answered.
    Vital,
    /// Everything else.
    Common,
}

/// The other nodes, and how to call them. Any number of callers at once.
#[async_trait]
pub trait Peers: Send + Sync {
    /// All other nodes that are known, sorted.
    fn others(&self) -> Vec<NodeId>;

    /// Base URL of a node's API.
    fn url(&self, node: NodeId) -> Option<String>;

    /// Takes note of a node that was not configured, such as one that was added at run time. What is configured wins.
    fn learn(&self, node: NodeId, url: &str);

    /// What the last call to a node says of the way there.
    fn reachability(&self, node: NodeId) -> Reachability;

    /// Calls a service of another node. `timeout` covers everything, waiting for a place in the lane included.
    async fn call(
        &self,
        node: NodeId,
        service: &str,
        lane: Lane,
        body: Vec<u8>,
        timeout: Duration,
    ) -> Result<Vec<u8>, PeerError>;

    /// The same at a URL, for a node that is not known yet.
    async fn call_at(&self, url: &str, service: &str, body: Vec<u8>, timeout: Duration) -> Result<Vec<u8>, PeerError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Echo;

    #[async_trait]
    impl InternalService for Echo {
        async fn call(&self, body: Vec<u8>) -> Result<Vec<u8>, ServiceError> {
            Ok(body)
        }
    }

    #[test]
    fn a_service_is_found_by_the_name_it_was_offered_under() {
        let services = InternalServices::new();
        services.offer("echo", Arc::new(Echo));
        assert!(services.get("echo").is_some() && services.get("Echo").is_none() && services.get("").is_none());
        assert_eq!(format!("{services:?}"), "{\"echo\"}");
    }

    #[test]
    fn only_a_missing_answer_leaves_a_doubt() {
        assert!(!PeerError::NoAnswer("timeout".into()).nothing_was_done());
        for sure in [PeerError::NoAddress(1), PeerError::Unreachable(String::new()), PeerError::Refused(String::new())]
        {
            assert!(sure.nothing_was_done());
        }
    }
}
