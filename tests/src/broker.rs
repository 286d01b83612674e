//! The broker as a process: started on free ports, watched, and gone when the test is.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use crate::http::request;
use crate::mqtt::{Answer, Client, Connect, Link, Version};
use crate::options::{BrokerOptions, Toml};
use crate::rest::Rest;
use crate::watcher::Watcher;

/// How long a start may take. A development build on a busy machine is slow.
const START: Duration = Duration::from_secs(60);
/// How long an ordered end may take.
const END: Duration = Duration::from_secs(40);

/// A user that was created, with the password that only we know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// login name
    pub username: String,
    /// person
    pub userid: String,
    /// password
    pub password: String,
}

impl Account {
    /// A CONNECT of this user.
    pub fn connect(&self, version: Version, client_id: &str) -> Connect {
        Connect::new(version, Link::Tcp, client_id).login(&self.username, &self.password)
    }
}

/// How a broker ended.
#[derive(Debug, Clone, Copy)]
pub struct Exit {
    /// exit code; `None` after a signal
    pub code: Option<i32>,
    /// from the signal to the end
    pub took: Duration,
}

/// A running broker.
#[derive(Debug)]
pub struct Broker {
    /// MQTT over TCP
    pub tcp: SocketAddr,
    /// MQTT over WebSocket
    pub ws: SocketAddr,
    /// the API
    pub rest: Rest,
    options: BrokerOptions,
    dir: TempDir,
    // `None` between an end and the next start
    child: Option<Child>,
}

impl Broker {
    /// Starts one with the harness's defaults.
    #[track_caller]
    pub fn start_default() -> Self {
        Self::start(BrokerOptions::new())
    }

    /// Starts a broker and waits until it is ready.
    ///
    /// # Panics
    /// If it does not get there.
    #[track_caller]
    pub fn start(options: BrokerOptions) -> Self {
        let mut dir = tempfile::Builder::new().prefix("ciqadamq-").tempdir().unwrap();
        let mut last = String::new();
        // Between choosing a port and listening on it, another process may take it.
        for _ in 0..5 {
            let [tcp, ws, api] = free_addresses();
            let token = options.outside_token.clone().unwrap_or_else(random_token);
            let rest = Rest { addr: api, token };
            let mut broker = Self { tcp, ws, rest, options: options.clone(), dir, child: None };
            broker.write_config();
            match broker.launch() {
                Ok(()) => return broker,
                Err(error) if error.contains("in use") => last = error,
                Err(error) => panic!("{error}"),
            }
            dir = broker.into_dir();
        }
        panic!("no free ports: {last}");
    }

    /// A broker at these addresses that was not started yet.
    pub(crate) fn at([tcp, ws, api]: [SocketAddr; 3], token: &str, options: BrokerOptions) -> Self {
        let dir = tempfile::Builder::new().prefix("ciqadamq-").tempdir().unwrap();
        let rest = Rest { addr: api, token: token.into() };
        let broker = Self { tcp, ws, rest, options, dir, child: None };
        broker.write_config();
        broker
    }

