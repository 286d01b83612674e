//! The state of this node's part in the cluster, and what it answers other nodes.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use async_trait::async_trait;
use ciqadamq_core::{
    Arrivals, ClusterPart, Condition, Health, InternalService, LocalOwners, Moves, NodeId, Peers, RaftRole,
    RemoteOwners, RetainedCopies, Secret, ServiceError, SessionControl, SessionQuery, UserDirectory,
};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rmqtt::context::ServerContext;
use rmqtt::session::OfflineInfo;
use rmqtt::shared::Shared;
use rmqtt::types::{ClientId, Id};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tracing::{debug, info};

use crate::config::ClusterConfig;
use crate::formation::{self, Promise};
use crate::heirs::Heirs;
use crate::link::{Links, Receivers, door, keep_sending};
use crate::liveness::{self, Liveness};
use crate::metrics::ClusterMetrics;
use crate::retained::PAGE;
use crate::stale::Subscribed;
use crate::takeover::Takeovers;
use crate::unrouted::Unrouted;
use crate::voters::RoutesRaft;
use crate::watch::{Verdict, Watch};
use crate::wire::{Answer, Ask, NodeState, OwnerHere, Phase, SERVICE};

/// The condition of readiness that this part sets.
const CONDITION: &str = "routes";
/// Between two looks at the state of the cluster.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Time a node has for an answer.
const ANSWER: Duration = Duration::from_secs(2);
/// How long the owner of a client id is looked for before a login is refused: longer than it takes to know that a node is
/// dead.
const OWNER_PATIENCE: Duration = Duration::from_secs(3);
const OWNER_RETRY: Duration = Duration::from_millis(100);
/// How long the place of a session is tried to be taken back: the cluster's lock of a client id runs out in between.
const RECLAIM: Duration = Duration::from_secs(15);
const RECLAIM_RETRY: Duration = Duration::from_millis(100);
/// Places that are being taken back at once. More are for the audit (see [`crate::sweep`]), which waits for its turn.
const RECLAIMS: usize = 64;
/// Sessions a node lists in one answer.
const LIST_MAX: usize = 10_000;

/// Gives the session of a client id that is on this node's disk and not in use to a login of another node; ends it, if that wants
/// none; fails if it is somebody else's.
pub type GiveStray = Arc<dyn Fn(Id, bool) -> BoxFuture<'static, anyhow::Result<Option<OfflineInfo>>> + Send + Sync>;

/// What the cluster works with; set when the parts are there.
pub struct ClusterDeps {
    /// the other nodes
    pub peers: Arc<dyn Peers>,
    /// where readiness is declared
    pub health: Arc<Health>,
    /// the sessions of this node
    pub sessions: Arc<dyn SessionControl>,
    /// the raft of the users, whose members are those that may take part
    pub users: Arc<dyn ClusterPart>,
    /// the users themselves
    pub directory: Arc<dyn UserDirectory>,
    /// What nodes show each other: the one that is in force, then one before that is still taken. None while it is not
    /// known. Asked at each connection, for it may change.
    pub credentials: Arc<dyn Fn() -> Vec<Secret> + Send + Sync>,
}

/// This node's part in the cluster.
pub struct Cluster {
    pub(crate) scx: ServerContext,
    pub(crate) config: ClusterConfig,
    pub(crate) liveness: Arc<Liveness>,
    pub(crate) takeovers: Takeovers,
    pub(crate) subscribed: Subscribed,
    pub(crate) unrouted: Unrouted,
    pub(crate) heirs: Heirs,
    pub(crate) metrics: ClusterMetrics,
    pub(crate) links: Links,
    pub(crate) receivers: Receivers,
    pub(crate) deps: ClusterDeps,
    pub(crate) promise: Promise,
    /// The raft of the routes; not known before it runs.
    pub(crate) raft: Mutex<Option<RoutesRaft>>,
    /// Who owns the sessions of this node; not known before the part that lets clients in has started.
    owners: OnceLock<Arc<dyn LocalOwners>>,
    /// Who remembers what other nodes have sent; none where nothing is kept on disk.
    pub(crate) arrivals: OnceLock<Arc<dyn Arrivals>>,
    /// Who knows which sessions came here and left; none where nothing is kept on disk.
    moves: OnceLock<Arc<dyn Moves>>,
    /// Who has the Retained Messages; nobody where another plugin keeps them.
    pub(crate) retained: OnceLock<Arc<dyn RetainedCopies>>,
    /// Gives sessions that are on this node's disk and not in use to logins of other nodes.
    pub(crate) strays: OnceLock<GiveStray>,
    /// The plugin's own table of sessions.
    engine: OnceLock<Arc<dyn Shared>>,
    state: Mutex<Verdict>,
    serving: AtomicBool,
    reclaims: Arc<Semaphore>,
    restart: watch::Sender<Option<String>>,
}

