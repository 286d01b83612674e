//! The configuration as the program uses it: every value checked, every secret hidden.
//!
//! Names, defaults and meanings for operators stand in `configs/ciqadamq.toml`; `keys.rs` says how each is read.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use ciqadamq_core::Secret;
use ipnet::IpNet;

/// Everything that can be configured.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// listeners and sessions
    pub mqtt: Mqtt,
    /// the REST API
    pub api: Api,
    /// the user store
    pub db: Db,
    /// subscriptions made on the server
    pub fanout: Fanout,
    /// who may publish and subscribe what
    pub acl: Acl,
    /// what one client may use up
    pub limits: Limits,
    /// who may connect
    pub auth: Auth,
    /// where secrets come from
    pub secrets: Secrets,
    /// this node among others
    pub cluster: Cluster,
    /// which plugins run
    pub plugins: Plugins,
    /// what is logged
    pub log: LogFilter,
}

impl Config {
    /// Whether the session store runs: persistent sessions, queues and Retained Messages are its business then.
    pub fn keeps_sessions(&self) -> bool {
        self.mqtt.persist_messages && self.plugins.starts("ciqadamq-session-store", true)
    }
}

/// `[mqtt]`
#[derive(Debug, Clone)]
pub struct Mqtt {
    /// MQTT over TCP; `None` = no such listener
    pub tcp_addr: Option<SocketAddr>,
    /// MQTT over WebSocket, any path
    pub ws_addr: Option<SocketAddr>,
    /// MQTT over TLS
    pub tls_addr: Option<SocketAddr>,
    /// MQTT over WebSocket over TLS
    pub wss_addr: Option<SocketAddr>,
    /// PEM certificate chain
    pub tls_cert: Option<PathBuf>,
    /// PEM private key
    pub tls_key: Option<PathBuf>,
    /// PEM certificates of the authorities that client certificates must come from
    pub tls_client_ca: Option<PathBuf>,
    /// Message Expiry Interval of messages without one, and the longest accepted. Seconds.
    pub message_expiry_secs: u32,
    /// how long a v3.1 or v3.1.1 Session outlives its connection. Seconds.
    pub session_expiry_secs: u32,
    /// the longest Session Expiry Interval granted to a v5 client. Seconds.
    pub max_session_expiry_secs: u32,
    /// messages queued for one Session
    pub max_mqueue_len: usize,
    /// Receive Maximum: QoS 1 and 2 messages on their way at once, in each direction
    pub max_inflight: u16,
    /// Maximum Packet Size. Bytes.
    pub max_packet_size: u32,
    /// longest Client Identifier. Bytes.
    pub max_clientid_len: usize,
    /// refuse connections while the node is overloaded
    pub busy_check: bool,
    /// a PROXY protocol header comes first on every connection
    pub proxy_protocol: bool,
    /// but only on those from these networks; empty = on every one
    pub proxy_protocol_from: Vec<IpNet>,
    /// every packet is sent at once (`TCP_NODELAY`)
    pub tcp_nodelay: bool,
    /// from TCP accept to a complete CONNECT. Seconds.
    pub connect_timeout_secs: u16,
    /// connections at once on all listeners together; 0 = no limit of its own
    pub max_connections: usize,
    /// persistent sessions, their queues, and Retained Messages on disk
    pub persist_messages: bool,
    /// what an acknowledgement promises
    pub durability: Durability,
    /// longest time between two fsyncs of what nobody waits for. Seconds.
    pub msg_flush_secs: u32,
    /// messages queued for one persistent Session, if less than `max_mqueue_len`; 0 = that
    pub msg_queue_cap: usize,
    /// bytes of all kept messages; 0 = no limit
    pub msg_max_bytes: u64,
    /// kept messages; 0 = no limit
    pub msg_max_msgs: u64,
}

/// What an acknowledgement promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// it is on the disk
    #[default]
    Fsync,
    /// the operating system has it, and the disk within `msg_flush_secs`
    Interval,
    /// it is in memory
    Memory,
}