    /// Starts it with the same configuration, ports and data, and does not wait until it is ready.
    ///
    /// # Panics
    /// If it runs.
    #[track_caller]
    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "it still runs");
        self.begin().unwrap_or_else(|error| panic!("{error}"));
    }

    /// Waits until a broker that was spawned is ready.
    ///
    /// # Errors
    /// If it ends, or does not get ready in time; with its log.
    pub fn wait_ready(&mut self) -> Result<(), String> {
        self.ready_since(0)
    }

    /// Whether it says that it is ready.
    pub fn is_ready(&self) -> bool {
        request(self.rest.addr, "GET", "/ready", &[], None).is_ok_and(|response| response.status == 200)
    }

    /// Whether its process runs.
    pub fn runs(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.dir.path().join("ciqadamq.toml")
    }

    /// The working directory; the data is in `data`.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// What the broker logged so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// The process id.
    ///
    /// # Panics
    /// If it does not run.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Resident memory, where the system tells it in a file.
    pub fn resident_kb(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).ok()?;
        status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.split_whitespace().next()?.parse().ok()
    }

    /// Where a link leads.
    pub fn addr(&self, link: &Link) -> SocketAddr {
        match link {
            Link::Tcp => self.tcp,
            Link::Ws { .. } => self.ws,
        }
    }

    /// Sends a CONNECT and gives the answer.
    #[track_caller]
    pub fn connect(&self, connect: &Connect) -> Answer {
        Client::connect(connect, self.addr(&connect.link))
    }

    /// A client of this user over TCP, clean, in.
    #[track_caller]
    pub fn client(&self, account: &Account, version: Version, client_id: &str) -> Client {
        self.connect(&account.connect(version, client_id)).accepted().0
    }

    /// Creates a user: userid `id`, username `id-token`.
    #[track_caller]
    pub fn user(&self, id: &str) -> Account {
        self.create(&format!("{id}-token"), id, false, false)
    }

    /// Creates an admin.
    #[track_caller]
    pub fn admin(&self, id: &str) -> Account {
        self.create(&format!("{id}-token"), id, false, true)
    }

    /// Creates a superuser.
    #[track_caller]
    pub fn superuser(&self, name: &str) -> Account {
        self.create(name, name, true, false)
    }

    /// Creates a user with a random password.
    #[track_caller]
    pub fn create(&self, username: &str, userid: &str, superuser: bool, admin: bool) -> Account {
        let password = random_token();
        let body = json!({"username": username, "userid": userid, "password": password, "superuser": superuser,
            "admin": admin});
        let response = self.rest.post("/api/v1/users", &body);
        assert_eq!(response.status, 201, "{}", response.text());
        Account { username: username.into(), userid: userid.into(), password }
    }

    /// A superuser who sees every message. Creates the user `watcher`; call it once.
    #[track_caller]
    pub fn watch(&self) -> Watcher {
        let account = self.superuser("watcher");
        Watcher::new(self.client(&account, Version::V5, "watcher"))
    }

    /// Asks it to end, and waits.
    #[track_caller]
    pub fn sigterm(&mut self) -> Exit {
        self.signal(Signal::Term);
        self.wait()
    }

    /// Ends it at once, without a chance to save anything.
    #[track_caller]
    pub fn kill9(&mut self) -> Exit {
        let started = Instant::now();
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        let status = child.wait().unwrap();
        Exit { code: status.code(), took: started.elapsed() }
    }

    /// Sends a signal and does not wait.
    ///
    /// # Panics
    /// If it does not run.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        signal.send(self.pid());
    }

    /// Waits until it ended.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn wait(&mut self) -> Exit {
        let started = Instant::now();
        let mut child = self.child.take().unwrap();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return Exit { code: status.code(), took: started.elapsed() };
            }
            if started.elapsed() > END {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("the broker did not end within {END:?}");
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts it again with the same configuration, ports and data.
    ///
    /// # Panics
    /// If it does not get ready.
    #[track_caller]
    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "it still runs");
        self.launch().unwrap_or_else(|error| panic!("{error}"));
    }

    /// SIGTERM, then a start.
    #[track_caller]
    pub fn restart(&mut self) {
        let exit = self.sigterm();
        assert_eq!(exit.code, Some(0), "it did not end in order");
        self.start_again();
    }

    /// Runs the binary with other arguments, in the same directory and environment, until it ends.
    ///
    /// # Panics
    /// If it cannot be started.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> std::process::Output {
        let env = self.options.env.iter().map(|(name, value)| (name, value));
        command(self.dir.path()).args(args).envs(env).stdin(Stdio::null()).output().unwrap()
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("broker.log")
    }

    fn write_config(&self) {
        let addr = |addr: SocketAddr| Toml::from(addr.to_string());
        let mut own = vec![
            ("mqtt.tcp_addr", addr(self.tcp)),
            ("mqtt.ws_addr", addr(self.ws)),
            ("api.addr", addr(self.rest.addr)),
            ("db.url", format!("sled://{}", self.dir.path().join("data/users").display()).into()),
        ];
        if !self.options.own_token && self.options.outside_token.is_none() {
            own.push(("api.token", self.rest.token.as_str().into()));
        }
        fs::write(self.config(), self.options.render(&own)).unwrap();
    }

    fn launch(&mut self) -> Result<(), String> {
        let from = self.begin()?;
        self.ready_since(from)
    }

    /// Starts the process; gives the length of the log before it.
    fn begin(&mut self) -> Result<usize, String> {
        let log = File::options().create(true).append(true).open(self.log_path()).unwrap();
        let from = log.metadata().unwrap().len() as usize;
        let mut command = command(self.dir.path());
        command.arg("--config").arg(self.config()).args(&self.options.args);
        command.envs(self.options.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        if let Some(uid) = self.options.uid {
            become_user(&mut command, uid, self.dir.path());
        }
        self.child = Some(command.spawn().map_err(|e| format!("the broker cannot be started: {e}"))?);
        Ok(from)
    }

    fn ready_since(&mut self, from: usize) -> Result<(), String> {
        let started = Instant::now();
        loop {
            if let Ok(response) = request(self.rest.addr, "GET", "/ready", &[], None)
                && response.status == 200
                && self.is_ours()
            {
                break;
            }
            if let Some(status) = self.child.as_mut().unwrap().try_wait().unwrap() {
                self.child = None;
                return Err(format!("the broker ended with {status}:\n{}", &self.log()[from..]));
            }
            if started.elapsed() > START {
                return Err(format!("the broker is not ready after {START:?}:\n{}", &self.log()[from..]));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Whether the API that answers is that of our process: another broker may have taken the port first.
    fn is_ours(&mut self) -> bool {
        if self.options.own_token {
            let token = fs::read_to_string(self.dir.path().join("data/api-token")).unwrap_or_default();
            self.rest.token = token.trim().into();
        }
        self.options.env.iter().any(|(name, _)| name == "API_TOKEN") || self.rest.get("/api/v1/cluster").status == 200
    }

    fn into_dir(mut self) -> TempDir {
        self.end();
        std::mem::replace(&mut self.dir, TempDir::new().unwrap())
    }

    fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself; then there is nothing to kill, and waiting returns at once.
            child.kill().ok();
            child.wait().ok();
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.end();
        if thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(60)..];
            eprintln!("--- end of the broker's log:\n{}\n---", tail.join("\n"));
        }
    }
}

