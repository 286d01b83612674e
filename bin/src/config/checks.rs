//! What cannot be seen in one value alone: contradictions, and promises that cannot be kept.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use ciqadamq_core::{AccessRules, AccessRulesError, Secret};

use super::model::{Config, SecretsProvider, VaultAuth};
use super::problem::Place;
use super::read::Reading;

/// Our plugins, and which others each cannot do without.
pub const OWN_PLUGINS: &[(&str, &[&str])] = &[
    ("ciqadamq-user-store", &[]),
    ("ciqadamq-auth", &["ciqadamq-user-store"]),
    ("ciqadamq-topic-acl", &["ciqadamq-auth"]),
    ("ciqadamq-rest", &["ciqadamq-user-store", "ciqadamq-auth"]),
    ("ciqadamq-session-store", &[]),
    ("ciqadamq-expiry", &[]),
    ("ciqadamq-retain", &["ciqadamq-user-store"]),
    ("ciqadamq-router", &[]),
    ("ciqadamq-metrics", &[]),
];

/// Plugins that decide who may connect instead of ours.
pub const OTHER_AUTHENTICATION: &[&str] = &["rmqtt-auth-http", "rmqtt-auth-jwt"];

/// All checks; `official` are the names of the official plugins that are compiled in.
pub fn run(reading: &mut Reading, official: &[&str]) {
    listeners(reading);
    tls(reading);
    expiry(reading);
    access_rules(reading);
    authentication(reading);
    secrets(reading);
    automatic_subscription(reading);
    plugins(reading, official);
    super::cluster::check(reading);
}

/// What a provider of secrets cannot do without.
fn secrets(reading: &mut Reading) {
    let secrets = &reading.config.secrets;
    let vault = &secrets.vault;
    let mut found: Vec<(&str, &str)> = Vec::new();
    match secrets.provider() {
        SecretsProvider::HyperionVault | SecretsProvider::Vault if secrets.addr.is_none() => {
            found.push(("secrets.provider", "needs the vault's address; set secrets.addr or VAULT_ADDR"));
        }
        SecretsProvider::Files if secrets.dir.is_none() => {
            found.push(("secrets.provider", "needs the directory of the files; set secrets.dir or SECRETS_DIR"));
        }
        _ => {}
    }
    if secrets.provider() == SecretsProvider::Vault {
        let mut either =
            |key, value: &Option<Secret>, file: &Option<PathBuf>, missing: Option<&'static str>| match missing {
                _ if value.is_some() && file.is_some() => {
                    found.push((key, "is given twice, as a value and as a file; leave one of them out"));
                }
                Some(text) if value.is_none() && file.is_none() => found.push(("secrets.vault.auth", text)),
                _ => {}
            };
        match vault.auth {
            VaultAuth::Token => {
                let missing = "needs a token; set VAULT_TOKEN or secrets.vault.token_file, or choose \"approle\" or \"kubernetes\"";
                either("secrets.vault.token_file", &vault.token, &vault.token_file, Some(missing));
            }
            VaultAuth::AppRole => {
                let missing = "needs a role; set secrets.vault.role_id or role_id_file";
                either("secrets.vault.role_id_file", &vault.role_id, &vault.role_id_file, Some(missing));
                // A role may ask for none.
                either("secrets.vault.secret_id_file", &vault.secret_id, &vault.secret_id_file, None);
            }
            VaultAuth::Kubernetes if vault.kubernetes_role.is_none() => {
                found.push(("secrets.vault.auth", "needs a role; set secrets.vault.kubernetes_role"));
            }
            VaultAuth::Kubernetes => {}
        }
    }
    for (key, text) in found {
        reading.complain(key, text);
    }
}

fn listeners(reading: &mut Reading) {
    let mut all: Vec<(&str, SocketAddr)> = reading.config.mqtt.listeners().collect();
    if all.is_empty() {
        reading.complain("mqtt.tcp_addr", "no MQTT listener is left; set mqtt.tcp_addr, ws_addr, tls_addr or wss_addr");
    }
    all.push(("api.addr", reading.config.api.addr));
    if reading.config.cluster.enabled {
        all.push(("cluster.grpc_laddr", reading.config.cluster.grpc_laddr));
        all.push(("cluster.raft_laddr", reading.config.cluster.raft_laddr));
    }
    all.extend(reading.config.api.internal_addr.map(|addr| ("api.internal_addr", addr)));
    let mut clashes = Vec::new();
    for (i, (key, addr)) in all.iter().enumerate() {
        if let Some((other, _)) = all[..i].iter().find(|(_, other)| clash(*other, *addr)) {
            // At the one that the operator wrote, if only one was written.
            let (key, other) = if reading.place(key) == Place::Default { (other, key) } else { (key, other) };
            clashes.push((*key, format!("listens where {other} does ({addr}); give it another port")));
        }
    }
    for (key, text) in clashes {
        reading.complain(key, text);
    }
    if !reading.config.mqtt.proxy_protocol_from.is_empty() && !reading.config.mqtt.proxy_protocol {
        let text = "names proxies, and mqtt.proxy_protocol is off; set it to true, or leave this out";
        reading.complain("mqtt.proxy_protocol_from", text);
    }
}

fn clash(a: SocketAddr, b: SocketAddr) -> bool {
    let same_ip = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() != 0 && a.port() == b.port() && same_ip
}