impl Default for Mqtt {
    fn default() -> Self {
        Self {
            tcp_addr: Some(any(1883)),
            ws_addr: Some(any(8083)),
            tls_addr: None,
            wss_addr: None,
            tls_cert: None,
            tls_key: None,
            tls_client_ca: None,
            message_expiry_secs: 1200,
            session_expiry_secs: 7200,
            max_session_expiry_secs: 7200,
            max_mqueue_len: 1000,
            max_inflight: 65535,
            max_packet_size: 1024 * 1024,
            max_clientid_len: 256,
            busy_check: false,
            proxy_protocol: false,
            proxy_protocol_from: Vec::new(),
            tcp_nodelay: false,
            connect_timeout_secs: 10,
            max_connections: 0,
            persist_messages: true,
            durability: Durability::Fsync,
            msg_flush_secs: 1,
            msg_queue_cap: 0,
            msg_max_bytes: 2 << 30,
            msg_max_msgs: 2_000_000,
        }
    }
}

impl Mqtt {
    /// The listeners that are configured: the key, and the address.
    pub fn listeners(&self) -> impl Iterator<Item = (&'static str, SocketAddr)> {
        [
            ("mqtt.tcp_addr", self.tcp_addr),
            ("mqtt.ws_addr", self.ws_addr),
            ("mqtt.tls_addr", self.tls_addr),
            ("mqtt.wss_addr", self.wss_addr),
        ]
        .into_iter()
        .filter_map(|(key, addr)| Some((key, addr?)))
    }
}

/// `[api]`
#[derive(Debug, Clone)]
pub struct Api {
    /// REST, health and metrics
    pub addr: SocketAddr,
    /// `/internal/` on a listener of its own; `None` = at `addr`
    pub internal_addr: Option<SocketAddr>,
    /// the management token; `None` = one is made and kept in a file
    pub token: Option<Secret>,
    /// the token of `/internal/`; `None` = the management token
    pub repl_token: Option<Secret>,
    /// how long the previous token works after a rotation. Seconds.
    pub token_overlap_secs: u32,
}

impl Api {
    /// Where it listens for other nodes.
    pub fn for_nodes(&self) -> SocketAddr {
        self.internal_addr.unwrap_or(self.addr)
    }
}

impl Default for Api {
    fn default() -> Self {
        Self { addr: any(8090), internal_addr: None, token: None, repl_token: None, token_overlap_secs: 60 }
    }
}

/// `[db]`
#[derive(Debug, Clone, Default)]
pub struct Db {
    /// where the users are
    pub url: DbUrl,
}

/// `sled://PATH`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DbUrl {
    /// the directory of the store
    pub path: PathBuf,
}

impl Default for DbUrl {
    fn default() -> Self {
        Self { path: PathBuf::from("data/users") }
    }
}

impl Db {
    /// The directory next to the user store: token files, retained messages and the like go there.
    pub fn data_dir(&self) -> PathBuf {
        match self.url.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        }
    }

    /// The file with the management token of a node that was given none.
    pub fn api_token_file(&self) -> PathBuf {
        self.data_dir().join("api-token")
    }
}

/// `[fanout]`
#[derive(Debug, Clone)]
pub struct Fanout {
    /// subscribe every client that connects
    pub auto_subscribe: bool,
    /// at this QoS
    pub qos: u8,
}

impl Default for Fanout {
    fn default() -> Self {
        Self { auto_subscribe: false, qos: 1 }
    }
}

/// `[acl]`
#[derive(Debug, Clone)]
pub struct Acl {
    /// apply the access rule at all
    pub enabled: bool,
    /// Topic Names that everybody may publish to
    pub publish_topics: Vec<String>,
    /// everybody may subscribe below these
    pub fanout_prefixes: Vec<String>,
    /// admins may subscribe below these
    pub admin_prefixes: Vec<String>,
    /// allow the subscription prefixes `$exclusive/` and `$limit/{n}/`
    pub limit_prefixes: bool,
    /// who may set the retain flag
    pub retain: RetainFor,
    /// what follows a refused publish
    pub on_deny: OnDeny,
}

