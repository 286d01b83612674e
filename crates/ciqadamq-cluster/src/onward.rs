//! Messages that are sent on to a third node: the session that they are for has moved there.
//!
//! Whoever published such a message on this node waits until the other one has it. To a node that has sent it, it is acknowledged
//! only then; but that is not waited for on the spot, as each of two nodes could wait for the other.

use std::cell::RefCell;

use ciqadamq_core::NodeId;
use futures::future::join_all;
use rmqtt::types::{From, MsgID, Publish, SubRelations};

use crate::cluster::Cluster;

tokio::task_local! {
    static SENT_ON: RefCell<Vec<(NodeId, u64)>>;
}

/// Runs the delivery of a message of another node; gives where it was sent on, with the numbers there, as far as it has to arrive.
pub(crate) async fn collect(delivery: impl Future<Output = ()>) -> Vec<(NodeId, u64)> {
    let collected = async {
        delivery.await;
        SENT_ON.with(RefCell::take)
    };
    SENT_ON.scope(RefCell::default(), collected).await
}

impl Cluster {
    /// Sends a message after sessions that have moved.
    pub(crate) async fn send_on(
        &self,
        node: NodeId,
        from: &From,
        publish: &Publish,
        relations: SubRelations,
        msg_id: Option<MsgID>,
    ) {
        let is_promise = self.is_promise(publish, &relations);
        let (number, _) = self.forward(node, from.clone(), publish.clone(), relations, msg_id).await;
        let Some(number) = number.filter(|_| is_promise) else { return };
        if SENT_ON.try_with(|all| all.borrow_mut().push((node, number))).is_err() {
            self.arrived(node, number).await;
        }
    }

    /// Waits for all of these, but not for ever.
    pub(crate) async fn all_arrived(&self, sent_on: Vec<(NodeId, u64)>) {
        join_all(sent_on.into_iter().map(|(node, number)| self.arrived(node, number))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_delivery_sends_on_is_told_to_who_ran_it_and_to_nobody_else() {
        let delivery = |node| async move {
            tokio::task::yield_now().await;
            SENT_ON.with(|all| all.borrow_mut().push((node, 7)));
        };
        let both = futures::future::join(collect(delivery(2)), collect(delivery(3))).await;
        assert_eq!(both, (vec![(2, 7)], vec![(3, 7)]));
        assert!(SENT_ON.try_with(|_| ()).is_err());
    }
}
