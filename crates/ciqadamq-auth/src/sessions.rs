//! Looking at the sessions of this node, and ending them.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use ciqadamq_core::{Principals, SessionControl, SessionInfo, SessionQuery, Waiting};
use rmqtt::context::ServerContext;
use rmqtt::session::Session;
use rmqtt::types::{ClientId, ConnectInfo, Id, Message, Reason};
use tracing::{debug, warn};

use crate::farewell::{Connection, say_goodbye};
use crate::guard::stop;
use crate::ownership::tag_of;
use crate::sockets::each_socket;

/// DISCONNECT reason codes of MQTT 5.0 §3.14.2.1.
const SERVER_SHUTTING_DOWN: u8 = 0x8B;
/// The reason for which a drain closes connections, whose clients were told already.
pub(crate) const SHUTTING_DOWN: &str = "server shutting down";
pub(crate) const ADMINISTRATIVE_ACTION: u8 = 0x98;

/// A session younger than this may not have had its CONNACK yet, before which nothing else may be sent.
pub(crate) const CONNACK_BY: Duration = Duration::from_millis(250);

/// After what time a session that does not stop is stuck: longer than a pause of its own.
const STUCK: Duration = Duration::from_millis(1_500);

/// When a session ends.
pub(crate) enum Ending {
    /// not with its connection
    Stays,
    /// with its connection, which is open
    Online,
    /// now: its connection is closed, or it is gone already
    Offline,
}

/// From a client's address to the address at which the engine sees it, for connections that came through the gate.
pub type EnginePeer = Arc<dyn Fn(SocketAddr) -> Option<SocketAddr> + Send + Sync>;

/// The sessions of this node.
pub struct Sessions {
    scx: ServerContext,
    principals: Arc<Principals>,
    engine_peer: Option<EnginePeer>,
    /// what waits outside the engine
    waiting: OnceLock<Arc<dyn Waiting>>,
}

impl Sessions {
    /// Of the engine `scx`.
    pub fn new(scx: ServerContext, principals: Arc<Principals>, engine_peer: Option<EnginePeer>) -> Self {
        Self { scx, principals, engine_peer, waiting: OnceLock::new() }
    }

    /// Says who keeps messages for sessions in the engine's place. The first one counts.
    pub fn set_waiting(&self, waiting: Arc<dyn Waiting>) {
        self.waiting.get_or_init(|| waiting);
    }

    /// The session of a client id, if there is one here.
    ///
    /// Ask it, and not the engine's entry or `session_status`: those await while they hold a lock of the engine's map, and
    /// a task that waits for that lock blocks its thread. With one thread that is the end.
    pub(crate) async fn session(&self, client_id: &str) -> Option<Session> {
        let id = Id::from(self.scx.node.id(), ClientId::from(client_id));
        self.scx.extends.shared().await.entry(id).session()
    }

    /// Whether and when the session of a client id is about to end by itself.
    pub(crate) async fn ending(&self, client_id: &str) -> Ending {
        let Some(session) = self.session(client_id).await else { return Ending::Offline };
        let ends_with_connection = match session.connect_info().await.as_deref() {
            Ok(ConnectInfo::V3(_, connect)) => connect.clean_session,
            Ok(ConnectInfo::V5(..)) => {
                let disconnect = session.disconnect().await.ok().flatten();
                session.fitter.session_expiry_interval(disconnect.as_ref()).is_zero()
            }
            // Unsure: treat it as one that stays.
            Err(_) => false,
        };
        match (ends_with_connection, session.connected().await) {
            (false, _) => Ending::Stays,
            (true, Ok(false)) => Ending::Offline,
            (true, _) => Ending::Online,
        }
    }

    /// All ids first: looking sessions up while the engine's map is being iterated can deadlock with a writer.
    pub(crate) async fn ids(&self) -> Vec<Id> {
        self.scx.extends.shared().await.iter().map(|entry| entry.id()).collect()
    }

