//! Retained Messages that a SUBSCRIBE asked for.
//!
//! The engine loads what matches the Topic Filter and gives each message to the session without a word about the subscription
//! it is for. It matters twice: a Shared Subscription gets none (MQTT 5.0 §4.8.2), and any other learns its Subscription
//! Identifier (§3.3.2.3.8). The engine does both in one task, so this task is told for which filter it is at work.

use rmqtt::session::Session;
use rmqtt::types::{Publish, TopicFilter};

tokio::task_local! {
    static FILTER: TopicFilter;
}

/// What is published by `loading` was retained, and is for the subscription of `filter`.
pub(crate) async fn with<T>(filter: TopicFilter, loading: impl Future<Output = T>) -> T {
    FILTER.scope(filter, loading).await
}

/// A message as the session gets it; `None` if it does not. Any other than a Retained Message that was asked for stays as it is.
pub(crate) async fn addressed(session: impl FnOnce() -> Option<Session>, mut publish: Publish) -> Option<Publish> {
    let Ok(filter) = FILTER.try_with(TopicFilter::clone) else { return Some(publish) };
    // Unsure, or unsubscribed meanwhile: as the engine has it.
    let Some(session) = session() else { return Some(publish) };
    let Ok(subscriptions) = session.subscriptions().await else { return Some(publish) };
    let subscriptions = subscriptions.read().await;
    let Some(options) = subscriptions.get(&filter) else { return Some(publish) };
    if options.has_shared_group() {
        return None;
    }
    if let Some(id) = options.subscription_identifier() {
        publish.properties.get_or_insert_default().subscription_ids = vec![id];
    }
    Some(publish)
}
