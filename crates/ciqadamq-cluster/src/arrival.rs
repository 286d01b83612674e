//! A publisher hears that its message was taken when the other nodes have it.
//!
//! A message of QoS 1 or 2 that goes to another node is acknowledged there when it is in that node's session store, as far as it is for
//! persistent sessions. The publisher's acknowledgement waits for that, so that a message which was acknowledged is not only in
//! the memory of the node that may end next. It does not wait for a node that is dead, nor for longer than [`ARRIVAL`], nor at all
//! where an acknowledgement promises no more than memory ([`ClusterConfig::publishers_wait`](crate::ClusterConfig)).

use std::time::Duration;

use ciqadamq_core::NodeId;
use rmqtt::codec::types::QoS;
use rmqtt::types::{From, MsgID, Publish, SubRelationsMap};
use tracing::debug;

use crate::cluster::Cluster;

/// How long a publisher waits for another node. One that is stopped counts as dead before that.
const ARRIVAL: Duration = Duration::from_secs(5);

impl Cluster {
    /// Sends a message that was published here to the sessions of other nodes; at QoS 1 and 2 waits until they have it.
    ///
    /// Not for what another node has sent: each of two nodes could wait for the other.
    pub async fn forward_all(&self, from: &From, publish: &Publish, relations: SubRelationsMap, msg_id: Option<MsgID>) {
        let all = relations.into_iter().map(|(node, relations)| async move {
            let is_promise = self.config.publishers_wait
                && publish.qos != QoS::AtMostOnce
                && relations.iter().any(|(_, _, options, _, _)| options.qos() != QoS::AtMostOnce);
            let number = self.forward(node, from.clone(), publish.clone(), relations, msg_id).await;
            if let Some(number) = number.filter(|_| is_promise) {
                self.arrived(node, number).await;
            }
        });
        futures::future::join_all(all).await;
    }

    async fn arrived(&self, node: NodeId, number: u64) {
        tokio::select! {
            () = self.links.arrived(node, number) => {}
            () = self.liveness.died(node) => {}
            () = tokio::time::sleep(ARRIVAL) => {
                debug!(node, "a message is acknowledged to its publisher before the other node has said that it has it");
            }
        }
    }
}
