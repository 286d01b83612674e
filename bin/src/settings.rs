//! From the configuration to the settings of our plugins.

mod cluster;
#[cfg(feature = "vault")]
mod vault;
#[cfg(not(feature = "vault"))]
#[path = "settings/no_vault.rs"]
mod vault;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use ciqadamq_auth::{AuthConfig, HashParams, Silent};
use ciqadamq_core::{AccessRules, Health, Peers, Rate, Secret, SecretName, SecretSource as _};
use ciqadamq_gate::{Gate, GateConfig, GateListener, ProxyProtocol, Transport, tls_config};
use ciqadamq_peers::{HttpPeers, PeersConfig};
use ciqadamq_rest::{Credential as TokenKind, RestConfig, Tokens, load_or_create_token_file};
use ciqadamq_secrets::{Configured, Files, Hyperion, Secrets, Setup, SetupError, Source};
use ciqadamq_session_store::StoreConfig as SessionStoreConfig;
use ciqadamq_topic_acl::{AclConfig, Limits};
use ciqadamq_user_store::RaftConfig;
use prometheus::Registry;
use rmqtt::codec::types::QoS;
use tracing::{error, info};

pub use cluster::cluster;

use crate::config::{Config, Durability, Mqtt, OTHER_AUTHENTICATION, OnDeny, RetainFor, SecretsProvider};

pub fn access_rules(config: &Config) -> anyhow::Result<AccessRules> {
    let acl = &config.acl;
    AccessRules::new(&acl.publish_topics, &acl.fanout_prefixes, &acl.admin_prefixes)
        .map(|rules| {
            rules
                .with_limit_prefixes(acl.limit_prefixes)
                .with_levels_max(config.limits.topic_levels)
                .with_retain_for_superusers(acl.retain == RetainFor::Superusers)
        })
        .map_err(|errors| anyhow::anyhow!("{}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")))
}

pub fn auth(config: &Config, pepper: Option<Secret>) -> AuthConfig {
    let auth = &config.auth;
    AuthConfig {
        params: HashParams { m_cost: auth.argon2.m_cost, t_cost: auth.argon2.t_cost, p_cost: auth.argon2.p_cost },
        hash_concurrency: auth.hash_concurrency,
        hash_queue: auth.hash_queue,
        hash_deadline: Duration::from_secs(auth.hash_deadline_secs),
        cache_ttl: Duration::from_secs(auth.cache_ttl_secs),
        pepper,
        verifiers: config.db.data_dir().join("verifiers"),
        failures_per_user: auth.brake_failures_per_user,
        failures_per_address: auth.brake_failures_per_address,
        brake_window: Duration::from_secs(auth.brake_window_secs),
        max_connections: config.mqtt.max_connections,
        sessions_per_user: config.limits.sessions_per_user,
        lag_max: Duration::from_secs(config.limits.lag_secs.into()),
        // The gate keeps the time of everything that comes through it.
        silent: config.mqtt.tcp_addr.filter(|_| !config.mqtt.proxy_protocol).map(|addr| Silent {
            port: addr.port(),
            timeout: Duration::from_secs(config.mqtt.connect_timeout_secs.into()),
            max: config.limits.unauthenticated,
            max_per_address: config.limits.unauthenticated_per_address,
        }),
        defer_unknown: OTHER_AUTHENTICATION.iter().any(|name| config.plugins.starts(name, false)),
    }
}

/// `None` if sessions are not kept.
pub fn session_store(config: &Config) -> Option<SessionStoreConfig> {
    let mqtt = &config.mqtt;
    config.keeps_sessions().then(|| SessionStoreConfig {
        durability: match mqtt.durability {
            Durability::Fsync => ciqadamq_session_store::Durability::Fsync,
            Durability::Interval => ciqadamq_session_store::Durability::Interval,
            Durability::Memory => ciqadamq_session_store::Durability::Memory,
        },
        flush_every: Duration::from_secs(mqtt.msg_flush_secs.into()),
        max_bytes: mqtt.msg_max_bytes,
        max_messages: mqtt.msg_max_msgs,
        ..SessionStoreConfig::at(config.db.data_dir().join("sessions"))
    })
}

