//! How long a retained message is kept.
//!
//! The engine asks a *fitter* for the interval when a message is stored, and gives every message without one the
//! listener's default. For a message on its way that is what we want; a Retained Message has no end unless its
//! publisher gave it one (MQTT 5.0 §3.3.1.3).

use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use std::time::Duration;

use rmqtt::Result;
use rmqtt::fitter::{Fitter, FitterManager};
use rmqtt::types::{ConnectInfo, Disconnect, FitterType, Id, ListenerConfig};

/// "No end" for a storage that knows only ends.
const FOR_EVER: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

pub(crate) struct RetainedWithoutEnd(pub(crate) Box<dyn FitterManager>);

impl FitterManager for RetainedWithoutEnd {
    fn create(&self, conn_info: Arc<ConnectInfo>, id: Id, cfg: ListenerConfig) -> FitterType {
        Arc::new(Fitted(self.0.create(conn_info, id, cfg)))
    }
}

struct Fitted(FitterType);

impl Fitter for Fitted {
    fn message_expiry_interval(&self, publish: &rmqtt::codec::types::Publish) -> Duration {
        let interval = publish.properties.as_ref().and_then(|p| p.message_expiry_interval);
        if publish.retain && interval.is_none() { FOR_EVER } else { self.0.message_expiry_interval(publish) }
    }

    fn keep_alive(&self, keep_alive: &mut u16) -> Result<u16> {
        self.0.keep_alive(keep_alive)
    }
    fn max_mqueue_len(&self) -> usize {
        self.0.max_mqueue_len()
    }
    fn mqueue_rate_limit(&self) -> (NonZeroU32, Duration) {
        self.0.mqueue_rate_limit()
    }
    fn max_inflight(&self) -> NonZeroU16 {
        self.0.max_inflight()
    }
    fn session_expiry_interval(&self, d: Option<&Disconnect>) -> Duration {
        self.0.session_expiry_interval(d)
    }
    fn max_client_topic_aliases(&self) -> u16 {
        self.0.max_client_topic_aliases()
    }
    fn max_server_topic_aliases(&self) -> u16 {
        self.0.max_server_topic_aliases()
    }
}
