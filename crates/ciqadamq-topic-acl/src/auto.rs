//! Automatic subscription: the server subscribes every client to what it may receive.

use std::sync::Arc;

use async_trait::async_trait;
use ciqadamq_core::{AccessRules, Principals};
use rmqtt::Result;
use rmqtt::codec::types::QoS;
use rmqtt::codec::v5::{RetainHandling, SubscriptionOptions};
use rmqtt::context::ServerContext;
use rmqtt::subscribe::AutoSubscription;
use rmqtt::types::{Id, Subscribe, TopicFilter};

pub(crate) struct OwnTopics {
    pub(crate) scx: ServerContext,
    pub(crate) rules: Arc<AccessRules>,
    pub(crate) principals: Arc<Principals>,
    pub(crate) qos: QoS,
}

#[async_trait]
impl AutoSubscription for OwnTopics {
    fn enable(&self) -> bool {
        true
    }

    async fn subscribes(&self, id: &Id) -> Result<Vec<Subscribe>> {
        let Some(principal) = self.principals.get(&id.client_id) else { return Ok(Vec::new()) };
        let session = { self.scx.extends.shared().await.entry(id.clone()).session() };
        let is_v5 = match session {
            Some(session) => session.protocol().await.is_ok_and(|p| p == 5),
            None => false,
        };
        let filters = self.rules.automatic_filters(&principal.subject());
        filters.into_iter().map(|filter| self.subscribe(&TopicFilter::from(filter), is_v5)).collect()
    }
}

impl OwnTopics {
    /// As a v5 client's own SUBSCRIBE would be: the engine then gives it one copy where filters overlap.
    fn subscribe(&self, filter: &TopicFilter, is_v5: bool) -> Result<Subscribe> {
        if is_v5 {
            let options = SubscriptionOptions {
                qos: self.qos,
                no_local: false,
                retain_as_published: false,
                retain_handling: RetainHandling::AtSubscribeNew,
            };
            Subscribe::from_v5(filter, &options, false, false, None)
        } else {
            Subscribe::from_v3(filter, self.qos, false, false)
        }
    }
}