pub fn acl(config: &Config) -> AclConfig {
    let qos = match config.fanout.qos {
        0 => QoS::AtMostOnce,
        1 => QoS::AtLeastOnce,
        _ => QoS::ExactlyOnce,
    };
    AclConfig {
        on_deny: match config.acl.on_deny {
            OnDeny::Disconnect => ciqadamq_topic_acl::OnDeny::Disconnect,
            OnDeny::Drop => ciqadamq_topic_acl::OnDeny::Drop,
        },
        auto_subscribe: config.fanout.auto_subscribe.then_some(qos),
        limits: Limits {
            publish: Rate {
                messages: config.limits.publish_messages_per_sec,
                bytes: config.limits.publish_bytes_per_sec.into(),
            },
            subscriptions_per_session: config.limits.subscriptions_per_session,
            subscription_bytes_per_session: config.limits.subscription_bytes_per_session as usize,
        },
    }
}

pub fn rest(config: &Config, acl_enabled: bool) -> RestConfig {
    RestConfig {
        internal_addr: config.api.internal_addr,
        acl_enabled,
        version: env!("CARGO_PKG_VERSION").into(),
        ..RestConfig::new(config.api.addr)
    }
}

/// Where secrets come from; opens nothing.
pub fn secrets(config: &Config) -> Result<Setup, SetupError> {
    let secrets = &config.secrets;
    let addr = secrets.addr.clone().unwrap_or_default();
    let timeout = Duration::from_secs(secrets.timeout_secs);
    let poll = Duration::from_secs(secrets.refresh_secs);
    let source: Option<Arc<dyn Source>> = match secrets.provider() {
        SecretsProvider::Environment => None,
        SecretsProvider::HyperionVault => {
            Some(Arc::new(Hyperion::new(&addr, timeout, poll, secrets.ca_file.as_deref())?))
        }
        SecretsProvider::Vault => Some(vault::source(config, addr, timeout, poll)?),
        SecretsProvider::Files => Some(Arc::new(Files::new(secrets.dir.clone().unwrap_or_default()))),
    };
    let configured = Configured {
        api_token: config.api.token.clone(),
        pepper: config.auth.pepper.clone(),
        repl_token: config.api.repl_token.clone(),
    };
    Ok(Setup {
        source,
        configured,
        start_timeout: Duration::from_secs(secrets.start_timeout_secs),
        overlap: Duration::from_secs(config.api.token_overlap_secs.into()),
    })
}

/// What is wrong with where secrets come from: the key, and why. The file with certificates is read for it.
pub fn secrets_problem(config: &Config) -> Option<(&'static str, String)> {
    let secrets_config = &config.secrets;
    // What is missing has been said already.
    if secrets_config.addr.is_none() && secrets_config.provider() != SecretsProvider::Files {
        return None;
    }
    let error = secrets(config).err()?;
    let key = match error {
        SetupError::CaFile { .. } => "secrets.ca_file",
        SetupError::NotInThisBuild => "secrets.provider",
        SetupError::Address(_) | SetupError::Client(_) => "secrets.addr",
    };
    Some((key, error.to_string()))
}

/// Reads the secrets. A node that has no other source and no management token makes one in the file next to the database.
pub async fn load_secrets(config: &Config, health: Arc<Health>, metrics: &Registry) -> anyhow::Result<Arc<Secrets>> {
    let mut setup = secrets(config)?;
    if setup.source.is_none() && setup.configured.api_token.is_none() {
        let path = config.db.api_token_file();
        setup.configured.api_token = Some(load_or_create_token_file(&path)?);
        info!(path = %path.display(), "management token");
    }
    Ok(Arc::new(Secrets::load(setup, health, metrics).await?))
}

/// The API's tokens, which follow the secrets.
pub fn tokens(config: &Config, secrets: &Secrets) -> anyhow::Result<Arc<Tokens>> {
    let management = secrets.current(SecretName::ApiToken).context("there is no management token")?;
    let tokens = Arc::new(Tokens::new(&management, secrets.current(SecretName::ReplToken).as_ref())?);
    if !secrets.is_known(SecretName::ReplToken) {
        tokens.close_replication();
    }
    let overlap = Duration::from_secs(config.api.token_overlap_secs.into());
    let following = tokens.clone();
    secrets.observe(move |name, value| {
        let credential = match name {
            SecretName::ApiToken => TokenKind::Management,
            SecretName::ReplToken => TokenKind::Replication,
            SecretName::Pepper => return,
        };
        match value {
            // It passed the same rules where it was read.
            Some(value) => {
                if let Err(error) = following.replace(credential, value, overlap) {
                    error!(secret = %name, %error, "new token not taken");
                }
            }
            None => following.open_with_management(),
        }
    });
    Ok(tokens)
}

