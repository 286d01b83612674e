//! Routes that have outlived their session.
//!
//! A route names a node and a client id, not a session. When a session ends, the cluster removes its routes a moment later,
//! or seconds later where a leader has to be elected first. Meanwhile somebody else may have a session with that client
//! id on that node, and must not get what is for the one before. So a node that has a session delivers to it what it has
//! subscribed, whatever the route says.
//!
//! A session that is being taken over has subscribed what it had before; where that is still on its way from another node, what
//! arrives is held, and judged when it has come ([`crate::takeover`]).

use ciqadamq_core::filter_matches;
use dashmap::{DashMap, Entry as Place};
use futures::FutureExt as _;
use rmqtt::shared::Entry;
use rmqtt::types::{ClientId, Publish, SessionSubs, SubRelation, SubRelations, TopicFilter};

use crate::cluster::Cluster;
use crate::takeover::Takeovers;

/// What the sessions of this node have subscribed. Bounded by their number.
#[derive(Default)]
pub(crate) struct Subscribed(DashMap<ClientId, SessionSubs>);

impl Subscribed {
    /// A session is about to be set.
    pub(crate) fn expect(&self, client_id: &ClientId, subscriptions: SessionSubs) {
        self.0.insert(client_id.clone(), subscriptions);
    }

    /// A session was set or removed, or was not: takes note of the one that is there now.
    pub(crate) fn note(&self, entry: &dyn Entry) {
        let client_id = entry.id().client_id.clone();
        // The place is held while the engine is asked, so that the last one to take note sees what is there at last.
        let place = self.0.entry(client_id);
        // The engine has them at hand, and waits for nothing.
        let subscriptions = entry.session().and_then(|session| session.subscriptions().now_or_never()?.ok());
        match (place, subscriptions) {
            (place, Some(subscriptions)) => drop(place.insert(subscriptions)),
            (Place::Occupied(place), None) => drop(place.remove()),
            (Place::Vacant(_), None) => {}
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<(ClientId, SessionSubs)> {
        self.0.iter().map(|entry| (entry.key().clone(), entry.value().clone())).collect()
    }

    /// Whether there is a session with this subscription. Yes, if its subscriptions are just being changed.
    pub(crate) fn has(&self, client_id: &ClientId, filter: &TopicFilter) -> bool {
        self.of(client_id).is_some_and(|subscribed| subscribed.try_read().map_or(true, |all| all.contains_key(filter)))
    }

    fn of(&self, client_id: &ClientId) -> Option<SessionSubs> {
        self.0.get(client_id).map(|subscriptions| subscriptions.clone())
    }

    /// Whether a route leads to a session that has subscribed what is published.
    async fn want(&self, takeovers: &Takeovers, topic: &str, (filter, client_id, ..): &SubRelation) -> bool {
        if !takeovers.is_idle()
            && let Some(is_wanted) = takeovers.is_wanted(client_id, filter, topic)
        {
            return is_wanted;
        }
        let Some(subscribed) = self.of(client_id) else { return false };
        let subscribed = subscribed.read().await;
        // Of several filters that match the router names one.
        subscribed.contains_key(filter) || subscribed.keys().any(|filter| filter_matches(filter, topic))
    }
}

impl Cluster {
    /// Those of the routes to this node that do not lead to somebody else's session, or to none; and the others.
    pub(crate) async fn without_stale(&self, topic: &str, relations: SubRelations) -> (SubRelations, SubRelations) {
        // As long as this is held no session is taken over whose way is straight, and gives its subscriptions away.
        let _delivery = self.takeovers.delivering().await;
        let (mut fresh, mut stale) = (SubRelations::with_capacity(relations.len()), SubRelations::new());
        for relation in relations {
            if self.subscribed.want(&self.takeovers, topic, &relation).await {
                fresh.push(relation);
            } else {
                self.metrics.stale.inc();
                stale.push(relation);
            }
        }
        (fresh, stale)
    }

    /// Whether a message may be delivered. A delivery must have begun (see [`Takeovers::delivering`]).
    pub(crate) async fn is_fresh(&self, publish: &Publish, relation: &SubRelation) -> bool {
        let is_fresh =
            publish.target_clientid.is_some() || self.subscribed.want(&self.takeovers, &publish.topic, relation).await;
        if !is_fresh {
            self.metrics.stale.inc();
        }
        is_fresh
    }
}

#[cfg(test)]
mod tests {
    use rmqtt::types::{SessionSubMap, SubscriptionOptions};

    use super::*;

    #[tokio::test]
    async fn the_route_of_an_earlier_session_does_not_lead_to_somebody_else() {
        let filters = ["chat/ub/#", "fanout/#"].map(|filter| (filter.into(), SubscriptionOptions::default()));
        let (all, takeovers) = (Subscribed::default(), Takeovers::default());
        let id = ClientId::from_static("dev");
        all.expect(&id, SessionSubs::from(filters.into_iter().collect::<SessionSubMap>()));
        let want = async |topic: &str, filter: &'static str, client_id: &'static str| {
            let (filter, client_id) = (TopicFilter::from(filter), ClientId::from_static(client_id));
            all.want(&takeovers, topic, &(filter, client_id, SubscriptionOptions::default(), None, None)).await
        };
        assert!(!want("chat/ua/x", "chat/ua/#", "dev").await);
        assert!(want("chat/ub/x", "chat/ub/#", "dev").await);
        // The router names the filter of the one before, and the one who is there has another that matches.
        assert!(want("fanout/x", "fanout/x", "dev").await);
        assert!(!want("chat/ub/x", "chat/ub/#", "nobody").await);
        // While a session is on its way here, nobody knows yet.
        takeovers.expect(&id);
        assert!(want("chat/ua/x", "chat/ua/#", "dev").await);
    }
}
