//! A publisher hears that its message was taken when the other nodes have it.
//!
//! A message of QoS 1 or 2 that goes to another node is acknowledged there when it is in that node's session store, as far as it is for
//! persistent sessions. The publisher's acknowledgement waits for that, so that a message which was acknowledged is not only in
//! the memory of the node that may end next. It does not wait for a node that is dead, nor for longer than [`ARRIVAL`], nor at all
//! where an acknowledgement promises no more than memory ([`ClusterConfig::publishers_wait`](crate::ClusterConfig)).
//!
//! Of a dead node's sessions some may have moved away just before: their messages go to the heirs ([`crate::heirs`]).

use std::time::Duration;

use ciqadamq_core::NodeId;
use rmqtt::codec::types::QoS;
use rmqtt::types::{From, MsgID, Publish, SubRelations, SubRelationsMap};
use tracing::debug;

use crate::cluster::Cluster;

/// How long a publisher waits for another node. One that is stopped counts as dead before that.
const ARRIVAL: Duration = Duration::from_secs(5);

/// What became of a message on its way to another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// the node has it
    Arrived,
    /// the node is dead
    Died,
    /// nobody knows
    Late,
}

impl Cluster {
    /// Sends a message that was published here to the sessions of other nodes; at QoS 1 and 2 waits until they have it.
    pub async fn forward_all(&self, from: &From, publish: &Publish, relations: SubRelationsMap, msg_id: Option<MsgID>) {
        let all = relations.into_iter().map(|(node, relations)| async move {
            let is_promise = self.is_promise(publish, &relations);
            let (number, relations) = self.forward(node, from.clone(), publish.clone(), relations, msg_id).await;
            if let Some(number) = number.filter(|_| is_promise)
                && self.arrived(node, number).await == Outcome::Died
            {
                self.give_to_heirs(node, from, publish, relations, msg_id).await;
            }
        });
        futures::future::join_all(all).await;
    }

    /// Whether the acknowledgement of a message promises that these have it.
    pub(crate) fn is_promise(&self, publish: &Publish, relations: &SubRelations) -> bool {
        self.config.publishers_wait
            && publish.qos != QoS::AtMostOnce
            && relations.iter().any(|(_, _, options, _, _)| options.qos() != QoS::AtMostOnce)
    }

    /// Waits until a node has a message, but not for ever.
    pub(crate) async fn arrived(&self, node: NodeId, number: u64) -> Outcome {
        tokio::select! {
            () = self.links.arrived(node, number) => Outcome::Arrived,
            () = self.liveness.died(node) => Outcome::Died,
            () = tokio::time::sleep(ARRIVAL) => {
                debug!(node, "a message is acknowledged to its publisher before the other node has said that it has it");
                Outcome::Late
            }
        }
    }
}
