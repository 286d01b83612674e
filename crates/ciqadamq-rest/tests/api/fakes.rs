//! Stand-ins for what the launcher wires: same contracts, no disk, and faults on demand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ciqadamq_core::*;
use ciqadamq_rest::{NodeView, PluginView};

#[derive(Default, Clone, Copy, PartialEq)]
pub enum Writes {
    #[default]
    Taken,
    Busy,
    Unavailable,
    Stuck,
}

#[derive(Default)]
pub struct FakeDirectory {
    users: Mutex<BTreeMap<String, Arc<User>>>,
    revision: Mutex<u64>,
    pub writes: Mutex<Writes>,
    pub reads_fail: AtomicBool,
    /// pages that may still be read; `usize::MAX` by default
    pub pages_left: AtomicUsize,
}

impl FakeDirectory {
    pub fn new() -> Self {
        Self { pages_left: AtomicUsize::new(usize::MAX), ..Self::default() }
    }

    /// Puts users there without going through the API.
    pub fn fill(&self, count: usize) {
        let mut users = self.users.lock().unwrap();
        for i in 0..count {
            let name = format!("user{i:07}");
            let user = User {
                username: Username::new(&name).unwrap(),
                userid: UserId::new(&format!("id{}", i % 3)).unwrap(),
                password: PasswordHash("$fake$x".into()),
                superuser: false,
                admin: false,
                disabled: false,
                revision: Revision(1),
                valid_from: Revision(1),
            };
            users.insert(name, Arc::new(user));
        }
    }

    fn readable(&self) -> Result<(), DirectoryError> {
        match self.reads_fail.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(DirectoryError { reason: "/secret/path is broken".into() }),
        }
    }
}

#[async_trait]
impl UserDirectory for FakeDirectory {
    fn get(&self, username: &str) -> Result<Option<Arc<User>>, DirectoryError> {
        self.readable()?;
        Ok(self.users.lock().unwrap().get(username).cloned())
    }

    fn list(&self, query: &UserQuery) -> Result<UserPage, DirectoryError> {
        self.readable()?;
        let left = self.pages_left.load(Ordering::Relaxed);
        self.pages_left
            .store(left.checked_sub(1).ok_or(DirectoryError { reason: "no more".into() })?, Ordering::Relaxed);
        let users = self.users.lock().unwrap();
        let fits = |user: &&Arc<User>| {
            query.after.as_deref().is_none_or(|after| user.username.as_str() > after)
                && query.userid.as_ref().is_none_or(|id| user.userid == *id)
        };
        let mut found: Vec<_> = users.values().filter(fits).take(query.limit + 1).cloned().collect();
        let more = found.len() > query.limit;
        found.truncate(query.limit);
        let next = found.last().filter(|_| more).map(|u| u.username.to_string());
        Ok(UserPage { users: found, next })
    }

    async fn execute(&self, command: Command) -> Result<Applied, ExecuteError> {
        let writes = *self.writes.lock().unwrap();
        match writes {
            Writes::Taken => {}
            Writes::Busy => return Err(ExecuteError::Busy),
            Writes::Unavailable => return Err(ExecuteError::Unavailable("/secret/disk is full".into())),
            Writes::Stuck => std::future::pending().await,
        }
        let mut users = self.users.lock().unwrap();
        let mut revision = self.revision.lock().unwrap();
        let name = command.username().to_string();
        let next = Revision(*revision + 1);
        match decide(users.get(&name).map(|u| &**u), &command, next)? {
            Decision::Write(user) => users.insert(name, Arc::new(user)),
            Decision::Remove => users.remove(&name),
        };
        *revision += 1;
        Ok(Applied { revision: next })
    }

    fn revision(&self) -> Revision {
        Revision(*self.revision.lock().unwrap())
    }

    fn observe(&self, _observer: Arc<dyn UserObserver>) {}

    fn status(&self) -> DirectoryStatus {
        let users = self.users.lock().unwrap().len() as u64;
        DirectoryStatus { users, revision: self.revision(), bytes: 4096, read_only: None }
    }
}

#[derive(Default)]
pub struct FakeHashing {
    pub hashed: AtomicUsize,
    pub refuses: Mutex<Option<HashError>>,
}

