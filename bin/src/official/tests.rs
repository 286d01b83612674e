#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rmqtt::context::ServerContext;
use toml_edit::{Item, Table, TableLike, Value};

use super::settings::{HTTP_API_TOKEN_FILE, defaults};
use super::*;

const ALL_FEATURES: &[&str] = &[
    "rmqtt-bridge-egress-kafka",
    "rmqtt-bridge-ingress-kafka",
    "rmqtt-bridge-egress-nats",
    "rmqtt-bridge-ingress-nats",
    "rmqtt-bridge-egress-pulsar",
    "rmqtt-bridge-ingress-pulsar",
    "rmqtt-bridge-egress-reductstore",
];

/// Plugins whose constructor touches nothing but its settings and a directory.
const STARTABLE: &[&str] = &[
    "rmqtt-counter",
    "rmqtt-retainer",
    "rmqtt-shared-subscription",
    "rmqtt-message-storage",
    "rmqtt-session-storage",
    "rmqtt-delayed",
    "rmqtt-acl",
    "rmqtt-auth-http",
    "rmqtt-topic-rewrite",
    "rmqtt-auto-subscription",
    "rmqtt-p2p-messaging",
    "rmqtt-sys-topic",
    "rmqtt-web-hook",
    "rmqtt-bridge-egress-mqtt",
    "rmqtt-bridge-ingress-mqtt",
];

fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/plugins")
}

fn config(dir: Option<PathBuf>, data: &Path, enable: &[&str]) -> Config {
    let mut config = Config::default();
    config.plugins.dir = dir;
    config.plugins.enable = enable.iter().map(|name| (*name).to_owned()).collect();
    config.db.url.path = data.join("users");
    config
}

fn no_token(_: &Path) -> anyhow::Result<ciqadamq_core::Secret> {
    anyhow::bail!("no token is wanted here")
}

/// Copies a sample, with its directories moved below `data`.
fn copy(name: &str, data: &Path, change: impl Fn(String) -> String) -> PathBuf {
    let dir = data.join("plugins");
    std::fs::create_dir_all(&dir).unwrap();
    let text = std::fs::read_to_string(samples().join(format!("{name}.toml"))).unwrap();
    let text = change(text.replace("\"data/", &format!("\"{}/", data.display())));
    std::fs::write(dir.join(format!("{name}.toml")), text).unwrap();
    dir
}

/// The stores of some plugins have threads that never end by themselves; dropping a runtime would wait for them.
fn in_a_runtime(story: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(story);
    runtime.shutdown_background();
}

#[test]
fn there_is_a_sample_for_every_plugin_and_for_nothing_else() {
    let found: BTreeSet<_> = std::fs::read_dir(samples())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().trim_end_matches(".toml").to_owned())
        .collect();
    let wanted: BTreeSet<_> = names().into_iter().chain(ALL_FEATURES.iter().copied()).map(str::to_owned).collect();
    assert_eq!(found, wanted);
}

#[test]
fn every_sample_has_only_keys_that_its_plugin_knows() {
    for (name, known) in KNOWN_KEYS {
        let text = std::fs::read_to_string(samples().join(format!("{name}.toml"))).unwrap();
        let document = text.parse::<toml_edit::DocumentMut>().unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut found = BTreeSet::new();
        collect(document.as_table(), "", &mut found);
        let open = |path: &str| known.iter().any(|k| k.strip_suffix('*').is_some_and(|open| path.starts_with(open)));
        for path in found {
            assert!(known.contains(&path.as_str()) || open(&path), "{name}: `{path}` is unknown to the plugin");
        }
    }
    let all: BTreeSet<_> = KNOWN_KEYS.iter().map(|(name, _)| *name).collect();
    assert!(names().iter().chain(ALL_FEATURES).all(|name| all.contains(name)));
}

