//! Commands, stores and observers for tests.

use std::path::Path;
use std::process::Command as Process;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use ciqadamq_core::{
    Command, PasswordHash, Revision, User, UserChange, UserDirectory, UserId, UserObserver, UserPatch, UserQuery,
    Username,
};
use ciqadamq_user_store::{StoreConfig, UserStore};
use parking_lot::Mutex;

pub fn open(path: &Path) -> Arc<UserStore> {
    UserStore::open(StoreConfig::at(path)).unwrap()
}

/// The database below a store that was dropped: sled lets go of its lock a moment after that.
pub fn sled(path: &Path) -> sled::Db {
    let since = Instant::now();
    loop {
        match sled::open(path) {
            Ok(db) => return db,
            Err(error) if since.elapsed() > Duration::from_secs(30) => panic!("{}: {error}", path.display()),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

pub fn name(text: &str) -> Username {
    Username::new(text).unwrap()
}

pub fn person(text: &str) -> UserId {
    UserId::new(text).unwrap()
}

pub fn create(username: &str, userid: &str) -> Command {
    Command::Create {
        username: name(username),
        userid: person(userid),
        password: PasswordHash(
            "$argon2id$v=19$m=9216,t=2,p=1$c2FsdHNhbHRzYWx0$aGFzaGhhc2hoYXNoaGFzaGhhc2hoYXNo".into(),
        ),
        superuser: false,
        admin: false,
    }
}

pub fn update(username: &str, patch: UserPatch) -> Command {
    Command::Update { username: name(username), patch }
}

pub fn delete(username: &str) -> Command {
    Command::Delete { username: name(username) }
}

/// A whole listing, read page by page.
pub fn list(store: &dyn UserDirectory, userid: Option<&str>, limit: usize) -> Vec<Arc<User>> {
    let mut query = UserQuery { after: None, userid: userid.map(person), limit };
    let mut users = Vec::new();
    loop {
        let page = store.list(&query).unwrap();
        assert!(page.users.len() <= limit);
        users.extend(page.users);
        match page.next {
            Some(next) => query.after = Some(next),
            None => return users,
        }
    }
}

/// Writes down what it hears.
#[derive(Default)]
pub struct Recorder(pub Mutex<Vec<UserChange>>);

impl UserObserver for Recorder {
    fn user_changed(&self, change: &UserChange) {
        self.0.lock().push(change.clone());
    }
}

impl Recorder {
    pub fn on(store: &UserStore) -> Arc<Self> {
        let recorder = Arc::<Self>::default();
        store.observe(recorder.clone());
        recorder
    }

    pub fn heard(&self, revision: Revision) -> bool {
        self.0.lock().iter().any(|change| change.revision == revision)
    }
}

/// Tells a test that it is the other process of a test, and which directory to use.
pub const CHILD_DIRECTORY: &str = "USER_STORE_TEST_CHILD_DIRECTORY";

/// This test program again, to run one ignored test as a process of its own. Arguments for `wrap` come before it.
pub fn child(wrap: &[&str], test: &str, directory: &Path) -> Process {
    let program = std::env::current_exe().unwrap();
    let mut process = match wrap.split_first() {
        Some((first, rest)) => {
            let mut process = Process::new(first);
            process.args(rest).arg(program);
            process
        }
        None => Process::new(program),
    };
    process.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]).env(CHILD_DIRECTORY, directory);
    process
}

/// Holds the writer up while it tells of users whose names begin with `gate`, so that a test can fill the queue.
pub struct Gate {
    arrived: Mutex<mpsc::Sender<()>>,
    open: Mutex<mpsc::Receiver<()>>,
}

impl UserObserver for Gate {
    fn user_changed(&self, change: &UserChange) {
        if change.username.as_str().starts_with("gate") {
            self.arrived.lock().send(()).unwrap();
            self.open.lock().recv_timeout(Duration::from_secs(30)).unwrap();
        }
    }
}

impl Gate {
    /// What says that the writer stands at the gate, and what lets it through.
    pub fn on(store: &UserStore) -> (mpsc::Receiver<()>, mpsc::Sender<()>) {
        let ((arrived, is_there), (go, open)) = (mpsc::channel(), mpsc::channel());
        store.observe(Arc::new(Self { arrived: Mutex::new(arrived), open: Mutex::new(open) }));
        (is_there, go)
    }
}

/// Lets every spawned task of this single-threaded runtime have its turn.
pub async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}