impl Cluster {
    /// Nothing runs yet.
    pub fn new(scx: ServerContext, config: ClusterConfig, deps: ClusterDeps, metrics: ClusterMetrics) -> Arc<Self> {
        let others = || config.nodes.iter().copied().filter(|node| *node != config.node);
        let liveness = Arc::new(Liveness::new(deps.peers.clone(), config.node, others()));
        let (links, receivers) = (Links::new(others()), Receivers::new(others()));
        deps.health.set(CONDITION, Condition::Unmet("not looked for the cluster yet".into()));
        Arc::new(Self {
            scx,
            config,
            liveness,
            takeovers: Takeovers::default(),
            subscribed: Subscribed::default(),
            unrouted: Unrouted::default(),
            heirs: Heirs::default(),
            metrics,
            links,
            receivers,
            deps,
            promise: Promise::default(),
            raft: Mutex::new(None),
            owners: OnceLock::new(),
            arrivals: OnceLock::new(),
            moves: OnceLock::new(),
            retained: OnceLock::new(),
            strays: OnceLock::new(),
            engine: OnceLock::new(),
            state: Mutex::new(Verdict::Waits("starting".into())),
            serving: AtomicBool::new(false),
            reclaims: Arc::new(Semaphore::new(RECLAIMS)),
            restart: watch::Sender::new(None),
        })
    }

    /// Begins to watch the other nodes, and waits until `rmqtt-cluster-raft` may be started: not before `admitted`, which is when this node
    /// is a member of the user directory and has caught up with it. The internal service must be offered, and the API open, for
    /// the others ask the same.
    pub async fn form(&self, admitted: impl Future<Output = ()>) -> anyhow::Result<()> {
        tokio::spawn(self.liveness.clone().run());
        let say = |why: String| self.deps.health.set(CONDITION, Condition::Unmet(why));
        formation::form(self, admitted, say).await
    }

    /// The nodes that may take part: those that vote on users, for these agree on who they are. All that are configured, as long as
    /// that cannot be told.
    pub(crate) fn members(&self) -> Vec<NodeId> {
        let voters = self.deps.users.raft().voters;
        if voters.is_empty() { self.config.nodes.clone() } else { voters }
    }

    /// Opens the port for the other nodes, and sees to it that the one of the routing plugin's raft, `raft`, can be opened.
    ///
    /// # Errors
    /// If one of them cannot be opened.
    pub async fn listen(self: &Arc<Self>, addr: SocketAddr, raft: SocketAddr) -> anyhow::Result<()> {
        // The plugin would end the process, which would be restarted, and not say which port it is. It opens the port itself.
        drop(door::bind("cluster.raft_laddr", raft)?);
        door::open(self, addr).await
    }

    /// Keeps a connection to each other node, for messages.
    pub(crate) fn connect(self: &Arc<Self>) {
        for (node, queue) in self.links.all() {
            let prefix = format!("{node}@");
            let addr = self.config.raft.node_grpc_addrs.iter().find_map(|entry| entry.strip_prefix(&prefix));
            if let Some(addr) = addr {
                tokio::spawn(keep_sending(self.clone(), node, addr.to_owned(), queue));
            }
        }
    }