fn collect(table: &dyn TableLike, above: &str, found: &mut BTreeSet<String>) {
    for (key, item) in table.iter() {
        let path = if above.is_empty() { key.to_owned() } else { format!("{above}.{key}") };
        let tables: Vec<&dyn TableLike> = match item {
            Item::ArrayOfTables(list) => list.iter().map(|table: &Table| table as &dyn TableLike).collect(),
            Item::Value(Value::Array(list)) => {
                list.iter().filter_map(Value::as_inline_table).map(|table| table as &dyn TableLike).collect()
            }
            item => item.as_table_like().into_iter().collect(),
        };
        if tables.is_empty() {
            found.insert(path);
        } else {
            tables.into_iter().for_each(|table| collect(table, &path, found));
        }
    }
}

#[test]
fn every_sample_that_needs_no_network_is_taken_by_its_plugin() {
    in_a_runtime(async {
        for name in STARTABLE {
            let data = tempfile::tempdir().unwrap();
            let dir = copy(name, data.path(), |text| text);
            let config = config(Some(dir.clone()), data.path(), &[name]);
            assert_eq!(check(&config), [], "{name}");
            let scx = ServerContext::new().plugins_config_dir(dir.display().to_string()).build().await;
            let plugin = PLUGINS.iter().find(|plugin| plugin.name == *name).unwrap();
            (plugin.register)(&scx, true).await.unwrap_or_else(|error| panic!("{name}: {error:#}"));
            assert!(scx.plugins.is_active(name), "{name}");
        }
    });
}

#[test]
fn the_built_in_settings_are_taken_by_the_plugins() {
    in_a_runtime(async {
        let data = tempfile::tempdir().unwrap();
        let built_in: Vec<_> =
            STARTABLE.iter().copied().filter(|name| PLUGINS.iter().any(|p| p.name == *name && !p.needs_file)).collect();
        let config = config(None, data.path(), &built_in);
        let settings = prepare(&config, no_token).unwrap();
        let mut builder = ServerContext::new();
        for (name, text) in settings {
            builder = builder.plugins_config_map_add(name, text);
        }
        let scx = builder.build().await;
        register(&scx, &config).await.unwrap();
        for name in built_in {
            assert!(scx.plugins.is_active(name), "{name}");
        }
        assert!(!scx.plugins.is_active("rmqtt-acl") && scx.plugins.get("rmqtt-acl").is_some());
        let retainer = scx.plugins.get_config("rmqtt-retainer").await.unwrap();
        let ttl = &retainer["retained_message_ttl"];
        assert!(ttl.is_null(), "the publisher's interval counts: {ttl}");
        assert!(data.path().join("retain/0").is_dir());
        #[cfg(unix)]
        for store in ["retain", "session"] {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::metadata(data.path().join(store)).unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "{store} is for its owner alone");
        }
    });
}

#[test]
fn http_api_gets_loopback_and_a_token_when_it_is_switched_on() {
    let data = tempfile::tempdir().unwrap();
    let off = config(None, data.path(), &[]);
    assert!(!prepare(&off, no_token).unwrap().contains_key("rmqtt-http-api"));
    let on = config(None, data.path(), &["rmqtt-http-api"]);
    let settings = prepare(&on, |path| {
        assert_eq!(path, data.path().join(HTTP_API_TOKEN_FILE));
        Ok(ciqadamq_core::Secret::new("0123456789-token"))
    });
    let text = &settings.unwrap()["rmqtt-http-api"];
    assert_eq!(text, "http_laddr = \"127.0.0.1:6060\"\nhttp_bearer_token = \"0123456789-token\"\n");
}

#[test]
fn a_file_of_http_api_or_auth_jwt_without_a_secret_stops_the_start() {
    for (name, key) in [("rmqtt-http-api", "http_bearer_token"), ("rmqtt-auth-jwt", "hmac_secret")] {
        let data = tempfile::tempdir().unwrap();
        let dir = copy(name, data.path(), |text| text);
        let config = config(Some(dir), data.path(), &[name]);
        let problems = check(&config);
        assert!(problems.len() == 1 && problems[0].1.contains(key), "{problems:?}");
        copy(name, data.path(), |text| {
            text.replace(&format!("{key} = \"\""), &format!("{key} = \"{}\"", "x".repeat(16)))
        });
        assert_eq!(check(&config), []);
    }
}

