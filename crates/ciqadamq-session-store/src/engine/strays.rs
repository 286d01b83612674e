//! Sessions that are in the store and not in use: they left, or they came and wait for a login that has not failed.
//!
//! The node that gives a session away keeps it in its store, marked as leaving, and does not use it. The other one takes it into its own,
//! says so when it is on the disk, and then the first one lets go of it. If nothing is heard of that it is asked for, also
//! after a crash. A node that has answered no never takes it; then the session goes on where it was. Its client need not wait for
//! that: where it logs in meanwhile, and nobody has its session, those are asked that have such ones.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use ciqadamq_core::{MoveTag, Moves, NodeId, UserChange, UserObserver};
use futures::StreamExt as _;
use rmqtt::session::OfflineInfo;
use rmqtt::types::Id;
use rmqtt::utils::timestamp_millis;
use tracing::{debug, info, warn};

use super::keeper::{Keeper, Kept};
use super::plugin::SessionKeeper;
use super::restore::{Adopt, offline_info};
use crate::records::remember;
use crate::{Leaving, Millis, Owner, SessionNo, SessionRecord, SessionState};

/// Whose a session is that is not in use, for who logs in with its client id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// theirs
    Own,
    /// nobody's any more: its owner has lost the right to it, or begins anew under another name
    Nobodys,
    /// somebody else's
    Foreign,
}

/// Tells whose a session is, by its owner and the name of who logs in.
pub type Judge = Arc<dyn Fn(&Owner, Option<&str>) -> Whose + Send + Sync>;

const FOREIGN: &str = "the client id belongs to another user's session";

/// After what time without a word the other node is asked: longer than a login takes that can still take the session.
const ASK_AFTER: Duration = Duration::from_secs(10);
/// Between two looks whether somebody is to be asked.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// So many are settled at a time.
const AT_ONCE: usize = 64;

/// Since when nothing is heard of a session that left before this process began, or whose login is known to have failed.
pub(super) fn long_ago() -> Instant {
    Instant::now().checked_sub(ASK_AFTER).unwrap_or_else(Instant::now)
}

/// The same for one of which something is to be heard at the next look.
fn lately() -> Instant {
    Instant::now().checked_sub(ASK_AFTER.saturating_sub(LOOK_EVERY)).unwrap_or_else(Instant::now)
}

fn tag(id: &Id) -> MoveTag {
    tag_of(id.node_id, &id.client_id, id.create_time)
}