#[async_trait]
impl PasswordHashing for FakeHashing {
    async fn hash(&self, password: Secret) -> Result<PasswordHash, HashError> {
        if let Some(refusal) = *self.refuses.lock().unwrap() {
            return Err(refusal);
        }
        self.hashed.fetch_add(1, Ordering::Relaxed);
        Ok(PasswordHash(format!("$fake${}", String::from_utf8_lossy(password.expose()).len())))
    }

    fn check_phc(&self, phc: &str) -> Result<(), String> {
        phc.starts_with("$fake$").then_some(()).ok_or_else(|| "unknown algorithm".into())
    }
}

#[derive(Default)]
pub struct FakeSessions(pub Mutex<Vec<SessionInfo>>);

impl FakeSessions {
    pub fn add(&self, clientid: &str, username: &str, userid: &str) {
        self.0.lock().unwrap().push(SessionInfo {
            clientid: clientid.into(),
            username: username.into(),
            userid: Some(userid.into()),
            node: 1,
            online: true,
            address: Some("192.0.2.1:5000".into()),
            protocol: 5,
            connected_at: 1,
            disconnected_at: None,
            subscriptions: 2,
            queued: 0,
            inflight: 0,
        });
    }
}

#[async_trait]
impl SessionControl for FakeSessions {
    async fn list(&self, query: &SessionQuery) -> Vec<SessionInfo> {
        let mut all = self.0.lock().unwrap().clone();
        all.sort_by(|a, b| a.clientid.cmp(&b.clientid));
        all.retain(|s| {
            query.username.as_ref().is_none_or(|u| s.username == *u)
                && query.userid.as_ref().is_none_or(|u| s.userid.as_ref() == Some(u))
                && query.after.as_ref().is_none_or(|a| s.clientid > *a)
        });
        all.truncate(query.limit);
        all
    }

    async fn end(&self, client_id: &str) -> bool {
        let mut all = self.0.lock().unwrap();
        let before = all.len();
        all.retain(|s| s.clientid != client_id);
        all.len() < before
    }
}

pub struct FakeNode(pub u64);

#[async_trait]
impl NodeView for FakeNode {
    fn node_id(&self) -> u64 {
        self.0
    }

    async fn plugins(&self) -> Option<Vec<PluginView>> {
        Some(vec![PluginView { name: "some-plugin".into(), version: Some("1.2.3".into()), active: true }])
    }
}

/// What another node does when it is called.
#[derive(Clone)]
pub enum Peer {
    /// It answers with the service of that name; nobody looks at the token.
    Node(Arc<InternalServices>),
    /// It answers with this.
    Says(Vec<u8>),
    /// There is no answer.
    Fails(PeerError),
    /// It takes the call and does not answer in time.
    Hangs,
}

/// The other nodes.
#[derive(Default)]
pub struct FakePeers(pub Mutex<BTreeMap<NodeId, Peer>>);

#[async_trait]
impl Peers for FakePeers {
    fn others(&self) -> Vec<NodeId> {
        self.0.lock().unwrap().keys().copied().collect()
    }

    fn url(&self, node: NodeId) -> Option<String> {
        Some(format!("http://n{node}:8090"))
    }

    fn learn(&self, _node: NodeId, _url: &str) {}

    fn reachability(&self, _node: NodeId) -> Reachability {
        Reachability::Unknown
    }

    async fn call(
        &self,
        node: NodeId,
        service: &str,
        _: Lane,
        body: Vec<u8>,
        timeout: Duration,
    ) -> Result<Vec<u8>, PeerError> {
        let peer = self.0.lock().unwrap()[&node].clone();
        match peer {
            Peer::Node(services) => Ok(services.get(service).unwrap().call(body).await.unwrap()),
            Peer::Says(answer) => Ok(answer),
            Peer::Fails(error) => Err(error),
            Peer::Hangs => {
                tokio::time::sleep(timeout).await;
                Err(PeerError::NoAnswer(format!("none within {timeout:?}")))
            }
        }
    }

    async fn call_at(&self, _: &str, _: &str, _: Vec<u8>, _: Duration) -> Result<Vec<u8>, PeerError> {
        unreachable!("the API calls nodes by their numbers")
    }
}