#[test]
fn broken_settings_are_reported_without_showing_them() {
    let data = tempfile::tempdir().unwrap();
    let dir = copy("rmqtt-http-api", data.path(), |_| "a = 1\nhttp_bearer_token = \"hunter2\n".into());
    let problems = check(&config(Some(dir), data.path(), &["rmqtt-http-api"]));
    assert!(problems[0].1.contains("line 2") && !problems[0].1.contains("hunter2"), "{problems:?}");
}

#[test]
fn a_plugin_that_is_useless_or_open_without_settings_asks_for_its_file() {
    let data = tempfile::tempdir().unwrap();
    for plugin in PLUGINS.iter().filter(|plugin| plugin.needs_file) {
        let problems = check(&config(None, data.path(), &[plugin.name]));
        assert!(problems.len() == 1 && problems[0].1.contains(plugin.name), "{problems:?}");
    }
    assert_eq!(check(&config(None, data.path(), &[])), []);
}

#[test]
fn the_built_in_rule_of_rmqtt_acl_opens_nothing() {
    assert_eq!(defaults("rmqtt-acl", Path::new("d")).unwrap(), "rules = [[\"deny\", \"all\"]]\n");
}

const STORAGE: &[&str] = &[
    "storage.type",
    "storage.sled.path",
    "storage.sled.cache_capacity",
    "storage.redis.url",
    "storage.redis.prefix",
    "backend_timeout",
];