    /// Takes note of who owns the sessions of this node.
    pub fn set_owners(&self, owners: Arc<dyn LocalOwners>) {
        // Set twice only by a mistake of the launcher's; the first one is as good.
        drop(self.owners.set(owners));
    }

    /// Takes note of who remembers, over the end of the process, what other nodes have sent.
    pub fn set_arrivals(&self, arrivals: Arc<dyn Arrivals>) {
        // As above.
        drop(self.arrivals.set(arrivals));
    }

    /// Takes note of who knows which sessions came here and left, and of who gives those away that nobody uses.
    pub fn set_moves(&self, moves: Arc<dyn Moves>, strays: GiveStray) {
        // As above.
        drop((self.moves.set(moves), self.strays.set(strays)));
    }

    /// Waits until a majority follows one leader, this node included.
    pub async fn works(&self) {
        while !matches!(&*self.state.lock(), Verdict::Works { .. }) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Resolves with the reason when only a new process helps.
    pub async fn restart_wanted(&self) -> String {
        let mut wanted = self.restart.subscribe();
        match wanted.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            // The sender lives as long as `self`.
            Err(_) => std::future::pending().await,
        }
    }

    /// The sessions of this node are all there: what other nodes have for them may come.
    pub fn serve(&self) {
        self.serving.store(true, Ordering::Release);
    }

    pub(crate) fn serves(&self) -> bool {
        self.serving.load(Ordering::Acquire)
    }

    /// Tells the others that this node is about to end.
    pub fn leave(&self) {
        self.liveness.set_phase(Phase::Leaving);
    }

    /// What this node thinks of the cluster.
    pub(crate) fn state(&self) -> Verdict {
        self.state.lock().clone()
    }

    /// Why no client can be let in now, where that is certain: a leader without a majority would let everybody in.
    pub(crate) fn refuses(&self) -> Option<String> {
        let alone = self.liveness.own().leader == self.config.node && self.config.nodes.len() > 1;
        match &*self.state.lock() {
            Verdict::Waits(why) | Verdict::Restart(why) if alone => Some(why.clone()),
            _ => None,
        }
    }

    pub(crate) fn set_engine(&self, engine: Arc<dyn Shared>) {
        // The plugin starts once.
        drop(self.engine.set(engine));
    }

    pub(crate) fn engine(&self) -> anyhow::Result<&Arc<dyn Shared>> {
        self.engine.get().ok_or_else(|| anyhow!("this node is not part of the cluster yet"))
    }