fn tls(reading: &mut Reading) {
    let mqtt = &reading.config.mqtt;
    let listener = match (mqtt.tls_addr, mqtt.wss_addr) {
        (Some(_), _) => Some("mqtt.tls_addr"),
        (None, Some(_)) => Some("mqtt.wss_addr"),
        (None, None) => None,
    };
    let files = [
        ("mqtt.tls_cert", mqtt.tls_cert.is_some()),
        ("mqtt.tls_key", mqtt.tls_key.is_some()),
        ("mqtt.tls_client_ca", mqtt.tls_client_ca.is_some()),
    ];
    match listener {
        Some(listener) => {
            for (key, _) in files[..2].iter().filter(|(_, set)| !set) {
                reading.complain(listener, format!("needs {key}; set it to a PEM file, or leave {listener} out"));
            }
        }
        None => {
            for (key, _) in files.iter().filter(|(_, set)| *set) {
                reading.complain(key, "is used by no listener; set mqtt.tls_addr or mqtt.wss_addr, or leave it out");
            }
        }
    }
}

fn expiry(reading: &mut Reading) {
    let (default, max) = (reading.config.mqtt.session_expiry_secs, reading.config.mqtt.max_session_expiry_secs);
    if default > max {
        let key = match reading.place("mqtt.session_expiry_secs") {
            Place::Default => "mqtt.max_session_expiry_secs",
            _ => "mqtt.session_expiry_secs",
        };
        let text = format!("mqtt.session_expiry_secs ({default}) must not exceed mqtt.max_session_expiry_secs ({max})");
        reading.complain(key, text);
    }
}

fn access_rules(reading: &mut Reading) {
    let acl = &reading.config.acl;
    let errors = AccessRules::new(&acl.publish_topics, &acl.fanout_prefixes, &acl.admin_prefixes).err();
    for error in errors.unwrap_or_default() {
        let (key, text) = match error {
            AccessRulesError::PublishTopic { entry, reason } => ("acl.publish_topics", format!("`{entry}`: {reason}")),
            AccessRulesError::Prefix { key, entry, reason } => (key, format!("`{entry}`: {reason}")),
            AccessRulesError::TooMany { key, max } => (key, format!("has too many entries; at most {max} are allowed")),
        };
        reading.complain(key, text);
    }
}

fn authentication(reading: &mut Reading) {
    let config = &reading.config;
    let memory = config.auth.argon2.m_cost;
    let least = 8 * config.auth.argon2.p_cost;
    let remote = config.mqtt.listeners().find(|(_, addr)| !addr.ip().is_loopback());
    let open = config.auth.disabled && own_plugin_starts(config, "ciqadamq-auth");
    let allowed = config.auth.disabled_allow_remote;

    if memory < least {
        let text = format!("must be at least 8 KiB for each of auth.argon2.p_cost: {least} or more, has {memory}");
        reading.complain("auth.argon2.m_cost", text);
    }
    if let (true, Some((listener, addr)), false) = (open, remote, allowed) {
        let text = format!(
            "authentication is off and {listener} listens on {addr}: everybody who reaches it would be let in; listen on \
             127.0.0.1, or set auth.disabled_allow_remote = true"
        );
        reading.complain("auth.disabled", text);
    }
}

/// Two plugins subscribe clients on the server, and the engine has room for one.
fn automatic_subscription(reading: &mut Reading) {
    let config = &reading.config;
    if config.fanout.auto_subscribe && config.plugins.starts("rmqtt-auto-subscription", false) {
        let text = "rmqtt-auto-subscription is enabled too, and only one of them can subscribe clients; disable it, or set \
                    fanout.auto_subscribe = false";
        reading.complain("fanout.auto_subscribe", text);
    }
}

fn own_plugin_starts(config: &Config, name: &str) -> bool {
    config.plugins.starts(name, true)
}

fn plugins(reading: &mut Reading, official: &[&str]) {
    let known: BTreeSet<&str> = OWN_PLUGINS.iter().map(|(name, _)| *name).chain(official.iter().copied()).collect();
    let mut found: Vec<(&str, String)> = Vec::new();
    let plugins = &reading.config.plugins;
    for (key, names) in [("plugins.enable", &plugins.enable), ("plugins.disable", &plugins.disable)] {
        for name in names.iter().filter(|name| !known.contains(name.as_str())) {
            found.push((key, unknown_plugin(name, &known)));
        }
    }
    for name in plugins.enable.iter().filter(|name| plugins.disable.contains(name)) {
        found.push(("plugins.disable", format!("`{name}` is in plugins.enable too; remove it from one of them")));
    }
    for (name, needs) in OWN_PLUGINS.iter().filter(|(name, _)| own_plugin_starts(&reading.config, name)) {
        for needed in needs.iter().filter(|needed| !own_plugin_starts(&reading.config, needed)) {
            found.push(("plugins.disable", format!("`{name}` needs `{needed}`; disable both or neither")));
        }
    }
    if reading.config.keeps_sessions() && plugins.enable.iter().any(|name| name == "rmqtt-session-storage") {
        let text = "`rmqtt-session-storage` and mqtt.persist_messages both keep sessions; disable one of them";
        found.push(("plugins.enable", text.into()));
    }
    if reading.config.fanout.auto_subscribe && !own_plugin_starts(&reading.config, "ciqadamq-topic-acl") {
        found.push(("fanout.auto_subscribe", "needs the plugin `ciqadamq-topic-acl`; enable it".into()));
    }
    for (key, text) in found {
        reading.complain(key, text);
    }
}

fn unknown_plugin(name: &str, known: &BTreeSet<&str>) -> String {
    let near = known.iter().map(|known| (strsim::damerau_levenshtein(name, known), *known)).min();
    match near {
        Some((distance, near)) if distance <= 3 => format!("unknown plugin `{name}`; did you mean `{near}`?"),
        _ => {
            let names: Vec<&str> = known.iter().copied().collect();
            format!("unknown plugin `{name}`; known are {}", names.join(", "))
        }
    }
}
