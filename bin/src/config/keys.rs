//! The table of all keys: each declared once, with its environment variable and what it accepts.
//!
//! Reading, the environment, the hint after a typing error, the effective configuration and the test of the sample
//! file all go through this table.

use ciqadamq_secrets::value::{PEPPER_BYTES_MIN, PEPPER_PLACEHOLDERS, TOKEN_BYTES_MIN, TOKEN_PLACEHOLDERS};

use super::kinds::{
    Addr, Bool, Choice, Database, FilePath, Filter, Hidden, HttpServer, Input, Int, Kind, List, Networks, NodeList,
    Opt, Size, VaultPath,
};
use super::model::{Config, Durability, OnDeny, RetainFor, SecretsProvider, VaultAuth};

/// One key.
pub struct Key {
    /// with its sections: `mqtt.tcp_addr`
    pub path: &'static str,
    /// the environment variable that overrides it
    pub env: Option<&'static str>,
    /// reads a value into the configuration
    pub set: fn(&mut Config, Input<'_>) -> Result<(), String>,
    /// the value as TOML, secrets redacted; `None` if nothing is set
    pub show: fn(&Config) -> Option<String>,
}

macro_rules! keys {
    ($($first:ident $(. $rest:ident)* $(($env:literal))? = $kind:expr;)*) => {
        /// Every key, in the order of the sample file.
        pub const KEYS: &[Key] = &[$(Key {
            path: concat!(stringify!($first) $(, ".", stringify!($rest))*),
            env: keys!(@env $($env)?),
            set: |config, input| {
                config.$first$(.$rest)* = $kind.read(input)?;
                Ok(())
            },
            show: |config| $kind.show(&config.$first$(.$rest)*),
        }),*];
    };
    (@env $env:literal) => { Some($env) };
    (@env) => { None };
}

const TOKEN: Hidden = Hidden {
    min: TOKEN_BYTES_MIN,
    // It stands in a header.
    graphic_only: true,
    // Nobody chose these.
    placeholders: TOKEN_PLACEHOLDERS,
};

const PEPPER: Hidden = Hidden { min: PEPPER_BYTES_MIN, graphic_only: false, placeholders: PEPPER_PLACEHOLDERS };

/// What the vault itself made: no value is too short for it.
const VAULT_CREDENTIAL: Hidden = Hidden { min: 1, graphic_only: true, placeholders: &[] };

/// A year: longer is a typing error, or means "for ever" and has a value of its own.
const YEAR_SECS: u64 = 366 * 24 * 3600;

/// The session store has 49,151 Packet Identifiers for what waits and what is in flight: of more it could not keep all.
pub(super) const QUEUE_MAX: usize = 32_767;

keys! {
    log ("RUST_LOG") = Filter;

    mqtt.tcp_addr = Opt(Addr);
    mqtt.ws_addr = Opt(Addr);
    mqtt.tls_addr = Opt(Addr);
    mqtt.wss_addr = Opt(Addr);
    mqtt.tls_cert = Opt(FilePath);
    mqtt.tls_key = Opt(FilePath);
    mqtt.tls_client_ca = Opt(FilePath);
    // 0 would mean "never" to the engine for live messages and "at once" for retained ones.
    mqtt.message_expiry_secs = Int::<u32>(1, u32::MAX);
    mqtt.session_expiry_secs = Int::<u32>(0, u32::MAX);
    // 0 would mean "no limit" to the engine.
    mqtt.max_session_expiry_secs = Int::<u32>(1, u32::MAX);
    mqtt.max_mqueue_len = Int::<usize>(1, QUEUE_MAX);
    mqtt.max_inflight = Int::<u16>(1, u16::MAX);
    mqtt.max_packet_size = Size(1024, 256 * 1024 * 1024);
    mqtt.max_clientid_len = Int::<usize>(1, 65535);
    mqtt.busy_check = Bool;
    mqtt.proxy_protocol = Bool;
    mqtt.proxy_protocol_from = Networks;
    mqtt.tcp_nodelay = Bool;
    mqtt.connect_timeout_secs = Int::<u16>(1, 3600);
    mqtt.max_connections = Int::<usize>(0, 100_000_000);
    mqtt.persist_messages = Bool;
    mqtt.durability = Choice(&[
        ("fsync", Durability::Fsync),
        ("interval", Durability::Interval),
        ("memory", Durability::Memory),
    ]);
    mqtt.msg_flush_secs ("MSG_FLUSH_SECS") = Int::<u32>(1, 3600);
    mqtt.msg_queue_cap ("MSG_QUEUE_CAP") = Int::<usize>(0, QUEUE_MAX);
    mqtt.msg_max_bytes ("MSG_MAX_BYTES") = Int::<u64>(0, i64::MAX as u64);
    mqtt.msg_max_msgs ("MSG_MAX_MSGS") = Int::<u64>(0, 1_000_000_000);

    api.addr = Addr;
    api.internal_addr = Opt(Addr);
    api.token ("API_TOKEN") = Opt(TOKEN);
    api.repl_token ("REPL_TOKEN") = Opt(TOKEN);
    api.token_overlap_secs ("API_TOKEN_OVERLAP_SECS") = Int::<u32>(0, 86_400);

    db.url ("DB_URL") = Database;

    fanout.auto_subscribe = Bool;
    fanout.qos = Int::<u8>(0, 2);

    acl.enabled = Bool;
    acl.publish_topics = List;
    acl.fanout_prefixes = List;
    acl.admin_prefixes = List;
    acl.limit_prefixes = Bool;
    acl.retain = Choice(&[("allowed", RetainFor::Everybody), ("superusers", RetainFor::Superusers)]);
    acl.on_deny = Choice(&[("disconnect", OnDeny::Disconnect), ("drop", OnDeny::Drop)]);

    limits.sessions_per_user = Int::<usize>(0, 100_000_000);
    limits.subscriptions_per_session = Int::<usize>(0, 1_000_000);
    limits.subscription_bytes_per_session = Size(0, 1024 * 1024 * 1024);
    // The engine walks topics recursively.
    limits.topic_levels = Int::<usize>(1, 512);
    limits.publish_messages_per_sec = Int::<u32>(0, 10_000_000);
    limits.publish_bytes_per_sec = Size(0, u32::MAX);
    limits.retained_per_user = Int::<usize>(0, 100_000_000);
    limits.unauthenticated = Int::<usize>(0, 10_000_000);
    limits.unauthenticated_per_address = Int::<usize>(0, 10_000_000);
    limits.lag_secs = Int::<u32>(0, 3600);

    auth.cache_ttl_secs ("AUTH_CACHE_TTL_SECS") = Int::<u64>(0, YEAR_SECS);
    auth.hash_concurrency ("AUTH_HASH_CONCURRENCY") = Int::<usize>(1, 1024);
    auth.hash_queue = Int::<usize>(1, 1_000_000);
    auth.hash_deadline_secs = Int::<u64>(1, 60);
    auth.pepper ("AUTH_PEPPER") = Opt(PEPPER);
    auth.brake_failures_per_user = Int::<u32>(1, 1_000_000);
    auth.brake_failures_per_address = Int::<u32>(1, 1_000_000);
    auth.brake_window_secs = Int::<u64>(1, 86_400);
    auth.disabled ("AUTH_DISABLED") = Bool;
    auth.disabled_allow_remote = Bool;
    // The upper bounds are those up to which a stored hash is honoured: a login must not cost a server.
    auth.argon2.m_cost ("ARGON2_M_COST") = Int::<u32>(8, 256 * 1024);
    auth.argon2.t_cost ("ARGON2_T_COST") = Int::<u32>(1, 32);
    auth.argon2.p_cost ("ARGON2_P_COST") = Int::<u32>(1, 16);

    secrets.provider ("SECRETS_PROVIDER") = Opt(Choice(&[
        ("environment", SecretsProvider::Environment),
        ("hyperion-vault", SecretsProvider::HyperionVault),
        ("vault", SecretsProvider::Vault),
        ("openbao", SecretsProvider::Vault),
        ("files", SecretsProvider::Files),
    ]));
    secrets.addr ("VAULT_ADDR") = Opt(HttpServer);
    secrets.ca_file ("VAULT_CACERT") = Opt(FilePath);
    secrets.dir ("SECRETS_DIR") = Opt(FilePath);
    secrets.timeout_secs = Int::<u64>(1, 60);
    secrets.start_timeout_secs = Int::<u64>(0, 3600);
    secrets.refresh_secs = Int::<u64>(1, 86_400);
    secrets.vault.namespace ("VAULT_NAMESPACE") = Opt(VaultPath);
    secrets.vault.mount = VaultPath;
    secrets.vault.path = VaultPath;
    secrets.vault.field = VaultPath;
    secrets.vault.kv_version = Int::<u8>(1, 2);
    secrets.vault.auth = Choice(&[
        ("token", VaultAuth::Token),
        ("approle", VaultAuth::AppRole),
        ("kubernetes", VaultAuth::Kubernetes),
    ]);
    secrets.vault.auth_mount = Opt(VaultPath);
    secrets.vault.token ("VAULT_TOKEN") = Opt(VAULT_CREDENTIAL);
    secrets.vault.token_file ("VAULT_TOKEN_FILE") = Opt(FilePath);
    secrets.vault.role_id ("VAULT_ROLE_ID") = Opt(VAULT_CREDENTIAL);
    secrets.vault.role_id_file ("VAULT_ROLE_ID_FILE") = Opt(FilePath);
    secrets.vault.secret_id ("VAULT_SECRET_ID") = Opt(VAULT_CREDENTIAL);
    secrets.vault.secret_id_file ("VAULT_SECRET_ID_FILE") = Opt(FilePath);
    secrets.vault.kubernetes_role ("VAULT_KUBERNETES_ROLE") = Opt(VaultPath);
    secrets.vault.kubernetes_jwt_file = FilePath;

    cluster.enabled = Bool;
    cluster.node_id ("NODE_ID") = Int::<u16>(0, u16::MAX);
    cluster.leader_id = Int::<u16>(0, u16::MAX);
    cluster.peer_tls ("PEER_TLS") = Bool;
    cluster.peer_ca = Opt(FilePath);
    cluster.grpc_laddr = Addr;
    cluster.raft_laddr = Addr;
    cluster.node_grpc_addrs = NodeList { scheme: "" };
    cluster.raft_peer_addrs = NodeList { scheme: "" };
    cluster.node_api_addrs = NodeList { scheme: "http://" };
    cluster.join_max_retries = Int::<u32>(0, 1_000_000);
    cluster.join_retry_secs = Int::<u32>(1, 3600);
    cluster.check_quorum = Bool;
    cluster.pre_vote = Bool;
    cluster.election_tick = Int::<u32>(2, 100_000);
    cluster.heartbeat_tick = Int::<u32>(1, 10_000);
    cluster.raft_worker_threads ("RAFT_WORKER_THREADS") = Int::<usize>(1, 256);

    cluster.raft.tick_ms = Int::<u32>(1, 10_000);
    cluster.raft.proposal_batch_size = Int::<u32>(1, 100_000);
    cluster.raft.proposal_batch_timeout_ms = Int::<u32>(0, 10_000);
    cluster.raft.grpc_timeout_ms = Int::<u32>(100, 60_000);
    cluster.raft.node_grpc_timeout_ms = Int::<u32>(100, 60_000);
    cluster.raft.try_lock_timeout_ms = Int::<u32>(100, 60_000);
    cluster.raft.snapshot_interval_secs = Int::<u32>(1, 86_400);
    cluster.raft.more = List;

    plugins.dir = Opt(FilePath);
    plugins.enable = List;
    plugins.disable = List;
}

/// The key of that name.
pub fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// Whether `path` is a section: some key is below it.
pub fn is_section(path: &str) -> bool {
    KEYS.iter().any(|key| key.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}

/// What the operator may have meant by `path`.
pub fn nearest(path: &str) -> Option<&'static str> {
    // A key in the wrong section is as likely as a typing error.
    let last = path.rsplit('.').next().unwrap_or(path);
    let same_name = || KEYS.iter().map(|key| key.path).find(|known| known.rsplit('.').next() == Some(last));
    let (distance, known) = KEYS.iter().map(|key| (strsim::damerau_levenshtein(path, key.path), key.path)).min()?;
    if distance <= 3 && distance * 3 < path.len() { Some(known) } else { same_name() }
}