impl Default for Acl {
    fn default() -> Self {
        Self {
            enabled: true,
            publish_topics: vec!["chatsync".into(), "updates".into()],
            fanout_prefixes: vec!["fanout".into()],
            admin_prefixes: vec!["adminfanout".into()],
            limit_prefixes: false,
            retain: RetainFor::Everybody,
            on_deny: OnDeny::Disconnect,
        }
    }
}

/// What follows a refused publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDeny {
    /// the connection is closed
    Disconnect,
    /// acknowledged and dropped
    Drop,
}

/// Who may set the retain flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetainFor {
    /// on what one may publish
    Everybody,
    /// superusers alone
    Superusers,
}

/// `[limits]`
#[derive(Debug, Clone)]
pub struct Limits {
    /// sessions of one user, online or not; 0 = no limit
    pub sessions_per_user: usize,
    /// subscriptions of one session; 0 = no limit
    pub subscriptions_per_session: usize,
    /// bytes of their Topic Filters together; 0 = no limit
    pub subscription_bytes_per_session: u32,
    /// levels of a topic name or filter
    pub topic_levels: usize,
    /// messages a second from one connection; 0 = no limit
    pub publish_messages_per_sec: u32,
    /// bytes of topic and payload a second from one connection; 0 = no limit
    pub publish_bytes_per_sec: u32,
    /// Retained Messages of one user; 0 = no limit
    pub retained_per_user: usize,
    /// connections on which nobody has logged in yet; 0 = no limit
    pub unauthenticated: usize,
    /// the same from one address; 0 = no limit
    pub unauthenticated_per_address: usize,
    /// how far an online client may be behind with its messages; 0 = no limit. Seconds.
    pub lag_secs: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions_per_user: 1000,
            subscriptions_per_session: 1000,
            subscription_bytes_per_session: 256 * 1024,
            topic_levels: 128,
            publish_messages_per_sec: 1000,
            publish_bytes_per_sec: 8 * 1024 * 1024,
            retained_per_user: 100,
            unauthenticated: 4096,
            unauthenticated_per_address: 256,
            lag_secs: 20,
        }
    }
}

/// `[auth]`
#[derive(Debug, Clone)]
pub struct Auth {
    /// how long a successful login is remembered; 0 = not at all. Seconds.
    pub cache_ttl_secs: u64,
    /// passwords hashed at once
    pub hash_concurrency: usize,
    /// logins that may wait for that
    pub hash_queue: usize,
    /// how long one may wait. Seconds.
    pub hash_deadline_secs: u64,
    /// key of the fast verifier
    pub pepper: Option<Secret>,
    /// everybody is a superuser
    pub disabled: bool,
    /// even from other machines
    pub disabled_allow_remote: bool,
    /// cost of a new hash
    pub argon2: Argon2Cost,
    /// failed logins of one user name within the window before its passwords are no longer hashed
    pub brake_failures_per_user: u32,
    /// the same for one source address
    pub brake_failures_per_address: u32,
    /// the window of both. Seconds.
    pub brake_window_secs: u64,
}

impl Default for Auth {
    fn default() -> Self {
        Self {
            cache_ttl_secs: 300,
            hash_concurrency: std::thread::available_parallelism().map_or(1, usize::from),
            hash_queue: 1024,
            hash_deadline_secs: 5,
            pepper: None,
            disabled: false,
            disabled_allow_remote: false,
            argon2: Argon2Cost::default(),
            brake_failures_per_user: 10,
            brake_failures_per_address: 100,
            brake_window_secs: 60,
        }
    }
}

/// `[auth.argon2]`
#[derive(Debug, Clone, Copy)]
pub struct Argon2Cost {
    /// memory. KiB.
    pub m_cost: u32,
    /// passes
    pub t_cost: u32,
    /// lanes
    pub p_cost: u32,
}

impl Default for Argon2Cost {
    fn default() -> Self {
        Self { m_cost: 9216, t_cost: 2, p_cost: 1 }
    }
}

