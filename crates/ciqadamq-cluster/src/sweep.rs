//! Routes and sessions that do not fit together any more: after a node died, was thought dead, or came back.
//!
//! | what | who cleans up |
//! | --- | --- |
//! | routes to sessions of a dead node | the smallest living node |
//! | routes to sessions that this node does not have (any more), such as those of an earlier process | this node |
//! | routes of this node's sessions that somebody removed, holding it for dead | this node |
//! | a session here whose client id another node took over meanwhile | this node ends it |
//!
//! All of it goes through all routes or sessions. So it is done when something has happened, and for a while after that, and else
//! once a minute.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ciqadamq_core::{NodeId, OtherMoves as _};
use futures::stream::{self, StreamExt as _};
use rmqtt::session::Session;
use rmqtt::types::{ClientId, Id, Message, SessionStatus, TopicFilter};
use tracing::{info, warn};

use crate::cluster::Cluster;
use crate::takeover::Way;
use crate::watch::Verdict;

/// Between two looks whether something has happened.
const EVERY: Duration = Duration::from_secs(1);
/// How long a node is dead before its routes go: one that was stopped for a moment, or is restarted, keeps them, and gets
/// what was sent meanwhile.
const DEAD_FOR: Duration = Duration::from_secs(6);
/// Routes removed in one go. Each is a proposal.
const AT_ONCE: usize = 2_000;
/// Sessions whose routes are proposed side by side: one proposal waits for the batch that it travels in.
const RESTORED_AT_ONCE: usize = 64;
/// How long a session's task may take to stop.
const STOP_WAIT: Duration = Duration::from_secs(5);
/// Between two sweeps without a reason.
const AUDIT_EVERY: Duration = Duration::from_secs(60);
/// Between two sweeps after something has happened, for as long as what others began then may still have its effect: the engine
/// tries for a minute to remove a route.
const AUDIT_SOON: Duration = Duration::from_secs(5);
const AFTERMATH: Duration = Duration::from_secs(70);

type RouteOf = (TopicFilter, Id);

/// What is to be done.
struct Sweep {
    /// When everything was swept last. `None`: it is due.
    audited: Option<Instant>,
    /// When the cluster did not work last, or this node was thought dead: what was given away then is not known.
    doubted: Instant,
    /// Nodes whose routes are gone, as long as they are dead.
    cleared: HashSet<NodeId>,
    /// Routes to sessions that this node does not have, at the first sight.
    suspects: HashSet<RouteOf>,
}

impl Sweep {
    fn doubt(&mut self) {
        (self.doubted, self.audited) = (Instant::now(), None);
    }

    fn is_due(&self) -> bool {
        let every = if self.doubted.elapsed() < AFTERMATH { AUDIT_SOON } else { AUDIT_EVERY };
        self.audited.is_none_or(|at| at.elapsed() >= every)
    }
}

impl Cluster {
    /// Cleans up, for ever.
    pub(crate) async fn sweep(self: Arc<Self>) {
        let (cleared, suspects) = (HashSet::new(), HashSet::new());
        let mut sweep = Sweep { audited: None, doubted: Instant::now(), cleared, suspects };
        loop {
            tokio::time::sleep(EVERY).await;
            if !self.serves() {
                continue;
            }
            if !matches!(self.state(), Verdict::Works { .. }) {
                // Nothing can be changed now.
                sweep.doubt();
                continue;
            }
            self.sweep_once(&mut sweep).await;
        }
    }

    async fn sweep_once(&self, sweep: &mut Sweep) {
        let is_due = sweep.is_due();
        if is_due {
            sweep.cleared.clear();
        }
        self.remove_dead(&mut sweep.cleared).await;
        if self.liveness.was_thought_dead() {
            // Others may still be removing its routes.
            sweep.doubt();
            return;
        }
        if is_due {
            self.audit().await;
            sweep.audited = Some(Instant::now());
        } else if sweep.suspects.is_empty() {
            return;
        }
        sweep.suspects = self.remove_own_orphans(std::mem::take(&mut sweep.suspects)).await;
    }

    /// Routes to sessions of nodes that have been dead for a while.
    async fn remove_dead(&self, cleared: &mut HashSet<NodeId>) {
        let dead = self.liveness.dead();
        cleared.retain(|node| dead.contains(node));
        if !self.liveness.is_first_alive() {
            return;
        }
        let is_long_dead = |node: &NodeId| self.liveness.dead_for(*node).is_some_and(|dead_for| dead_for >= DEAD_FOR);
        let dead: HashSet<NodeId> =
            dead.into_iter().filter(|node| is_long_dead(node) && !cleared.contains(node)).collect();
        if dead.is_empty() {
            return;
        }
        let routes = self.routes_where(|_, id| dead.contains(&id.node_id)).await;
        // Until none is left: a removal takes its time, and may fail.
        if routes.is_empty() {
            cleared.extend(dead);
        }
        self.remove_routes(routes, "node is dead").await;
    }

    /// At most [`AT_ONCE`].
    async fn routes_where(&self, wanted: impl Fn(&TopicFilter, &Id) -> bool) -> Vec<RouteOf> {
        let router = self.scx.extends.router().await;
        let mut found = Vec::new();
        // Nothing is awaited in here: the iterator holds a lock of the engine's map.
        for entry in router.relations() {
            let ids = entry.value().values().map(|(id, _)| id).filter(|id| wanted(entry.key(), id));
            let room = AT_ONCE - found.len();
            found.extend(ids.take(room).map(|id| (entry.key().clone(), id.clone())));
            if found.len() == AT_ONCE {
                break;
            }
        }
        found
    }

