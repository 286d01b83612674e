//! The engine's window, for a client that takes fewer messages at a time than its session has exchanges to end.
//!
//! All PUBRELs that are owed are due when the client is back (MQTT-4.4.0-1), however many, and stand in the window beside the
//! messages. The engine subtracts their number from the client's Receive Maximum without a look whether there is so much of it: what is
//! left is below zero, and counts as very much. So the window gets room for them, and loses it again as they end. No message is
//! sent while it is full; so there are never more on their way than the Receive Maximum.

use std::collections::HashSet;
use std::num::NonZeroU16;
use std::time::Duration;

use parking_lot::Mutex;
use rmqtt::inflight::{MomentStatus, OutInflight};
use rmqtt::session::{OfflineInfo, Session, SessionLike};

/// With more than so many open, room is taken away in steps: each takes all out of the window and puts it back.
const EXACT: usize = 1024;

/// Puts the PUBRELs that are owed in front of the messages, so that all of them have their place before one of these is sent; gives
/// their Packet Identifiers.
pub(super) fn releases_first(info: &mut OfflineInfo) -> HashSet<u16> {
    let is_release = |status| status == MomentStatus::UnComplete;
    // Each kind keeps its order.
    info.inflight_messages.sort_by_key(|message| !is_release(message.status));
    let releases = info.inflight_messages.iter().take_while(|message| is_release(message.status));
    releases.filter_map(|message| message.publish.packet_id).map(NonZeroU16::get).collect()
}

/// The window of one connection, while it is larger than its client's Receive Maximum.
#[derive(Default)]
pub(super) struct Window(Mutex<Option<Box<Wide>>>);

#[derive(Debug)]
struct Wide {
    receive_maximum: usize,
    room: usize,
    /// of the PUBRELs that have not been answered
    releases: HashSet<u16>,
}

impl Window {
    /// Makes room for PUBRELs, if there is not enough. Before the session's task begins.
    pub(super) async fn widen(&self, session: &Session, releases: HashSet<u16>) {
        let receive_maximum = usize::from(session.fitter.max_inflight().get());
        if releases.len() <= receive_maximum {
            return;
        }
        let room = releases.len();
        resize(&mut *session.out_inflight().write().await, room, &***session);
        *self.0.lock() = Some(Box::new(Wide { receive_maximum, room, releases }));
    }

    pub(super) fn is_wide(&self) -> bool {
        self.0.lock().is_some()
    }

    /// An exchange has ended.
    pub(super) fn ended(&self, packet_id: u16) {
        if let Some(wide) = &mut *self.0.lock() {
            wide.releases.remove(&packet_id);
        }
    }

    /// Takes room away that is not needed any more, before the engine looks whether there is some.
    pub(super) async fn narrow(&self, session: &dyn SessionLike) {
        let window = &mut *session.out_inflight().write().await;
        let mut wide = self.0.lock();
        if let Some(room) = wide.as_mut().and_then(|wide| wide.narrower(window.len())) {
            resize(window, room, session);
        }
        if wide.as_ref().is_some_and(|wide| wide.room <= wide.receive_maximum) {
            *wide = None;
        }
    }
}

impl Wide {
    /// The room that is needed while so many are open, if it is to be changed.
    fn narrower(&mut self, open: usize) -> Option<usize> {
        // Some may be still on their way into the window.
        let needed = self.receive_maximum.max(self.releases.len()).max(open);
        let tolerated = if needed > self.receive_maximum { needed / EXACT } else { 0 };
        if self.room <= needed + tolerated {
            return None;
        }
        self.room = needed;
        Some(needed)
    }
}

/// Gives the engine's window this room.
fn resize(window: &mut OutInflight, room: usize, session: &dyn SessionLike) {
    let open = window.to_inflight_messages();
    *window = empty(room, session);
    for message in open {
        window.push_back(message);
    }
}

/// A window as the engine makes it.
fn empty(room: usize, session: &dyn SessionLike) -> OutInflight {
    let config = session.listen_cfg();
    let millis = |interval: Duration| i64::try_from(interval.as_millis()).unwrap_or(i64::MAX);
    let (retry, expiry) = (millis(config.message_retry_interval), millis(config.message_expiry_interval));
    let (pushed, popped) = (session.context().clone(), session.context().clone());
    OutInflight::new(room, retry, expiry)
        .on_push(move || pushed.stats.out_inflights.inc())
        .on_pop(move || popped.stats.out_inflights.dec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide(receive_maximum: usize, releases: u16) -> Wide {
        Wide { receive_maximum, room: releases.into(), releases: (1..=releases).collect() }
    }

    #[test]
    fn a_window_shrinks_with_the_exchanges_that_end_down_to_the_receive_maximum() {
        let mut wide = wide(3, 6);
        // Three are in the window, and three on their way into it.
        assert_eq!(wide.narrower(3), None);
        for id in 1..=4 {
            wide.releases.remove(&id);
            let needed = (6 - usize::from(id)).max(3);
            let before = wide.room;
            assert_eq!(wide.narrower(6 - usize::from(id)), (needed < before).then_some(needed), "{id}");
        }
    }

    #[test]
    fn a_large_window_shrinks_in_steps() {
        let mut wide = wide(3, 3 * EXACT as u16);
        for id in 1..=2 {
            wide.releases.remove(&id);
            assert_eq!(wide.narrower(wide.releases.len()), None, "{id}");
        }
        wide.releases.remove(&3);
        assert_eq!(wide.narrower(wide.releases.len()), Some(3 * EXACT - 3));
        wide.releases.clear();
        wide.room = 4;
        assert_eq!(wide.narrower(0), Some(3));
    }
}