/// This node among the members of the user directory.
pub fn users(config: &Config) -> RaftConfig {
    let cluster = &config.cluster;
    let node = cluster.node_id.into();
    match cluster.enabled {
        true => {
            let nodes = cluster.api_urls(&config.api).into_iter().collect();
            RaftConfig::clustered(node, nodes, cluster.leader_id.into())
        }
        false => RaftConfig::alone(node),
    }
}

/// What the nodes prove to each other that they know, the one in force first.
pub fn credentials(secrets: &Arc<Secrets>) -> Arc<dyn Fn() -> Vec<Secret> + Send + Sync> {
    let secrets = secrets.clone();
    Arc::new(move || secrets.peer_tokens())
}

/// The way to the other nodes; there are none outside a cluster.
pub fn peers(config: &Config, secrets: &Arc<Secrets>) -> anyhow::Result<Arc<dyn Peers>> {
    let cluster = &config.cluster;
    let authorities = match &cluster.peer_ca {
        Some(path) => Some(std::fs::read(path).with_context(|| format!("cluster.peer_ca: {}", path.display()))?),
        None => None,
    };
    let addresses = if cluster.enabled { cluster.api_urls(&config.api) } else { Vec::new() };
    let secrets = secrets.clone();
    let peers = HttpPeers::new(PeersConfig {
        this: cluster.node_id.into(),
        addresses,
        credential: Arc::new(move || secrets.peer_token()),
        authorities,
    })?;
    Ok(Arc::new(peers))
}

/// Whose connections begin with a PROXY header.
fn proxy_protocol(mqtt: &Mqtt) -> ProxyProtocol {
    match (mqtt.proxy_protocol, &mqtt.proxy_protocol_from) {
        (false, _) => ProxyProtocol::Off,
        (true, from) if from.is_empty() => ProxyProtocol::Everybody,
        (true, from) => ProxyProtocol::Networks(from.clone()),
    }
}

/// The gate with its listeners bound; `None` if there is nothing for it to do.
///
/// Everything but plain TCP goes through it, and plain TCP too where PROXY headers come first.
pub fn gate(config: &Config, metrics: &Registry) -> anyhow::Result<Option<Gate>> {
    let mqtt = &config.mqtt;
    let tls = match (&mqtt.tls_cert, &mqtt.tls_key) {
        (Some(cert), Some(key)) => Some(tls_config(cert, key, mqtt.tls_client_ca.as_deref())?),
        _ => None,
    };
    let listeners: Vec<_> = [
        ("mqtt.tcp_addr", mqtt.tcp_addr.filter(|_| mqtt.proxy_protocol), Transport::Tcp),
        ("mqtt.ws_addr", mqtt.ws_addr, Transport::WebSocket),
        ("mqtt.tls_addr", mqtt.tls_addr, Transport::Tls),
        ("mqtt.wss_addr", mqtt.wss_addr, Transport::WebSocketTls),
    ]
    .into_iter()
    .filter_map(|(name, addr, transport)| {
        let tls = if transport.is_tls() { tls.clone() } else { None };
        Some(GateListener { name, addr: addr?, transport, proxy_protocol: proxy_protocol(mqtt), tls })
    })
    .collect();
    if listeners.is_empty() {
        return Ok(None);
    }
    let config = GateConfig {
        connect_timeout: Duration::from_secs(mqtt.connect_timeout_secs.into()),
        max_packet_size: mqtt.max_packet_size,
        nodelay: mqtt.tcp_nodelay,
        max_pending: config.limits.unauthenticated,
        max_pending_per_ip: config.limits.unauthenticated_per_address,
        ..GateConfig::new(listeners)
    };
    Ok(Some(Gate::bind(config, metrics)?))
}