    /// The client addresses of the sessions that are online. One whose client said DISCONNECT is not, whatever became of
    /// its socket.
    pub(crate) async fn online_addresses(&self) -> HashSet<SocketAddr> {
        let mut addresses = HashSet::new();
        for id in self.ids().await {
            if let Some(session) = self.session(&id.client_id).await
                && session.connected().await.unwrap_or(true)
            {
                addresses.extend(id.remote_addr);
            }
        }
        addresses
    }

    /// Writes DISCONNECT to those of `sessions` that are v5 and online.
    pub(crate) async fn say_goodbye(&self, sessions: &[Session], reason: u8) {
        let mut connections = Vec::new();
        for session in sessions {
            if session.protocol().await.is_ok_and(|p| p == 5) && session.connected().await.unwrap_or(false) {
                connections.extend(self.connection(&session.id));
            }
        }
        let expected = connections.len();
        let told = tokio::task::spawn_blocking(move || say_goodbye(&connections, reason)).await.unwrap_or(0);
        debug!(expected, told, reason, "DISCONNECT sent");
    }

    /// Cuts the connection of a session at once: nothing that is written to it from now on arrives.
    pub fn cut(&self, id: &Id) {
        if let Some(connection) = self.connection(id) {
            cut(connection);
        }
    }

    /// Waits for work that wants the session `id` to stop. One that writes to a client which does not read goes on, and hears
    /// of it, when its connection is cut.
    pub(crate) async fn hurry<T>(&self, id: &Id, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        if let Ok(done) = tokio::time::timeout(STUCK, &mut work).await {
            return done;
        }
        if let Some(connection) = self.connection(id) {
            // A pass that panicked cut nothing; the work has a limit of its own.
            let _ = tokio::task::spawn_blocking(move || cut(connection)).await;
        }
        work.await
    }

    /// The engine's end of a connection.
    pub(crate) fn connection(&self, id: &Id) -> Option<Connection> {
        let client = id.remote_addr?;
        let peer = self.engine_peer.as_ref().and_then(|f| f(client)).unwrap_or(client);
        Some(Connection { local_port: id.local_addr?.port(), peer })
    }

    /// Ends one session for good: connection, subscriptions, queue. Not its successor, should a new login have taken
    /// the client id meanwhile: `is_it` is asked under the engine's lock of the client id.
    pub(crate) async fn terminate(&self, client_id: &str, is_it: impl Fn(&Session) -> bool) -> bool {
        let id = Id::from(self.scx.node.id(), ClientId::from(client_id));
        let (mut entry, is_cluster) = {
            let shared = self.scx.extends.shared().await;
            (shared.entry(id.clone()), shared.grpc_enable())
        };
        if is_cluster {
            // Its lock is a matter of all nodes, which may have no quorum now. What must not happen without it cannot: the
            // request goes to this very session, and what is removed is named by its full id.
            let (Some(session), Some(tx)) = (entry.session().filter(|s| is_it(s)), entry.tx()) else { return false };
            self.hurry(&session.id, stop(&tx, id, true)).await;
            return match entry.remove_with(&session.id).await {
                Ok(_) => true,
                Err(error) => {
                    warn!(client_id, %error, "session not ended");
                    false
                }
            };
        }
        let mut locked = match entry.try_lock().await {
            Ok(locked) => locked,
            Err(error) => {
                warn!(client_id, %error, "session not ended: its client id stays locked");
                return false;
            }
        };
        match locked.session() {
            Some(session) if is_it(&session) => match self.hurry(&session.id, locked.kick(true, true, true)).await {
                Ok(_) => {
                    // The session's own task says so too, but perhaps much later; until then it would count.
                    self.principals.remove(client_id, tag_of(&session.id));
                    true
                }
                Err(error) => {
                    warn!(client_id, %error, "session not ended");
                    false
                }
            },
            _ => false,
        }
    }