    async fn remove_routes(&self, routes: Vec<RouteOf>, reason: &str) {
        if routes.is_empty() {
            return;
        }
        let count = routes.len();
        for (filter, id) in routes {
            let removed = { self.scx.extends.router().await.remove(&filter, id).await };
            if let Err(error) = removed {
                warn!(%error, "a route could not be removed");
            }
        }
        self.metrics.routes_removed.inc_by(count as u64);
        info!(count, reason, "routes removed");
    }

    /// Routes to sessions of this node that it does not have. A session that is just being made or ended looks the same
    /// for a moment, so a route goes at the second sight. Gives those of the first.
    async fn remove_own_orphans(&self, suspects: HashSet<RouteOf>) -> HashSet<RouteOf> {
        let me = self.config.node;
        // Routes of a session that moved lead on from here, until the new one's take their place. And a session's routes may be those
        // of the one that it goes on with, as long as it subscribes the same.
        let stays = |id: &Id| self.takeovers.way(&id.client_id) == Way::Straight;
        let is_orphan = |filter: &TopicFilter, id: &Id| !self.subscribed.has(&id.client_id, filter) && stays(id);
        let mine = self.routes_where(|filter, id| id.node_id == me && is_orphan(filter, id)).await;
        let orphans: HashSet<RouteOf> = mine.into_iter().collect();
        let (again, new): (Vec<_>, Vec<_>) = orphans.into_iter().partition(|route| suspects.contains(route));
        self.remove_routes(again, "their sessions are gone").await;
        new.into_iter().collect()
    }

    /// Looks at all sessions of this node: are they still its own, and do their routes lead here?
    async fn audit(&self) {
        let Ok(engine) = self.engine().cloned() else { return };
        let ids: Vec<ClientId> = engine.iter().map(|entry| entry.id().client_id.clone()).collect();
        let (mut sessions, mut ended) = (Vec::new(), 0);
        for client_id in ids {
            // The outermost entry: a session that is ended is gone from the disk, too.
            let id = Id::from(self.config.node, client_id.clone());
            let mut entry = { self.scx.extends.shared().await.entry(id) };
            let (Some(session), Some(tx)) = (entry.session(), entry.tx()) else { continue };
            match engine.session_status(&client_id).await {
                Some(status) if status.id == session.id || status.handshaking => {}
                Some(status) => match self.has_newer(&session, &status).await {
                    Some(true) => {
                        let (answer, stopped) = tokio::sync::oneshot::channel();
                        if tx.unbounded_send(Message::Kick(answer, status.id.clone(), true, true)).is_ok() {
                            // Stuck in writing to a client that does not read, it stops when that fails.
                            drop(tokio::time::timeout(STOP_WAIT, stopped).await);
                        }
                        if let Err(error) = entry.remove_with(&session.id).await {
                            warn!(client_id = &*client_id, %error, "a session that moved to another node could not be ended");
                        }
                        ended += 1;
                        continue;
                    }
                    // Its place is held by a login that was refused.
                    Some(false) => self.reclaim_in_turn(client_id.clone()).await,
                    // Until the node that may have it answers, and the next look.
                    None => continue,
                },
                None => self.reclaim_in_turn(client_id.clone()).await,
            }
            sessions.push(session);
        }
        let restoring = sessions.into_iter().map(|session| async move { self.restore_routes(&session).await });
        let mut restoring = stream::iter(restoring).buffer_unordered(RESTORED_AT_ONCE);
        let mut restored = 0;
        while let Some(routes) = restoring.next().await {
            restored += routes;
        }
        if restored > 0 || ended > 0 {
            info!(restored, ended, "sessions of this node brought in line with the cluster");
        }
    }

    /// Whether another node has a session that has taken the place of one of this node; `None` while it cannot be asked.
    async fn has_newer(&self, session: &Session, status: &SessionStatus) -> Option<bool> {
        if status.id.node_id == self.config.node || status.id.create_time <= session.id.create_time {
            return Some(false);
        }
        if status.online { Some(true) } else { self.has_session(&session.id.client_id).await }
    }

    /// Has the routes of a session lead here; how many did not.
    async fn restore_routes(&self, session: &Session) -> usize {
        let Ok(subscriptions) = session.subscriptions().await else { return 0 };
        let wanted: Vec<_> = subscriptions.read().await.iter().map(|(f, o)| (f.clone(), o.clone())).collect();
        let mut restored = 0;
        for (filter, opts) in wanted {
            let leads_here = {
                let router = self.scx.extends.router().await;
                let routes = router.relations().get(&*filter);
                routes.is_some_and(|routes| routes.get(&session.id.client_id).is_some_and(|(id, _)| *id == session.id))
            };
            if leads_here {
                continue;
            }
            let added = { self.scx.extends.router().await.add(&filter, session.id.clone(), opts).await };
            match added {
                Ok(()) => restored += 1,
                Err(error) => warn!(client_id = &*session.id.client_id, %error, "a route could not be restored"),
            }
        }
        restored
    }
}
