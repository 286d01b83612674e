//! A session that comes from another node goes on here: what it is owed is in this node's store before its client is let in.
//!
//! It comes with its messages, under the Packet Identifiers that its client knows; and the other node lets go of it when it is here
//! ([`super::strays`]). If this node's store does not take all of it the login fails, and it stays where it was. Until its connection is
//! known it is in the store without one ([`SessionRecord::connection`] is empty). Should the login fail in between, or the process end, it waits there
//! for the client's next login.

use std::num::NonZeroU16;
use std::sync::Arc;

use anyhow::Context as _;
use rmqtt::codec::types::QoS;
use rmqtt::inflight::MomentStatus;
use rmqtt::session::OfflineInfo;
use rmqtt::types::{From, Id, Publish};
use rmqtt::utils::timestamp_millis;
use tracing::{error, info, warn};

use super::codec::{encode_message, encode_options};
use super::keeper::{Keeper, Kept};
use crate::{Owner, Recipient, Refusal, SessionNo, SessionRecord, Stage};

/// How long a session without a connection is kept, in seconds.
const UNCLAIMED_SECS: u32 = 3600;

impl Keeper {
    /// Puts a session with all it is owed into the store, and waits until it is on the disk: before that the other node is not to let
    /// go of it.
    ///
    /// # Errors
    /// If the other node has been told that it is not taken, or this one's store does not take all of it.
    pub(super) async fn inherit(self: &Arc<Self>, by: &Id, info: &mut OfflineInfo) -> anyhow::Result<()> {
        self.listen().await;
        self.may_take(&self.denied.lock(), info)?;
        let no = self.begin_arriving(by, info);
        let stored = match self.inherit_all(no, info) {
            Ok(()) => self.store.so_far().done().await,
            refused => refused,
        };
        let taken = stored.context("the session cannot be kept on this node").and_then(|()| self.take(no, info));
        if let Err(error) = taken {
            let reason = format!("{error:#}");
            warn!(client_id = &*by.client_id, from = info.id.node_id, reason, "session stays where it was");
            self.dismiss(by);
            self.store.end(no);
            self.not_taken(info);
            return Err(error);
        }
        info!(
            client_id = &*by.client_id,
            from = info.id.node_id,
            in_flight = info.inflight_messages.len(),
            queued = info.offline_messages.len(),
            "session moved here"
        );
        Ok(())
    }

    /// Begins a session of another node, of which nothing is here yet. What comes for it from here on is committed for it, although it
    /// is not set yet.
    fn begin_arriving(&self, by: &Id, info: &OfflineInfo) -> SessionNo {
        let no = self.store.begin(SessionRecord {
            client_id: by.client_id.to_string(),
            owner: Owner { username: by.username.as_ref().map(ToString::to_string), ..Owner::default() },
            created_at: info.created_at,
            disconnected_at: Some(timestamp_millis()),
            expiry_secs: UNCLAIMED_SECS,
            arriving: true,
            ..SessionRecord::default()
        });
        self.insert(Kept { no, id: by.clone(), live: Arc::default() });
        no
    }

    /// All of it is here, unless the other node has been told meanwhile that it is not.
    fn take(&self, no: SessionNo, info: &OfflineInfo) -> anyhow::Result<()> {
        let denied = self.denied.lock();
        self.may_take(&denied, info)?;
        self.taken(no, info);
        Ok(())
    }

    fn inherit_all(&self, no: SessionNo, info: &mut OfflineInfo) -> Result<(), Refusal> {
        for (filter, options) in &info.subscriptions {
            match encode_options(options) {
                // All is waited for at the end.
                Ok(options) => drop(self.store.subscribe(no, filter, &options)),
                Err(reason) => error!(client_id = &*info.id.client_id, %reason, "subscription is not kept"),
            }
        }
        for message in &mut info.inflight_messages {
            let stage = if message.status == MomentStatus::UnComplete { Stage::Received } else { Stage::Sent };
            self.inherit_message(no, &message.from, &mut message.publish, stage)?;
        }
        for (from, publish) in &mut info.offline_messages {
            // Some were sent, and wait to be sent again.
            let stage = if publish.dup && publish.packet_id.is_some() { Stage::Sent } else { Stage::Queued };
            self.inherit_message(no, from, publish, stage)?;
        }
        Ok(())
    }

    fn inherit_message(&self, no: SessionNo, from: &From, publish: &mut Publish, stage: Stage) -> Result<(), Refusal> {
        // It was of the other node's store.
        publish.delay_interval = None;
        if publish.qos == QoS::AtMostOnce {
            return Ok(());
        }
        let message = match encode_message(from, publish) {
            Ok(message) => message,
            Err(reason) => {
                // In memory it goes on.
                error!(topic = &*publish.topic, %reason, "message of a session that moved is not kept on disk");
                return Ok(());
            }
        };
        let recipient =
            Recipient { session: no, qos: publish.qos.value(), retain: publish.retain, subscription_ids: None };
        let sent = publish.packet_id.map(NonZeroU16::get).filter(|_| stage != Stage::Queued);
        let number = self.store.inherit(&message, self.expires_at(publish), recipient, sent, stage)?;
        publish.delay_interval = number.map(|number| number as u32);
        Ok(())
    }
}