    /// Watches whether the cluster works, for ever.
    pub(crate) async fn watch(self: Arc<Self>) {
        let mut watch = Watch::default();
        loop {
            if let Ok(engine) = self.engine() {
                let status = engine.health_status().await;
                let leader =
                    status.ok().filter(|status| status.running).and_then(|status| status.leader_id).unwrap_or(0);
                self.liveness.set_leader(leader);
                let verdict = watch.look(&self.members(), leader, &self.liveness.views(), Instant::now());
                self.note(verdict);
            }
            self.takeovers.sweep();
            self.heirs.sweep();
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn note(&self, verdict: Verdict) {
        let before = std::mem::replace(&mut *self.state.lock(), verdict.clone());
        let condition = match &verdict {
            Verdict::Works { .. } => Condition::Met,
            Verdict::Waits(why) | Verdict::Restart(why) => Condition::Unmet(why.clone()),
        };
        self.deps.health.set(CONDITION, condition);
        self.metrics.note(&verdict, &self.liveness.views());
        if before != verdict {
            match &verdict {
                Verdict::Works { leader } => info!(leader, "the routing cluster works"),
                Verdict::Waits(why) => tracing::warn!(reason = why, "the routing cluster does not work"),
                Verdict::Restart(why) => tracing::error!(reason = why, "the routing cluster needs a new process"),
            }
        }
        if let Verdict::Restart(why) = verdict {
            self.restart.send_replace(Some(why));
        }
    }

    /// Asks a node, which may be this one.
    pub(crate) async fn ask(&self, node: NodeId, ask: Ask) -> anyhow::Result<Answer> {
        if node == self.config.node {
            return self.answer(ask).await;
        }
        liveness::call(&*self.deps.peers, node, &ask, ANSWER).await
    }

    async fn answer(&self, ask: Ask) -> anyhow::Result<Answer> {
        Ok(match ask {
            Ask::State { from: _, dead } => {
                self.liveness.heard(&dead);
                let strays = self.moves.get().is_some_and(|moves| moves.has_strays());
                let out = self.deps.users.raft().role == RaftRole::Out;
                Answer::State(NodeState { strays, serves: self.serves(), out, ..self.liveness.own() })
            }
            Ask::Unrouted => Answer::Unrouted(self.unrouted.own()),
            Ask::Heirs { of } => Answer::Heirs(self.heirs.of(of)),
            Ask::Promise { candidate, boot } => {
                let waits = self.liveness.own().phase == Phase::Waiting;
                Answer::Promised(waits && self.promise.give(candidate, boot))
            }
            Ask::Owner { client_id } => Answer::Owner(self.owner_here(&client_id).await?),
            Ask::Reclaim { client_id } => {
                let turn = self.reclaims.clone().try_acquire_owned();
                let turn = turn.map_err(|_| anyhow!("too many sessions' places are being taken back"))?;
                self.reclaim(client_id.into(), turn)?;
                Answer::Done
            }
            Ask::Retained { after } => {
                let retained = self.retained.get().ok_or_else(|| anyhow!("this node is not ready"))?;
                Answer::Retained(retained.page(&after, PAGE))
            }
            Ask::Taken { from, tag } => Answer::Taken(self.moves()?.has_taken(from, tag).await),
            Ask::Settled { client_id, tag } => {
                self.moves()?.settled(&client_id, tag);
                Answer::Done
            }
            Ask::Stays { client_id, tag } => {
                self.moves()?.stays(&client_id, tag);
                Answer::Done
            }
            Ask::Sessions(query) => {
                let query = SessionQuery { limit: query.limit.min(LIST_MAX), ..query };
                Answer::Sessions(self.deps.sessions.list(&query).await)
            }
            Ask::End { client_id } => Answer::Ended(self.deps.sessions.end(&client_id).await),
            Ask::Keeps { client_id } => {
                let moves = self.moves.get();
                anyhow::ensure!(self.serves() || moves.is_some(), "this node is not ready");
                let id = Id::from(self.config.node, client_id.as_str().into());
                let is_here = || Ok::<_, anyhow::Error>(self.engine()?.entry(id).session().is_some());
                Answer::Keeps(moves.is_some_and(|moves| moves.keeps(&client_id)) || is_here()?)
            }
        })
    }

    fn moves(&self) -> anyhow::Result<&Arc<dyn Moves>> {
        self.moves.get().ok_or_else(|| anyhow!("this node keeps no sessions"))
    }

    /// Whether nothing can be said yet of the session of a client id: it may be one that is not back from the disk.
    pub(crate) fn is_unsure_of(&self, client_id: &str) -> bool {
        !self.serves() && self.moves.get().is_none_or(|moves| moves.keeps(client_id))
    }

    async fn owner_here(&self, client_id: &str) -> anyhow::Result<OwnerHere> {
        let Some(owners) = self.owners.get().filter(|_| !self.is_unsure_of(client_id)) else {
            bail!("this node is not ready")
        };
        Ok(match (owners.owner(client_id).await, self.takeovers.displaced(client_id)) {
            (Some(person), _) => OwnerHere::Person(person),
            (None, Some(node)) => OwnerHere::AskNode(node),
            (None, None) => OwnerHere::Nobody,
        })
    }

    /// Has a session's place taken back, as soon as there is a turn for it.
    pub(crate) async fn reclaim_in_turn(&self, client_id: ClientId) {
        // The semaphore is never closed, and this node takes part if there is an audit.
        let Ok(turn) = self.reclaims.clone().acquire_owned().await else { return };
        if let Err(error) = self.reclaim(client_id, turn) {
            debug!(%error, "a session's place is not taken back");
        }
    }

    /// Puts a session of this node back into the place that a refused login took in the cluster's state. In the background:
    /// the lock that the login held has to run out.
    fn reclaim(&self, client_id: ClientId, turn: OwnedSemaphorePermit) -> anyhow::Result<()> {
        let engine = self.engine()?.clone();
        let node = self.config.node;
        tokio::spawn(async move {
            let _turn = turn;
            let since = Instant::now();
            while since.elapsed() < RECLAIM {
                let Some(session) = engine.entry(Id::from(node, client_id.clone())).session() else { return };
                match engine.session_status(&client_id).await {
                    Some(status) if status.id == session.id => return,
                    Some(status) if status.online => {
                        debug!(client_id = &*client_id, "somebody else has the session's place");
                        return;
                    }
                    _ => {}
                }
                if let Ok(mut locked) = engine.entry(session.id.clone()).try_lock().await
                    && let (Some(current), Some(tx)) = (locked.session(), locked.tx())
                    && current.id == session.id
                    && let Err(error) = locked.set(current, tx).await
                {
                    debug!(client_id = &*client_id, %error, "a session's place could not be taken back");
                }
                tokio::time::sleep(RECLAIM_RETRY).await;
            }
        });
        Ok(())
    }

    /// Who owns a client id according to the node that should have its session; follows where it points.
    pub(crate) async fn owner_at(&self, mut node: NodeId, client_id: &str) -> anyhow::Result<OwnerHere> {
        for _ in &self.config.nodes {
            match self.ask(node, Ask::Owner { client_id: client_id.to_owned() }).await? {
                Answer::Owner(OwnerHere::AskNode(next)) => node = next,
                Answer::Owner(owner) => return Ok(owner),
                other => bail!("an answer that is none: {other:?}"),
            }
        }
        Ok(OwnerHere::Nobody)
    }
}

#[async_trait]
impl RemoteOwners for Cluster {
    async fn is_foreign(&self, client_id: &str, username: &str, userid: &str) -> bool {
        let since = Instant::now();
        loop {
            let Ok(engine) = self.engine() else { return true };
            let Some(status) = engine.session_status(client_id).await else { return false };
            let holder = status.id.node_id;
            let same_name = status.id.username.as_deref() == Some(username);
            // Whoever is asked again under the cluster's lock need not be asked now.
            if same_name || holder == self.config.node && self.takeovers.displaced(client_id).is_none() {
                return false;
            }
            if let Some(dead_for) = self.liveness.dead_for(holder) {
                // It cannot be asked. Its session may come back with it, until it would have ended.
                let person =
                    self.owners.get().zip(status.id.username.as_deref()).map(|(owners, name)| owners.person(name));
                return dead_for < self.config.keep_dead && person.as_deref() != Some(userid);
            }
            match self.owner_at(holder, client_id).await {
                Ok(OwnerHere::Person(person)) => return person != userid,
                Ok(OwnerHere::Nobody | OwnerHere::AskNode(_)) => return false,
                Err(error) if since.elapsed() >= OWNER_PATIENCE => {
                    debug!(client_id, node = holder, %error, "the owner of a client id could not be found out");
                    return true;
                }
                Err(_) => tokio::time::sleep(OWNER_RETRY).await,
            }
        }
    }
}

#[async_trait]
impl InternalService for Cluster {
    async fn call(&self, body: Vec<u8>) -> Result<Vec<u8>, ServiceError> {
        let ask: Ask = postcard::from_bytes(&body)
            .map_err(|error| ServiceError::BadRequest(format!("service {SERVICE}: {error}")))?;
        let answer = self.answer(ask).await.map_err(|error| ServiceError::Unavailable(error.to_string()))?;
        postcard::to_stdvec(&answer).map_err(|error| ServiceError::Unavailable(error.to_string()))
    }
}
