//! Routes that have outlived their session.
//!
//! A route names a node and a client id, not a session. When a session ends, the cluster removes its routes a moment later,
//! or seconds later where a leader has to be elected first. Meanwhile somebody else may have a session with that client
//! id on that node, and must not get what is for the one before. So a node that has a session delivers to it what it has
//! subscribed, whatever the route says.
//!
//! A session that is being taken over is not asked: its subscriptions are on their way. What waits for it is compared with them
//! when they have arrived.

use ciqadamq_core::filter_matches;
use dashmap::{DashMap, Entry as Place};
use futures::FutureExt as _;
use rmqtt::shared::Entry;
use rmqtt::types::{ClientId, From, Publish, SessionSubs, SubRelation, SubRelations, Subscriptions, TopicFilter};

use crate::cluster::Cluster;
use crate::takeover::{Takeovers, Way};

/// What the sessions of this node have subscribed. Bounded by their number.
#[derive(Default)]
pub(crate) struct Subscribed(DashMap<ClientId, SessionSubs>);

impl Subscribed {
    /// A session was set or removed: takes note of the one that is there now.
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

    /// Whether there is a session with this subscription. Yes, if its subscriptions are just being changed.
    pub(crate) fn has(&self, client_id: &ClientId, filter: &TopicFilter) -> bool {
        self.of(client_id).is_some_and(|subscribed| subscribed.try_read().map_or(true, |all| all.contains_key(filter)))
    }

    fn of(&self, client_id: &ClientId) -> Option<SessionSubs> {
        self.0.get(client_id).map(|subscriptions| subscriptions.clone())
    }

    /// Those of the routes to this node that do not lead to somebody else's session.
    async fn fresh(&self, takeovers: &Takeovers, topic: &str, relations: SubRelations) -> SubRelations {
        // As long as this is held no session is taken over whose way is straight, and gives its subscriptions away.
        let _delivery = takeovers.delivering().await;
        let mut fresh = SubRelations::with_capacity(relations.len());
        for relation in relations {
            let is_moving = !takeovers.is_idle() && takeovers.way(&relation.1) != Way::Straight;
            if is_moving || self.is_subscribed(topic, &relation).await {
                fresh.push(relation);
            }
        }
        fresh
    }

    async fn is_subscribed(&self, topic: &str, (filter, client_id, ..): &SubRelation) -> bool {
        // Without a session nobody gets it.
        let Some(subscribed) = self.of(client_id) else { return true };
        let subscribed = subscribed.read().await;
        // Of several filters that match the router names one.
        subscribed.contains_key(filter) || subscribed.keys().any(|filter| filter_matches(filter, topic))
    }
}

impl Cluster {
    /// Those of the routes to this node that do not lead to somebody else's session.
    pub(crate) async fn without_stale(&self, topic: &str, relations: SubRelations) -> SubRelations {
        let count = relations.len();
        let fresh = self.subscribed.fresh(&self.takeovers, topic, relations).await;
        self.metrics.stale.inc_by((count - fresh.len()) as u64);
        fresh
    }
}

/// Those of the messages held for a session that it has subscribed, or that are for nobody else.
pub(crate) fn wanted(
    held: Vec<(From, Publish)>,
    subscribed: &Subscriptions,
) -> impl Iterator<Item = (From, Publish)> + use<'_> {
    held.into_iter().filter(|(_, publish)| {
        publish.target_clientid.is_some() || subscribed.iter().any(|(filter, _)| filter_matches(filter, &publish.topic))
    })
}

#[cfg(test)]
mod tests {
    use rmqtt::types::{SessionSubMap, SubscriptionOptions};

    use super::*;

    /// A session of `dev` that has subscribed these.
    fn subscribed(filters: &[&'static str]) -> Subscribed {
        let filters = filters.iter().map(|filter| (TopicFilter::from(*filter), SubscriptionOptions::default()));
        let all = Subscribed::default();
        all.0.insert(ClientId::from_static("dev"), SessionSubs::from(filters.collect::<SessionSubMap>()));
        all
    }

    fn route(filter: &'static str, client_id: &'static str) -> SubRelation {
        let (filter, client_id) = (TopicFilter::from(filter), ClientId::from_static(client_id));
        (filter, client_id, SubscriptionOptions::default(), None, None)
    }

    #[tokio::test]
    async fn the_route_of_an_earlier_session_does_not_lead_to_somebody_else() {
        let (all, takeovers) = (subscribed(&["chat/ub/#", "fanout/#"]), Takeovers::default());
        let fresh = |topic, route| all.fresh(&takeovers, topic, vec![route]);
        assert!(fresh("chat/ua/x", route("chat/ua/#", "dev")).await.is_empty());
        assert_eq!(fresh("chat/ub/x", route("chat/ub/#", "dev")).await.len(), 1);
        // The router names the filter of the one before, and the one who is there has another that matches.
        assert_eq!(fresh("fanout/x", route("fanout/x", "dev")).await.len(), 1);
        assert_eq!(fresh("chat/ua/x", route("chat/ua/#", "nobody")).await.len(), 1, "another part says so");
    }

    #[tokio::test]
    async fn a_session_that_is_taken_over_is_asked_when_its_subscriptions_are_there() {
        let (all, takeovers, id) = (subscribed(&[]), Takeovers::default(), ClientId::from_static("dev"));
        takeovers.divert(&id).await;
        assert_eq!(all.fresh(&takeovers, "chat/ub/x", vec![route("chat/ub/#", "dev")]).await.len(), 1);
        let held = ["chat/ub/x", "chat/ua/x"].map(|topic| crate::takeover::test_message(&id, topic));
        let subscribed = vec![(TopicFilter::from("chat/ub/#"), SubscriptionOptions::default())];
        let wanted: Vec<_> = wanted(held.into(), &subscribed).map(|(_, publish)| publish.topic.to_string()).collect();
        assert_eq!(wanted, ["chat/ub/x"]);
    }
}