/// `[secrets]`
#[derive(Debug, Clone)]
pub struct Secrets {
    /// where secrets come from; `None` = a hyperion-vault if there is an address, else the configuration
    pub provider: Option<SecretsProvider>,
    /// address of the vault
    pub addr: Option<String>,
    /// PEM certificates of the authority that the vault's certificate comes from
    pub ca_file: Option<PathBuf>,
    /// directory with one file a secret
    pub dir: Option<PathBuf>,
    /// how long the vault may take to answer. Seconds.
    pub timeout_secs: u64,
    /// how long a vault that fails is tried again at start. Seconds.
    pub start_timeout_secs: u64,
    /// how often the vault is asked without a reason. Seconds.
    pub refresh_secs: u64,
    /// what a Vault or an OpenBao needs besides
    pub vault: Vault,
}

impl Default for Secrets {
    fn default() -> Self {
        Self {
            provider: None,
            addr: None,
            ca_file: None,
            dir: None,
            timeout_secs: 5,
            start_timeout_secs: 15,
            refresh_secs: 30,
            vault: Vault::default(),
        }
    }
}

impl Secrets {
    /// Where secrets come from, after all.
    pub fn provider(&self) -> SecretsProvider {
        match (self.provider, &self.addr) {
            (Some(provider), _) => provider,
            (None, Some(_)) => SecretsProvider::HyperionVault,
            (None, None) => SecretsProvider::Environment,
        }
    }
}

/// Where secrets come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretsProvider {
    /// the environment and the configuration
    Environment,
    /// a hyperion-vault
    HyperionVault,
    /// HashiCorp Vault or OpenBao
    Vault,
    /// files
    Files,
}

impl SecretsProvider {
    /// As the configuration calls it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Environment => "environment",
            Self::HyperionVault => "hyperion-vault",
            Self::Vault => "vault",
            Self::Files => "files",
        }
    }
}

/// `[secrets.vault]`
#[derive(Debug, Clone)]
pub struct Vault {
    /// namespace
    pub namespace: Option<String>,
    /// path of the KV engine
    pub mount: String,
    /// path of a secret in it
    pub path: String,
    /// field with the value
    pub field: String,
    /// version of the KV engine
    pub kv_version: u8,
    /// how the node logs in
    pub auth: VaultAuth,
    /// path of the auth method; `None` = its usual one
    pub auth_mount: Option<String>,
    /// token
    pub token: Option<Secret>,
    /// file with it
    pub token_file: Option<PathBuf>,
    /// AppRole: role id
    pub role_id: Option<Secret>,
    /// file with it
    pub role_id_file: Option<PathBuf>,
    /// AppRole: secret id
    pub secret_id: Option<Secret>,
    /// file with it
    pub secret_id_file: Option<PathBuf>,
    /// Kubernetes: role
    pub kubernetes_role: Option<String>,
    /// Kubernetes: file with the service account's token
    pub kubernetes_jwt_file: PathBuf,
}

impl Default for Vault {
    fn default() -> Self {
        Self {
            namespace: None,
            mount: "secret".into(),
            path: "ciqada/{name}".into(),
            field: "value".into(),
            kv_version: 2,
            auth: VaultAuth::Token,
            auth_mount: None,
            token: None,
            token_file: None,
            role_id: None,
            role_id_file: None,
            secret_id: None,
            secret_id_file: None,
            kubernetes_role: None,
            kubernetes_jwt_file: "/var/run/secrets/kubernetes.io/serviceaccount/token".into(),
        }
    }
}

/// How a node logs in to a Vault or an OpenBao.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VaultAuth {
    /// with a token
    Token,
    /// with a role id and a secret id
    AppRole,
    /// with the pod's service account
    Kubernetes,
}