/// As another user, who owns the directory. Root only.
#[cfg(unix)]
fn become_user(command: &mut Command, uid: u32, dir: &Path) {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    use std::os::unix::process::CommandExt as _;
    fn own(path: &Path, uid: u32) {
        chown(path, Some(uid), Some(uid)).unwrap();
        if path.is_dir() {
            fs::read_dir(path).unwrap().for_each(|entry| own(&entry.unwrap().path(), uid));
        }
    }
    own(dir, uid);
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    command.uid(uid).gid(uid);
}

#[cfg(not(unix))]
fn become_user(_: &mut Command, _: u32, _: &Path) {}

/// Signals that tests send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Signal {
    Term,
    Int,
    Stop,
    Continue,
}

impl Signal {
    #[cfg(unix)]
    fn send(self, pid: u32) {
        use nix::sys::signal::{Signal as Unix, kill};
        let signal = match self {
            Self::Term => Unix::SIGTERM,
            Self::Int => Unix::SIGINT,
            Self::Stop => Unix::SIGSTOP,
            Self::Continue => Unix::SIGCONT,
        };
        kill(nix::unistd::Pid::from_raw(pid.try_into().unwrap()), signal).unwrap();
    }

    #[cfg(not(unix))]
    fn send(self, _: u32) {
        panic!("{self:?}: there are no signals here");
    }
}

/// The binary, in a directory and with an environment that have no surprises.
///
/// It stays in the test's process group, so that whoever ends a hanging test ends the broker too.
pub fn command(dir: &Path) -> Command {
    let mut command = Command::new(binary());
    command.current_dir(dir).env_clear();
    for name in ["PATH", "LD_LIBRARY_PATH", "LLVM_PROFILE_FILE", "SYSTEMROOT"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

/// `CIQADAMQ_BIN`, else the development build of this workspace.
fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("CIQADAMQ_BIN") {
        return path.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let path = target.join("debug").join(format!("ciqadamq{}", std::env::consts::EXE_SUFFIX));
    assert!(
        path.is_file(),
        "{} is not there; `cargo xtask test` builds it, or build it with `cargo build -p ciqadamq`, or set CIQADAMQ_BIN",
        path.display()
    );
    path
}

/// Free now, and unlikely to be taken meanwhile: below the range that outgoing connections take their ports from, and
/// beginning elsewhere in every process. All are held until all are chosen, so they differ.
///
/// # Panics
/// If no port is free.
pub fn free_addresses<const N: usize>() -> [SocketAddr; N] {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    const RANGE: std::ops::Range<u32> = 10_000..30_000;
    let listeners = [(); N].map(|()| {
        let mut tries = RANGE.map(|_| {
            let n = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(std::process::id().wrapping_mul(61));
            (RANGE.start + n % (RANGE.end - RANGE.start)) as u16
        });
        tries.find_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()).expect("a free port")
    });
    listeners.map(|listener| listener.local_addr().unwrap())
}

/// 32 hexadecimal digits that nobody guesses.
pub fn random_token() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    // Each `RandomState` has keys of its own.
    format!("{:016x}{:016x}", RandomState::new().hash_one(1), RandomState::new().hash_one(2))
}