/// What both nodes call a session on its way. Every process has to find the same.
fn tag_of(node: NodeId, client_id: &str, created_at: Millis) -> MoveTag {
    // FNV-1a.
    let bytes = client_id.bytes().chain(created_at.to_le_bytes()).chain(node.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

impl Keeper {
    /// A session of this node was handed to another one.
    pub(super) fn part(&self, kept: &Kept, info: &OfflineInfo, to: NodeId) {
        self.dismiss(&kept.id);
        self.leave(kept.no, info, to);
    }

    fn leave(&self, no: SessionNo, info: &OfflineInfo, to: NodeId) {
        self.store.leave(no, to, tag(&info.id));
        self.strays.insert(no, Instant::now());
    }

    /// Whether a session of another node may be taken.
    pub(super) fn may_take(&self, denied: &VecDeque<MoveTag>, info: &OfflineInfo) -> anyhow::Result<()> {
        anyhow::ensure!(!denied.contains(&tag(&info.id)), "the session stays where it was: this login came too late");
        Ok(())
    }

    /// A session of another node is in this node's store: tells the other one, when that is on the disk, too.
    pub(super) fn taken(&self, no: SessionNo, info: &OfflineInfo) {
        let (from, tag) = (info.id.node_id, tag(&info.id));
        self.store.take(no, from, tag);
        let (commit, client_id, others) = (self.store.so_far(), info.id.client_id.clone(), self.other_moves.clone());
        tokio::spawn(async move {
            // If it fails the other node will ask.
            if commit.done().await.is_ok()
                && let Some(others) = others
            {
                others.settled(from, &client_id, tag).await;
            }
        });
    }

    /// The login that was to take a session of another node has failed, and it is not in this node's store: tells the other one.
    pub(super) fn not_taken(&self, info: &OfflineInfo) {
        let (from, tag, client_id) = (info.id.node_id, tag(&info.id), info.id.client_id.clone());
        if let Some(others) = self.other_moves.clone() {
            tokio::spawn(async move { others.stays(from, &client_id, tag).await });
        }
    }

    /// It is known of a session that no login has taken it. It goes on at once: what is published for it meanwhile is not kept.
    pub(super) fn settle_now(&self, no: SessionNo) {
        self.strays.insert(no, long_ago());
        self.due.notify_one();
    }

    /// The session of this client id, if it is not in use.
    fn find_stray(&self, client_id: &str) -> Option<SessionNo> {
        let no = self.store.find(client_id).filter(|_| self.kept(client_id).is_none())?;
        self.store.record(no).filter(|record| !record.arriving).map(|_| no)
    }

    /// The session that left this node under this tag, if it is here still.
    fn find_leaving(&self, client_id: &str, tag: MoveTag) -> Option<SessionNo> {
        let no = self.store.find(client_id)?;
        self.store.record(no)?.leaving.filter(|leaving| leaving.tag == tag).map(|_| no)
    }

    /// Refuses a login whose client id has a session that is not in use, and somebody else's.
    pub(super) fn refuse_foreign(&self, by: &Id) -> anyhow::Result<()> {
        if self.strays.is_empty() { Ok(()) } else { self.refuse_stray_of_others(by) }
    }

    fn refuse_stray_of_others(&self, by: &Id) -> anyhow::Result<()> {
        let record = self.find_stray(&by.client_id).and_then(|no| self.store.record(no));
        let whose = record.map(|record| (self.whose)(&record.owner, by.username.as_deref()));
        anyhow::ensure!(whose != Some(Whose::Foreign), FOREIGN);
        Ok(())
    }

    /// The session of a client id that is not in use, if it is this login's.
    pub(super) async fn stray(&self, by: &Id) -> Option<(SessionNo, SessionState)> {
        let no = self.find_stray(&by.client_id)?;
        let state = self.store.session(no)?;
        if (self.whose)(&state.record.owner, by.username.as_deref()) != Whose::Own {
            return None;
        }
        // The other node is not asked any more who has it, if it had it once.
        if let (Some(Leaving { to, tag }), Some(others)) = (state.record.leaving, &self.other_moves)
            && others.has_taken(to, tag).await == Some(true)
        {
            return None;
        }
        Some((no, state))
    }

    /// A session that is not in use is over.
    fn let_go(&self, no: SessionNo) {
        self.strays.remove(&no);
        self.store.end(no);
    }
}

impl SessionKeeper {
    /// Gives a session that is not in use away for a login of another node, if there is one; ends it, if that wants none.
    ///
    /// # Errors
    /// If it is somebody else's: then the client id is, too.
    pub async fn give_stray(&self, by: &Id, clean_start: bool) -> anyhow::Result<Option<OfflineInfo>> {
        let Keeper { store, scx, .. } = &*self.keeper;
        self.keeper.refuse_stray_of_others(by)?;
        let Some(stray) = self.keeper.find_stray(&by.client_id) else { return Ok(None) };
        let Some((no, state)) = self.keeper.stray(by).await.filter(|_| !clean_start) else {
            self.keeper.let_go(stray);
            return Ok(None);
        };
        let id = Id::new(scx.node.id(), by.lid, None, None, by.client_id.clone(), by.username.clone());
        let info = offline_info(store, state, id);
        self.keeper.leave(no, &info, by.node_id);
        // After a crash it must be known that it left.
        if let Err(reason) = store.so_far().done().await {
            warn!(client_id = &*by.client_id, %reason, "that a session moved is not on disk yet");
        }
        Ok(Some(info))
    }

    /// Finds out what became of sessions that are not in use, for ever. `adopt` is asked for those that come back.
    pub async fn settle_strays(self: Arc<Self>, adopt: Adopt) {
        loop {
            // Not waiting longer where one is known to have come to nothing.
            drop(tokio::time::timeout(LOOK_EVERY, self.keeper.due.notified()).await);
            let due = self.keeper.strays.iter().filter(|since| since.elapsed() >= ASK_AFTER).map(|since| *since.key());
            // One whose place is held waits for that, and keeps no other waiting.
            let due = futures::stream::iter(due.collect::<Vec<_>>());
            due.for_each_concurrent(AT_ONCE, |no| self.settle(no, &adopt)).await;
        }
    }

    async fn settle(&self, no: SessionNo, adopt: &Adopt) {
        let Keeper { store, strays, other_moves, .. } = &*self.keeper;
        let Some(record) = store.record(no).filter(|record| self.keeper.kept(&record.client_id).is_none()) else {
            // It has ended, or its client has come.
            strays.remove(&no);
            return;
        };
        if record.expires_at().is_some_and(|at| at <= timestamp_millis()) {
            return self.keeper.let_go(no);
        }
        let outcome = match (record.leaving, other_moves) {
            (Some(Leaving { to, tag }), Some(others)) => others.has_taken(to, tag).await,
            // Its login failed: it goes on, and gets what is published for it. One of which only the messages are here cannot.
            (None, _) if !record.connection.is_empty() => Some(false),
            _ => None,
        };
        match outcome {
            Some(true) => self.keeper.let_go(no),
            Some(false) => match self.bring_back(no, &record, adopt).await {
                Ok(true) => drop(strays.remove(&no)),
                Ok(false) => self.keeper.let_go(no),
                Err(error) => {
                    // The login that failed may hold its place for a moment.
                    debug!(no, %error, "session that no login has taken is not back yet");
                    strays.insert(no, lately());
                }
            },
            None => drop(strays.insert(no, Instant::now())),
        }
    }

    /// Goes on with a session that the other node has not taken; `false` if there is a newer one, or nobody has the right to it.
    async fn bring_back(&self, no: SessionNo, record: &SessionRecord, adopt: &Adopt) -> anyhow::Result<bool> {
        let client_id = &record.client_id;
        let others = self.keeper.other_moves.as_ref();
        if let Some(others) = others
            && others.has_session(client_id).await.ok_or_else(|| anyhow::anyhow!("who has it is not known"))?
        {
            warn!(client_id, "session that was to move is out of date: its client has begun another one elsewhere");
            return Ok(false);
        }
        let back = self.restore_contested(no, record, adopt).await?;
        if back {
            self.keeper.store.change(no, |record| record.leaving = None);
            info!(client_id, "session that no login has taken goes on here");
        }
        Ok(back)
    }
}

#[async_trait]
impl Moves for SessionKeeper {
    async fn has_taken(&self, from: NodeId, tag: MoveTag) -> bool {
        let has = {
            // Whoever is about to take it waits here, or this does until it has.
            let mut denied = self.keeper.denied.lock();
            let has = self.keeper.store.has_taken(from, tag);
            if !has {
                remember(&mut denied, tag);
            }
            has
        };
        has && self.keeper.store.so_far().done().await.is_ok()
    }

    fn settled(&self, client_id: &str, tag: MoveTag) {
        if let Some(no) = self.keeper.find_leaving(client_id, tag) {
            self.keeper.let_go(no);
        }
    }

    fn stays(&self, client_id: &str, tag: MoveTag) {
        if let Some(no) = self.keeper.find_leaving(client_id, tag) {
            self.keeper.settle_now(no);
        }
    }

    fn has_strays(&self) -> bool {
        !self.keeper.strays.is_empty()
    }

    fn keeps(&self, client_id: &str) -> bool {
        self.keeper.store.find(client_id).is_some()
    }
}

impl UserObserver for SessionKeeper {
    /// Whose rights have ended has no session that waits for him.
    fn user_changed(&self, change: &UserChange) {
        if self.keeper.strays.is_empty() || change.after.as_ref().is_some_and(|user| user.valid_from != change.revision)
        {
            return;
        }
        let all: Vec<_> = self.keeper.strays.iter().map(|since| *since.key()).collect();
        let is_theirs = |no: &SessionNo| {
            let owner = self.keeper.store.record(*no).map(|record| record.owner);
            owner.is_some_and(|owner| owner.username.as_deref() == Some(change.username.as_str()))
        };
        all.into_iter().filter(is_theirs).for_each(|no| self.keeper.let_go(no));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_of_a_session_is_the_same_in_every_process_and_differs_between_sessions() {
        let phone = tag_of(1, "phone", 1_700_000_000_000);
        assert_eq!(phone, 0xbb1d_da4b_b092_4cd2);
        for other in
            [(1, "phone", 1_700_000_000_001), (2, "phone", 1_700_000_000_000), (1, "phones", 1_700_000_000_000)]
        {
            assert_ne!(tag_of(other.0, other.1, other.2), phone, "{other:?}");
        }
    }
}