/// `[cluster]`
#[derive(Debug, Clone)]
pub struct Cluster {
    /// join others
    pub enabled: bool,
    /// this node: the top 16 bits of its message ids
    pub node_id: u16,
    /// who starts the cluster
    pub leader_id: u16,
    /// TLS between nodes
    pub peer_tls: bool,
    /// PEM certificates of the authorities that certify the nodes' APIs, besides the public ones
    pub peer_ca: Option<PathBuf>,
    /// where other nodes call this one
    pub grpc_laddr: SocketAddr,
    /// where raft listens
    pub raft_laddr: SocketAddr,
    /// `id@host:port` of each node's gRPC
    pub node_grpc_addrs: Vec<String>,
    /// `id@host:port` of each node's raft
    pub raft_peer_addrs: Vec<String>,
    /// `id@http://host:port` of each node's API, as other nodes reach `/internal/` there; empty = beside the gRPC, see
    /// [`Cluster::api_urls`]
    pub node_api_addrs: Vec<String>,
    /// tries to join before giving up; 0 = for ever
    pub join_max_retries: u32,
    /// pause between them. Seconds.
    pub join_retry_secs: u32,
    /// a leader without a quorum steps down
    pub check_quorum: bool,
    /// ask before an election
    pub pre_vote: bool,
    /// ticks without a leader before an election
    pub election_tick: u32,
    /// ticks between heartbeats
    pub heartbeat_tick: u32,
    /// threads of raft
    pub raft_worker_threads: usize,
    /// what `rmqtt-cluster-raft` has besides
    pub raft: Raft,
}

/// `[cluster.raft]`
#[derive(Debug, Clone)]
pub struct Raft {
    /// raft's clock: one tick. Milliseconds.
    pub tick_ms: u32,
    /// proposals in one entry of the log
    pub proposal_batch_size: u32,
    /// how long an entry waits for more. Milliseconds.
    pub proposal_batch_timeout_ms: u32,
    /// for an answer of another node's raft. Milliseconds.
    pub grpc_timeout_ms: u32,
    /// for an answer of another node's broker. Milliseconds.
    pub node_grpc_timeout_ms: u32,
    /// how long a client id stays locked by a CONNECT that came to nothing. Milliseconds.
    pub try_lock_timeout_ms: u32,
    /// between two snapshots
    pub snapshot_interval_secs: u32,
    /// further settings of the plugin in its own words: `name = value`
    pub more: Vec<String>,
}

impl Default for Raft {
    fn default() -> Self {
        Self {
            tick_ms: 2,
            proposal_batch_size: 60,
            proposal_batch_timeout_ms: 0,
            grpc_timeout_ms: 1000,
            node_grpc_timeout_ms: 1000,
            try_lock_timeout_ms: 3000,
            snapshot_interval_secs: 600,
            more: Vec::new(),
        }
    }
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            enabled: false,
            node_id: 0,
            leader_id: 0,
            peer_tls: false,
            peer_ca: None,
            grpc_laddr: any(5363),
            raft_laddr: any(6003),
            node_grpc_addrs: Vec::new(),
            raft_peer_addrs: Vec::new(),
            node_api_addrs: Vec::new(),
            join_max_retries: 0,
            join_retry_secs: 5,
            check_quorum: true,
            pre_vote: true,
            election_tick: 250,
            heartbeat_tick: 50,
            raft_worker_threads: 2,
            raft: Raft::default(),
        }
    }
}

/// `[plugins]`
#[derive(Debug, Clone, Default)]
pub struct Plugins {
    /// one `NAME.toml` per official plugin; `None` = the built-in settings
    pub dir: Option<PathBuf>,
    /// on, whatever the default
    pub enable: Vec<String>,
    /// off, whatever the default
    pub disable: Vec<String>,
}

impl Plugins {
    /// Whether the plugin `name` starts, which does so by default or not.
    pub fn starts(&self, name: &str, default: bool) -> bool {
        let listed = |list: &[String]| list.iter().any(|n| n == name);
        (default || listed(&self.enable)) && !listed(&self.disable)
    }
}

/// A `tracing` filter, such as `info` or `warn,ciqadamq=debug`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter(pub String);

impl Default for LogFilter {
    fn default() -> Self {
        Self("info".into())
    }
}

fn any(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)
}
