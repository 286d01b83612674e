//! How long a Retained Message, a session after its DISCONNECT, and a silent connection are kept.
//!
//! The engine asks a *fitter* for these intervals, and its own answers differ from the standard:
//!
//! * A message without an interval gets the listener's default when it is stored. For a message on its way that is what we
//!   want; a Retained Message has no end unless its publisher gave it one (MQTT 5.0 §3.3.1.3).
//! * A DISCONNECT may change the Session Expiry Interval, but a session that was to end with its connection does (MQTT 5.0
//!   §3.14.2.2.2). The engine has no way to answer that with 0x82 here; the interval is ignored.
//! * A client may be silent for one and a half times its Keep Alive (MQTT-3.1.2-22); the engine adds three seconds to a short one.

use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use std::time::Duration;

use rmqtt::Result;
use rmqtt::fitter::{Fitter, FitterManager};
use rmqtt::types::{ConnectInfo, Disconnect, FitterType, Id, ListenerConfig};

/// "No end" for a storage that knows only ends.
const FOR_EVER: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

pub(crate) struct AsTheStandardSays(pub(crate) Box<dyn FitterManager>);

impl FitterManager for AsTheStandardSays {
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
        let engines = self.0.keep_alive(keep_alive)?;
        // In whole seconds, so one of 1 s has 2.
        Ok(engines.min(keep_alive.saturating_add(keep_alive.div_ceil(2))))
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
        let from_connect = self.0.session_expiry_interval(None);
        if from_connect.is_zero() { from_connect } else { self.0.session_expiry_interval(d) }
    }
    fn max_client_topic_aliases(&self) -> u16 {
        self.0.max_client_topic_aliases()
    }
    fn max_server_topic_aliases(&self) -> u16 {
        self.0.max_server_topic_aliases()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rmqtt::codec::v5;
    use rmqtt::fitter::DefaultFitterManager;
    use rmqtt::net::Builder;
    use rmqtt::types::ClientId;

    fn fitter(session_expiry_secs: u32, max_session_expiry: Duration) -> FitterType {
        let id = Id::from(1, ClientId::from("phone"));
        let connect = v5::Connect { session_expiry_interval_secs: session_expiry_secs, ..Default::default() };
        let connect = Arc::new(ConnectInfo::V5(id.clone(), Box::new(connect)));
        let listener = Builder::new().max_session_expiry_interval(max_session_expiry);
        AsTheStandardSays(Box::new(DefaultFitterManager)).create(connect, id, Arc::new(listener))
    }

    fn disconnect(secs: Option<u32>) -> Disconnect {
        Disconnect::V5(v5::Disconnect { session_expiry_interval_secs: secs, ..Default::default() })
    }

    #[test]
    fn a_disconnect_changes_the_end_of_a_session_but_for_one_that_ends_with_its_connection() {
        let max = Duration::from_secs(100);
        let ends = |at_connect, at_disconnect: Option<u32>| {
            let d = disconnect(at_disconnect);
            fitter(at_connect, max).session_expiry_interval(Some(&d)).as_secs()
        };
        assert_eq!([ends(0, Some(600)), ends(0, Some(u32::MAX)), ends(0, Some(0)), ends(0, None)], [0; 4]);
        assert_eq!([ends(30, None), ends(30, Some(60)), ends(30, Some(600)), ends(30, Some(0))], [30, 60, 100, 0]);
        assert_eq!(fitter(30, max).session_expiry_interval(None).as_secs(), 30);
    }

    #[test]
    fn a_client_may_be_silent_for_one_and_a_half_times_its_keep_alive() {
        let fitter = fitter(0, Duration::ZERO);
        for (secs, silent) in [(0, 0), (1, 2), (2, 3), (3, 5), (5, 8), (6, 9), (60, 90), (u16::MAX, u16::MAX)] {
            let mut told = secs;
            assert_eq!((fitter.keep_alive(&mut told).unwrap(), told), (silent, secs), "{secs} s");
        }
    }
}
