//! A session that comes from another node goes on here: what it is owed is in this node's store before its client is let in.
//!
//! It comes with its messages, under the Packet Identifiers that its client knows; and the other node lets go of it when it is here
//! ([`super::strays`]). Until its connection is known it is in the
//! store without one ([`SessionRecord::connection`] is empty). Should the login fail in between, or the process end, it waits there
//! for the client's next login.

use std::num::NonZeroU16;
use std::sync::Arc;

use rmqtt::codec::types::QoS;
use rmqtt::inflight::MomentStatus;
use rmqtt::session::OfflineInfo;
use rmqtt::types::{From, Id, Publish};
use rmqtt::utils::timestamp_millis;
use tracing::{error, info, warn};

use super::codec::{encode_message, encode_options};
use super::keeper::{Keeper, Kept};
use crate::{Owner, Recipient, SessionNo, SessionRecord, Stage};

/// How long a session without a connection is kept, in seconds.
const UNCLAIMED_SECS: u32 = 3600;

impl Keeper {
    /// Puts a session with all it is owed into the store. Not waited for: that is done when the session is set.
    ///
    /// # Errors
    /// If the other node has been told that it is not taken.
    pub(super) async fn inherit(self: &Arc<Self>, by: &Id, info: &mut OfflineInfo) -> anyhow::Result<()> {
        self.listen().await;
        let denied = self.denied.lock();
        self.may_take(&denied, info)?;
        let record = SessionRecord {
            client_id: by.client_id.to_string(),
            owner: Owner { username: by.username.as_ref().map(ToString::to_string), ..Owner::default() },
            created_at: info.created_at,
            disconnected_at: Some(timestamp_millis()),
            expiry_secs: UNCLAIMED_SECS,
            arriving: true,
            ..SessionRecord::default()
        };
        let no = self.store.begin(record);
        for (filter, options) in &info.subscriptions {
            match encode_options(options) {
                Ok(options) => drop(self.store.subscribe(no, filter, &options)),
                Err(reason) => error!(id = %by, %reason, "subscription is not kept"),
            }
        }
        for message in &mut info.inflight_messages {
            let stage = if message.status == MomentStatus::UnComplete { Stage::Received } else { Stage::Sent };
            self.inherit_message(no, &message.from, &mut message.publish, stage);
        }
        for (from, publish) in &mut info.offline_messages {
            // Some were sent, and wait to be sent again.
            let stage = if publish.dup && publish.packet_id.is_some() { Stage::Sent } else { Stage::Queued };
            self.inherit_message(no, from, publish, stage);
        }
        // What comes for it from here on is committed for it, although it is not set yet.
        self.insert(Kept { no, id: by.clone(), live: Arc::default() });
        self.taken(no, info);
        drop(denied);
        info!(
            client_id = &*by.client_id,
            from = info.id.node_id,
            in_flight = info.inflight_messages.len(),
            queued = info.offline_messages.len(),
            "session moved here"
        );
        Ok(())
    }

    fn inherit_message(&self, no: SessionNo, from: &From, publish: &mut Publish, stage: Stage) {
        // It was of the other node's store.
        publish.delay_interval = None;
        if publish.qos == QoS::AtMostOnce {
            return;
        }
        let recipient =
            Recipient { session: no, qos: publish.qos.value(), retain: publish.retain, subscription_ids: None };
        let sent = publish.packet_id.map(NonZeroU16::get).filter(|_| stage != Stage::Queued);
        let kept = encode_message(from, publish).map_err(|e| e.to_string()).and_then(|bytes| {
            let inherited = self.store.inherit(&bytes, self.expires_at(publish), recipient, sent, stage);
            inherited.map_err(|e| e.to_string())
        });
        match kept {
            Ok(number) => publish.delay_interval = number.map(|number| number as u32),
            // In memory it goes on.
            Err(reason) => {
                warn!(topic = &*publish.topic, reason, "message of a session that moved is not kept on disk")
            }
        }
    }
}