    /// Closes every connection, v5 with DISCONNECT 0x8B, and waits until all are gone; `false` if the deadline came
    /// first. Sessions stay, as far as their expiry allows.
    pub async fn drain(&self, deadline: Duration) -> bool {
        let since = Instant::now();
        let mut sessions = Vec::new();
        let mut channels = Vec::new();
        for id in self.ids().await {
            let entry = { self.scx.extends.shared().await.entry(id) };
            sessions.extend(entry.session());
            channels.extend(entry.tx());
        }
        self.say_goodbye(&sessions, SERVER_SHUTTING_DOWN).await;
        drop(sessions);
        // To all, since the engine counts a client as offline that said goodbye and never closed its socket. A session
        // that really is offline ignores it; a channel that is closed belongs to one that has ended.
        for tx in channels {
            drop(tx.unbounded_send(Message::Closed(Reason::from_static(SHUTTING_DOWN))));
        }
        while self.scx.connections.count() > 0 {
            if since.elapsed() >= deadline {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        true
    }

    async fn info(&self, session: &Session) -> SessionInfo {
        let id = &session.id;
        let online = session.connected().await.unwrap_or(false);
        let subscriptions = match session.subscriptions().await {
            Ok(subscriptions) => subscriptions.len().await,
            Err(_) => 0,
        };
        let outside = self.waiting.get().and_then(|waiting| waiting.waiting(&id.client_id));
        let (queued, inflight) = match outside {
            Some(counts) => counts,
            None => (session.deliver_queue().len(), session.out_inflight().read().await.len()),
        };
        SessionInfo {
            clientid: id.client_id.to_string(),
            username: id.username.as_ref().map(ToString::to_string).unwrap_or_default(),
            userid: self.principals.get(&id.client_id).map(|p| p.userid.to_string()),
            node: id.node_id,
            online,
            address: id.remote_addr.map(|a| a.to_string()),
            protocol: session.protocol().await.unwrap_or(0),
            connected_at: session.connected_at().await.unwrap_or(0),
            disconnected_at: session.disconnected_at().await.ok().filter(|at| !online && *at > 0),
            subscriptions,
            queued,
            inflight,
        }
    }
}

fn cut(Connection { peer, .. }: Connection) {
    each_socket(|address| *address == peer, |socket| socket.shutdown(std::net::Shutdown::Both).is_ok());
}

#[async_trait]
impl SessionControl for Sessions {
    async fn list(&self, query: &SessionQuery) -> Vec<SessionInfo> {
        let wanted = |id: &Id| {
            query.after.as_deref().is_none_or(|after| &*id.client_id > after)
                && query.username.as_deref().is_none_or(|name| id.username.as_deref() == Some(name))
                && query.userid.as_deref().is_none_or(|userid| {
                    self.principals.get(&id.client_id).is_some_and(|p| p.userid.as_str() == userid)
                })
        };
        let mut ids: Vec<_> = self.ids().await.into_iter().filter(|id| wanted(id)).collect();
        ids.sort_by(|a, b| a.client_id.cmp(&b.client_id));
        ids.truncate(query.limit);
        let mut infos = Vec::with_capacity(ids.len());
        for id in ids {
            // It may have ended since it was listed.
            if let Some(session) = self.session(&id.client_id).await {
                infos.push(self.info(&session).await);
            }
        }
        infos
    }

    async fn end(&self, client_id: &str) -> bool {
        let Some(session) = self.session(client_id).await else { return false };
        // Its Will must not fire: that is asked of the principal when it would.
        if let Some(principal) = self.principals.get(client_id) {
            principal.withdraw();
            tokio::time::sleep(CONNACK_BY.saturating_sub(principal.age())).await;
        }
        self.say_goodbye(std::slice::from_ref(&session), ADMINISTRATIVE_ACTION).await;
        self.terminate(client_id, |current| current.id == session.id).await
    }
}