/// What the plugins' own configuration types have; `*` = anything below.
const KNOWN_KEYS: &[(&str, &[&str])] = &[
    ("rmqtt-counter", &[]),
    (
        "rmqtt-retainer",
        &[
            "storage.type",
            "storage.sled.path",
            "storage.sled.cache_capacity",
            "storage.redis.url",
            "storage.redis.prefix",
            "max_retained_messages",
            "max_payload_size",
            "retained_message_ttl",
            "batch_messages_limit",
            "backend_timeout",
        ],
    ),
    ("rmqtt-shared-subscription", &["strategy", "sticky_cache_size"]),
    (
        "rmqtt-message-storage",
        &[
            "storage.type",
            "storage.ram.cache_capacity",
            "storage.ram.cache_max_count",
            "storage.ram.encode",
            "storage.ram.queue_max",
            "storage.redis.url",
            "storage.redis.prefix",
            "cleanup_count",
            "backend_timeout",
        ],
    ),
    ("rmqtt-session-storage", STORAGE),
    ("rmqtt-delayed", &["publish_max", "publish_immediate"]),
    ("rmqtt-acl", &["disconnect_if_pub_rejected", "priority", "rules"]),
    (
        "rmqtt-auth-http",
        &[
            "disconnect_if_pub_rejected",
            "disconnect_if_expiry",
            "priority",
            "deny_if_error",
            "http_timeout",
            "http_headers.*",
            "http_retry.times",
            "http_retry.interval",
            "http_retry.backoff",
            "http_auth_req.url",
            "http_auth_req.method",
            "http_auth_req.headers.*",
            "http_auth_req.params.*",
            "http_acl_req.url",
            "http_acl_req.method",
            "http_acl_req.headers.*",
            "http_acl_req.params.*",
        ],
    ),
    (
        "rmqtt-auth-jwt",
        &[
            "disconnect_if_pub_rejected",
            "disconnect_if_expiry",
            "priority",
            "from",
            "encrypt",
            "hmac_secret",
            "hmac_base64",
            "public_key",
            "validate_claims.*",
        ],
    ),
    (
        "rmqtt-topic-rewrite",
        &["priority", "rules.action", "rules.source_topic_filter", "rules.dest_topic", "rules.regex"],
    ),
    (
        "rmqtt-auto-subscription",
        &[
            "subscribes.topic_filter",
            "subscribes.qos",
            "subscribes.no_local",
            "subscribes.retain_as_published",
            "subscribes.retain_handling",
        ],
    ),
    ("rmqtt-p2p-messaging", &["mode"]),
    ("rmqtt-sys-topic", &["publish_qos", "publish_interval", "message_retain_available", "message_expiry_interval"]),
    (
        "rmqtt-web-hook",
        &[
            "queue_capacity",
            "concurrency_limit",
            "urls",
            "http_timeout",
            "retry_max_elapsed_time",
            "retry_multiplier",
            "rule.*",
        ],
    ),
    (
        "rmqtt-http-api",
        &[
            "max_row_limit",
            "http_laddr",
            "metrics_sample_interval",
            "http_bearer_token",
            "message_type",
            "http_reuseaddr",
            "http_reuseport",
            "http_request_log",
            "message_expiry_interval",
            "prometheus_metrics_cache_interval",
            "dashboard_static_dir",
            "flush_interval",
            "history_retention",
        ],
    ),
    (
        "rmqtt-bridge-egress-mqtt",
        &[
            "bridges.enable",
            "bridges.name",
            "bridges.client_id_prefix",
            "bridges.server",
            "bridges.root_cert",
            "bridges.client_cert",
            "bridges.client_key",
            "bridges.username",
            "bridges.password",
            "bridges.concurrent_client_limit",
            "bridges.connect_timeout",
            "bridges.keepalive",
            "bridges.reconnect_interval",
            "bridges.message_channel_capacity",
            "bridges.mqtt_ver",
            "bridges.v4.clean_session",
            "bridges.v5.clean_start",
            "bridges.v5.session_expiry_interval",
            "bridges.v5.receive_maximum",
            "bridges.v5.maximum_packet_size",
            "bridges.v5.topic_alias_maximum",
            "bridges.entries.local.topic_filter",
            "bridges.entries.remote.topic",
            "bridges.entries.remote.qos",
            "bridges.entries.remote.retain",
            "bridges.entries.remote.skip_levels",
        ],
    ),
    (
        "rmqtt-bridge-ingress-mqtt",
        &[
            "bridges.enable",
            "bridges.name",
            "bridges.client_id_prefix",
            "bridges.server",
            "bridges.root_cert",
            "bridges.client_cert",
            "bridges.client_key",
            "bridges.username",
            "bridges.password",
            "bridges.concurrent_client_limit",
            "bridges.connect_timeout",
            "bridges.keepalive",
            "bridges.reconnect_interval",
            "bridges.expiry_interval",
            "bridges.mqtt_ver",
            "bridges.v4.clean_session",
            "bridges.v5.clean_start",
            "bridges.v5.session_expiry_interval",
            "bridges.v5.receive_maximum",
            "bridges.v5.maximum_packet_size",
            "bridges.v5.topic_alias_maximum",
            "bridges.entries.remote.topic",
            "bridges.entries.remote.qos",
            "bridges.entries.local.topic",
            "bridges.entries.local.qos",
            "bridges.entries.local.retain",
        ],
    ),
    (
        "rmqtt-bridge-egress-kafka",
        &[
            "task_queue_capacity",
            "task_concurrency_limit",
            "bridges.enable",
            "bridges.name",
            "bridges.servers",
            "bridges.client_id_prefix",
            "bridges.concurrent_client_limit",
            "bridges.properties.*",
            "bridges.entries.local.topic_filter",
            "bridges.entries.remote.topic",
            "bridges.entries.remote.queue_timeout",
            "bridges.entries.remote.partition",
            "bridges.entries.remote.skip_levels",
        ],
    ),
    (
        "rmqtt-bridge-ingress-kafka",
        &[
            "bridges.enable",
            "bridges.name",
            "bridges.servers",
            "bridges.client_id_prefix",
            "bridges.properties.*",
            "bridges.expiry_interval",
            "bridges.entries.remote.topic",
            "bridges.entries.remote.group_id",
            "bridges.entries.remote.start_partition",
            "bridges.entries.remote.stop_partition",
            "bridges.entries.remote.offset",
            "bridges.entries.local.topic",
            "bridges.entries.local.qos",
            "bridges.entries.local.retain",
        ],
    ),
    ("rmqtt-bridge-egress-nats", NATS),
    ("rmqtt-bridge-ingress-nats", NATS),
    (
        "rmqtt-bridge-egress-pulsar",
        &[
            "bridges.enable",
            "bridges.name",
            "bridges.servers",
            "bridges.producer_name_prefix",
            "bridges.auth",
            "bridges.auth.name",
            "bridges.auth.data",
            "bridges.cert_chain_file",
            "bridges.allow_insecure_connection",
            "bridges.tls_hostname_verification_enabled",
            "bridges.entries.local.topic_filter",
            "bridges.entries.remote.topic",
            "bridges.entries.remote.forward_all_from",
            "bridges.entries.remote.forward_all_publish",
            "bridges.entries.remote.partition_key",
            "bridges.entries.remote.ordering_key",
            "bridges.entries.remote.replicate_to",
            "bridges.entries.remote.schema_version",
            "bridges.entries.remote.options.metadata",
            "bridges.entries.remote.options.compression",
            "bridges.entries.remote.options.access_mode",
            "bridges.entries.remote.skip_levels",
        ],
    ),
    (
        "rmqtt-bridge-ingress-pulsar",
        &[
            "bridges.enable",
            "bridges.name",
            "bridges.servers",
            "bridges.consumer_name_prefix",
            "bridges.auth",
            "bridges.auth.name",
            "bridges.auth.data",
            "bridges.cert_chain_file",
            "bridges.allow_insecure_connection",
            "bridges.tls_hostname_verification_enabled",
            "bridges.expiry_interval",
            "bridges.entries.remote.topic",
            "bridges.entries.remote.subscription_type",
            "bridges.entries.remote.subscription",
            "bridges.entries.remote.topic_refresh_interval",
            "bridges.entries.remote.batch_size",
            "bridges.entries.remote.options.durable",
            "bridges.entries.remote.options.initial_position",
            "bridges.entries.remote.payload_format",
            "bridges.entries.local.topic",
            "bridges.entries.local.qos",
            "bridges.entries.local.retain",
            "bridges.entries.local.allow_empty_forward",
        ],
    ),
    (
        "rmqtt-bridge-egress-reductstore",
        &[
            "bridges.enable",
            "bridges.name",
            "bridges.servers",
            "bridges.producer_name_prefix",
            "bridges.api_token",
            "bridges.verify_ssl",
            "bridges.timeout",
            "bridges.entries.local.topic_filter",
            "bridges.entries.remote.bucket",
            "bridges.entries.remote.entry",
            "bridges.entries.remote.quota_size",
            "bridges.entries.remote.exist_ok",
            "bridges.entries.remote.forward_all_from",
            "bridges.entries.remote.forward_all_publish",
            "bridges.entries.remote.skip_levels",
        ],
    ),
];

/// Of both directions.
const NATS: &[&str] = &[
    "bridges.enable",
    "bridges.name",
    "bridges.servers",
    "bridges.producer_name_prefix",
    "bridges.consumer_name_prefix",
    "bridges.no_echo",
    "bridges.max_reconnects",
    "bridges.connection_timeout",
    "bridges.tls_required",
    "bridges.tls_first",
    "bridges.root_certificates",
    "bridges.client_cert",
    "bridges.client_key",
    "bridges.ping_interval",
    "bridges.sender_capacity",
    "bridges.request_timeout",
    "bridges.retry_on_initial_connect",
    "bridges.ignore_discovered_servers",
    "bridges.retain_servers_order",
    "bridges.read_buffer_capacity",
    "bridges.expiry_interval",
    "bridges.auth",
    "bridges.auth.*",
    "bridges.entries.local.topic_filter",
    "bridges.entries.local.topic",
    "bridges.entries.local.qos",
    "bridges.entries.local.retain",
    "bridges.entries.local.allow_empty_forward",
    "bridges.entries.remote.topic",
    "bridges.entries.remote.group",
    "bridges.entries.remote.forward_all_from",
    "bridges.entries.remote.forward_all_publish",
    "bridges.entries.remote.skip_levels",
];
