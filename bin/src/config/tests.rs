#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;

use super::files::locate;
use super::keys::{KEYS, QUEUE_MAX, find};
use super::model::{Auth, SecretsProvider};
use super::read::Reading;
use super::*;

const OFFICIAL: &[&str] =
    &["rmqtt-retainer", "rmqtt-http-api", "rmqtt-auth-http", "rmqtt-auto-subscription", "rmqtt-session-storage"];

/// Reads a text and an environment as `load` does, without the disk.
fn read(text: &str, env: &[(&str, &str)]) -> Reading {
    read_with(text, env, &Overrides::default())
}

fn read_with(text: &str, env: &[(&str, &str)], overrides: &Overrides) -> Reading {
    let env: BTreeMap<&str, &str> = env.iter().copied().collect();
    let variable = |name: &str| env.get(name).map(OsString::from);
    let mut reading = Reading::default();
    reading.file(Path::new("c.toml"), text);
    reading.environment(variable);
    apply_command_line(&mut reading, overrides, OFFICIAL);
    checks::run(&mut reading, OFFICIAL);
    reading
}

fn good(text: &str, env: &[(&str, &str)]) -> Config {
    let reading = read(text, env);
    assert!(reading.problems.is_empty(), "{}", Problems(reading.problems));
    reading.config
}

fn problems(text: &str, env: &[(&str, &str)]) -> Vec<String> {
    read(text, env).problems.iter().map(Problem::to_string).collect()
}

/// The one problem of a text.
fn problem(text: &str) -> String {
    let found = problems(text, &[]);
    assert_eq!(found.len(), 1, "{text}: {found:#?}");
    found[0].clone()
}

#[test]
fn two_wrong_keys_are_both_named_with_their_lines() {
    let found = problems("[mqtt]\ntcp_adr = \"0.0.0.0:1\"\n\n[api]\n  tokn = \"x\"\n", &[]);
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found[0].starts_with("c.toml:2:1: mqtt.tcp_adr: unknown key; did you mean `mqtt.tcp_addr`?"), "{found:#?}");
    assert!(found[1].starts_with("c.toml:5:3: api.tokn: unknown key; did you mean `api.token`?"), "{found:#?}");
}

#[test]
fn wrong_values_contradictions_and_variables_come_in_one_go() {
    let text = "[mqtt]\nmax_inflight = 70000\nsession_expiry_secs = 9000\n[acl]\non_deny = \"ignore\"\n";
    let found = problems(text, &[("AUTH_CACHE_TTL_SECS", "five"), ("VAULT_ADDR", "vault:8200")]);
    let all = found.join("\n");
    for wanted in [
        "c.toml:2:1: mqtt.max_inflight: expects an integer from 1 to 65535, has 70000",
        "c.toml:3:1: mqtt.session_expiry_secs: mqtt.session_expiry_secs (9000) must not exceed",
        "c.toml:5:1: acl.on_deny: expects \"disconnect\" or \"drop\", has `ignore`",
        "environment: AUTH_CACHE_TTL_SECS: expects an integer from 0 to",
        "environment: VAULT_ADDR: is neither http nor https; give http://HOST:PORT",
    ] {
        assert!(all.contains(wanted), "{wanted}\nnot in\n{all}");
    }
    assert_eq!(found.len(), 5, "{found:#?}");
}

#[test]
fn a_minimal_file_gets_the_documented_defaults() {
    let text = "[mqtt]\ntcp_addr = \"127.0.0.1:1\"\nws_addr = \"127.0.0.1:2\"\n[api]\naddr = \"127.0.0.1:3\"\n\
                token = \"0f5c1a9d4e3b2c1d0f5c\"\n[db]\nurl = \"sled:///var/lib/x/users\"\n";
    let config = good(text, &[]);
    assert_eq!(config.mqtt.tcp_addr, Some(([127, 0, 0, 1], 1).into()));
    assert!(config.keeps_sessions() && config.acl.enabled && !config.auth.disabled);
    assert_eq!(config.api.token.unwrap().expose(), b"0f5c1a9d4e3b2c1d0f5c");
    assert_eq!(config.db.url.path, Path::new("/var/lib/x/users"));
    assert_eq!((config.mqtt.message_expiry_secs, config.mqtt.max_packet_size), (1200, 1024 * 1024));
    assert_eq!(config.acl.publish_topics, ["chatsync", "updates"]);
    assert_eq!(config.mqtt.durability, Durability::Fsync);
}

#[test]
fn the_environment_overrides_the_file_and_an_empty_variable_does_not() {
    let text = "log = \"warn\"\n[api]\ntoken = \"from-the-file-0123\"\n[auth.argon2]\nm_cost = 64\n";
    let env = [("API_TOKEN", "from-the-environment"), ("ARGON2_M_COST", "128"), ("RUST_LOG", ""), ("NODE_ID", "7")];
    let config = good(text, &env);
    assert_eq!(config.api.token.unwrap().expose(), b"from-the-environment");
    assert_eq!((config.auth.argon2.m_cost, config.log.0.as_str(), config.cluster.node_id), (128, "warn", 7));
}

#[test]
fn proxies_are_named_by_address_or_network() {
    let from = |list: &str| format!("[mqtt]\nproxy_protocol = true\nproxy_protocol_from = {list}\n");
    let config = good(&from("[\"10.0.0.7\", \"10.1.2.3/16\", \"2001:db8::/32\"]"), &[]);
    let shown: Vec<String> = config.mqtt.proxy_protocol_from.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["10.0.0.7/32", "10.1.0.0/16", "2001:db8::/32"]);
    assert!(problem(&from("[\"haproxy\"]")).contains("such as [\"10.0.0.7\", \"10.1.0.0/24\"], has `haproxy`"));
    assert!(problem(&from("[\"10.0.0.0/33\"]")).contains("has `10.0.0.0/33`"));
    let many = vec!["\"10.0.0.7\""; 65].join(", ");
    assert!(problem(&from(&format!("[{many}]"))).contains("has 65 entries, may have 64"));
    let off = "[mqtt]\nproxy_protocol_from = [\"10.0.0.7\"]\n";
    assert!(problem(off).contains("mqtt.proxy_protocol is off"), "{}", problem(off));
}

#[test]
fn every_variable_is_validated() {
    let wrong = "\u{7f}[=nonsense";
    for (key, name) in KEYS.iter().filter_map(|key| Some((key, key.env?))) {
        let found = problems("", &[(name, wrong)]);
        assert!(found.iter().any(|p| p.starts_with(&format!("environment: {name}: "))), "{}: {found:#?}", key.path);
    }
}

#[cfg(unix)]
#[test]
fn a_variable_that_is_no_text_is_a_problem() {
    use std::os::unix::ffi::OsStringExt;
    let mut reading = Reading::default();
    reading.environment(|name| (name == "DB_URL").then(|| OsString::from_vec(vec![0xff])));
    assert!(reading.problems[0].to_string().starts_with("environment: DB_URL: is not UTF-8"));
}

#[test]
fn what_cannot_be_kept_stops_the_start() {
    let both = "[plugins]\nenable = [\"rmqtt-session-storage\"]\n";
    assert!(problem(both).contains("both keep sessions"));
    good(&format!("[mqtt]\npersist_messages = false\n{both}"), &[]);
    good("[mqtt]\npersist_messages = false\n[cluster]\nenabled = false\n", &[]);
}

#[test]
fn an_address_alone_means_a_hyperion_vault() {
    let provider = |text: &str, env: &[(&str, &str)]| good(text, env).secrets.provider();
    let addr = ("VAULT_ADDR", "http://127.0.0.1:8200");
    assert_eq!(provider("", &[]), SecretsProvider::Environment);
    assert_eq!(provider("", &[("VAULT_ADDR", "")]), SecretsProvider::Environment);
    assert_eq!(provider("", &[addr]), SecretsProvider::HyperionVault);
    assert_eq!(provider("[secrets]\nprovider = \"environment\"\n", &[addr]), SecretsProvider::Environment);
    let vault = [addr, ("VAULT_TOKEN", "root"), ("SECRETS_PROVIDER", "openbao")];
    assert_eq!(provider("", &vault), SecretsProvider::Vault);
    assert_eq!(provider("[secrets]\nprovider = \"files\"\ndir = \"x\"\n", &[]), SecretsProvider::Files);
}

#[test]
fn nodes_of_a_cluster_may_have_their_token_from_a_vault() {
    let wanted = "nodes show each other api.repl_token";
    let two = "[cluster]\nenabled = true\nnode_id = 1\nleader_id = 1\nnode_grpc_addrs = [\"1@a:1\", \"2@b:1\"]\n\
               raft_peer_addrs = [\"1@a:2\", \"2@b:2\"]\n";
    let said = |env: &[(&str, &str)]| problems(two, env).join("\n");
    assert!(said(&[]).contains(wanted));
    assert!(!said(&[("VAULT_ADDR", "http://127.0.0.1:8200")]).contains(wanted));
}

#[test]
fn a_provider_of_secrets_has_what_it_needs() {
    let vault = "[secrets]\nprovider = \"vault\"\naddr = \"https://v:8200\"\n[secrets.vault]\n";
    for (text, wanted) in [
        ("[secrets]\nprovider = \"vault\"\n[secrets.vault]\ntoken = \"x\"\n", "set secrets.addr or VAULT_ADDR"),
        ("[secrets]\nprovider = \"hyperion-vault\"\n", "set secrets.addr or VAULT_ADDR"),
        ("[secrets]\nprovider = \"files\"\n", "set secrets.dir"),
        (vault, "needs a token"),
        (&format!("{vault}token = \"x\"\ntoken_file = \"y\"\n"), "given twice"),
        (&format!("{vault}auth = \"approle\"\n"), "needs a role"),
        (&format!("{vault}auth = \"kubernetes\"\n"), "needs a role"),
        (&format!("{vault}token = \"x\"\npath = \"../{{name}}\"\n"), "dotted level"),
        (&format!("{vault}token = \"x\"\nkv_version = 3\n"), "from 1 to 2"),
        ("[secrets]\naddr = \"vault:8200\"\n", "http://HOST:PORT"),
        ("[secrets]\naddr = \"https://u:hunter2@v\"\n", "has a user or a password in it"),
    ] {
        let found = problem(text);
        assert!(found.contains(wanted) && !found.contains("hunter2"), "{text}: {found}");
    }
    good(&format!("{vault}auth = \"approle\"\nrole_id = \"x\"\n"), &[("VAULT_SECRET_ID", "y")]);
    let config =
        good(&format!("{vault}auth = \"kubernetes\"\nkubernetes_role = \"x\"\n"), &[("VAULT_TOKEN", "hunter2")]);
    assert!(!format!("{config:?}{}", effective(&config)).contains("hunter2"));
}

#[test]
fn what_is_odd_about_secrets_is_said() {
    let warned = |text: &str, env: &[(&str, &str)]| odd(&read(text, env)).join("\n");
    let addr = ("VAULT_ADDR", "http://127.0.0.1:8200");
    assert_eq!(warned("", &[addr]), "");
    assert!(warned("", &[("VAULT_ADDR", "http://vault.example:8200")]).contains("unencrypted"));
    assert!(warned("", &[addr, ("VAULT_TOKEN", "x")]).contains("takes no token"));
    assert!(warned("[secrets]\nprovider = \"environment\"\n", &[addr]).contains("has no effect"));
    assert!(warned("[secrets.vault]\nmount = \"x\"\n", &[addr]).contains("secrets.vault.mount has no effect"));
    assert!(warned("[secrets]\nrefresh_secs = 100\n", &[addr]).contains("longer than api.token_overlap_secs"));
}

#[test]
fn what_a_cluster_needs_is_said_in_one_go() {
    let all = problems("[cluster]\nenabled = true\n", &[]).join("\n");
    for wanted in ["cluster.node_id: is 0", "cluster.node_grpc_addrs: names fewer than two nodes"] {
        assert!(all.contains(wanted), "{wanted}\nnot in\n{all}");
    }
    let text = "[cluster]\nenabled = true\nnode_id = 4\nleader_id = 9\npeer_tls = true\n\
                heartbeat_tick = 60\nelection_tick = 10\n\
                node_grpc_addrs = [\"1@a:5363\", \"2@b:5363\", \"3@b:5363\"]\nraft_peer_addrs = [\"1@a:6003\", \"2@b:6003\"]\n\
                node_api_addrs = [\"1@http://a:8090\", \"2@http://b:8090\", \"3@http://c:8090\"]\n\
                [cluster.raft]\nmore = [\"raft.max_inflight_msgs = 256\", \"raft.heartbeat = \\\"9ms\\\"\"]\n\
                [plugins]\ndisable = [\"ciqadamq-rest\"]\n";
    let all = problems(text, &[]).join("\n");
    for wanted in [
        "cluster.node_grpc_addrs: has no entry for this node (4)",
        "cluster.node_grpc_addrs: has `b:5363` for two nodes",
        "cluster.raft_peer_addrs: names the nodes {1, 2}",
        "cluster.leader_id: is 9, which is none of the nodes {1, 2, 3}",
        "cluster.node_api_addrs: has http:// addresses",
        "cluster.enabled: nodes show each other api.repl_token",
        "cluster.enabled: a node of a cluster needs the plugin `ciqadamq-rest`",
        "cluster.heartbeat_tick: must be less than",
        "cluster.election_tick: is 20 ms in ticks of 2 ms",
        "cluster.raft.more: `raft.heartbeat = \"9ms\"` is set by a key of its own",
    ] {
        assert!(all.contains(wanted), "{wanted}\nnot in\n{all}");
    }
    let fits = "[api]\ntoken = \"0f8a-0f8a-0f8a-0f8a\"\n[cluster]\nenabled = true\nnode_id = 2\nleader_id = 1\n\
                node_grpc_addrs = [\"1@a:5363\", \"2@b:5363\"]\nraft_peer_addrs = [\"1@a:6003\", \"2@b:6003\"]\n";
    good(fits, &[]);
    let leaderless = "[cluster]\nenabled = true\nnode_id = 1\nnode_grpc_addrs = [\"1@a:1\", \"2@b:1\"]\n\
                      raft_peer_addrs = [\"1@a:2\", \"2@b:2\"]\n";
    assert!(problems(leaderless, &[]).join("\n").contains("cluster.leader_id: is 0"));
    assert!(
        problems("[cluster]\nenabled = true\n[api]\naddr = \"0.0.0.0:6003\"\n", &[]).join("\n").contains("api.addr")
    );
}

#[test]
fn the_api_of_a_node_is_where_the_configuration_says_or_beside_its_grpc() {
    let nodes = "[api]\naddr = \"0.0.0.0:8091\"\n[cluster]\nnode_grpc_addrs = [\"1@a:5363\", \"2@[::1]:5363\"]\n";
    let urls = |text: &str| {
        let config = good(text, &[]);
        config.cluster.api_urls(&config.api)
    };
    let beside = [(1, "http://a:8091".to_owned()), (2, "http://[::1]:8091".to_owned())];
    assert_eq!(urls(nodes), beside);
    assert!(urls(&format!("{nodes}peer_tls = true\n"))[0].1.starts_with("https://a:"));
    let apart = nodes.replace("[cluster]", "internal_addr = \"0.0.0.0:8092\"\n[cluster]");
    assert_eq!(urls(&apart)[0], (1, "http://a:8092".to_owned()), "where /internal/ answers");
    let given = format!("{nodes}node_api_addrs = [\"1@http://x:1\", \"2@https://y:2\"]\n");
    assert_eq!(urls(&given), [(1, "http://x:1".to_owned()), (2, "https://y:2".to_owned())]);
}

#[test]
fn secrets_are_no_placeholders_and_never_shown() {
    for bad in ["changeme", "CHANGEME", "your-token-here", "has a space in it!", "ümlaut-0123456789"] {
        let text = problem(&format!("[api]\ntoken = \"{bad}\"\n"));
        assert!(text.starts_with("c.toml:2:1: api.token: ") && !text.contains(&format!("`{bad}`")), "{text}");
    }
    let config = good("", &[("API_TOKEN", "hunter2-hunter2-hunter2"), ("AUTH_PEPPER", "pepper2-pepper2-pepper2")]);
    let shown = format!("{config:?}{}", effective(&config));
    assert!(!shown.contains("hunter2") && !shown.contains("pepper2"), "{shown}");
    assert!(problems("", &[("AUTH_PEPPER", "hunter2")]).iter().all(|p| !p.contains("hunter2")));
}

#[test]
fn only_one_plugin_can_subscribe_clients() {
    let enabled = "[plugins]\nenable = [\"rmqtt-auto-subscription\"]\n";
    let text = problem(&format!("[fanout]\nauto_subscribe = true\n{enabled}"));
    assert!(text.starts_with("c.toml:2:1: fanout.auto_subscribe: "), "{text}");
    good(enabled, &[]);
}

#[test]
fn a_token_that_could_be_guessed_is_refused_wherever_it_stands() {
    for key in ["token", "repl_token"] {
        let file = |token: &str| format!("[api]\n{key} = \"{token}\"\n");
        let text = problem(&file("0f8a-0f8a-0f8a-"));
        assert!(
            text.starts_with(&format!("c.toml:2:1: api.{key}: has 15 characters, needs at least 16; choose")),
            "{text}"
        );
        assert!(!text.contains("0f8a"), "{text}");
        good(&file("0f8a-0f8a-0f8a-0"), &[]);
    }
    let text = problems("", &[("API_TOKEN", "short")]).join("\n");
    assert!(text.contains("API_TOKEN") && text.contains("at least 16"), "{text}");
}

#[test]
fn listeners_must_not_share_an_address() {
    let text = problem("[mqtt]\ntcp_addr = \"127.0.0.1:8090\"\n");
    assert!(text.starts_with("c.toml:2:1: mqtt.tcp_addr: listens where api.addr does"), "{text}");
    assert!(problem("[mqtt]\nws_addr = \"0.0.0.0:1883\"\n").contains("mqtt.tcp_addr"));
    good("[mqtt]\ntcp_addr = \"127.0.0.1:0\"\nws_addr = \"127.0.0.1:0\"\n", &[]);
    good("[mqtt]\ntcp_addr = \"127.0.0.1:5000\"\nws_addr = \"127.0.0.2:5000\"\n", &[]);
}

#[test]
fn a_listener_can_be_switched_off_but_not_all_of_them() {
    assert!(good("[mqtt]\nws_addr = \"\"\n", &[]).mqtt.ws_addr.is_none());
    assert!(problem("[mqtt]\ntcp_addr = \"\"\nws_addr = \"\"\n").contains("no MQTT listener is left"));
}

#[test]
fn tls_files_and_tls_listeners_need_each_other() {
    let text = problems("[mqtt]\nwss_addr = \"0.0.0.0:8084\"\ntls_key = \"k\"\n", &[]);
    assert_eq!(text.len(), 1, "{text:#?}");
    assert!(text[0].contains("c.toml:2:1: mqtt.wss_addr: needs mqtt.tls_cert"), "{text:#?}");
    assert!(problem("[mqtt]\ntls_cert = \"c\"\n").contains("is used by no listener"));
    good("[mqtt]\ntls_addr = \"0.0.0.0:8883\"\ntls_cert = \"c\"\ntls_key = \"k\"\n", &[]);
}

#[test]
fn disabled_authentication_needs_loopback_or_a_second_setting() {
    let env = [("AUTH_DISABLED", "1")];
    let found = problems("", &env);
    assert!(found[0].starts_with("environment: AUTH_DISABLED: authentication is off and mqtt.tcp_addr"), "{found:#?}");
    good("[auth]\ndisabled_allow_remote = true\n", &env);
    good("[mqtt]\ntcp_addr = \"127.0.0.1:1883\"\nws_addr = \"[::1]:8083\"\n", &env);
}

#[test]
fn a_node_on_which_nobody_can_log_in_is_warned_of() {
    let without = "[plugins]\ndisable = [\"ciqadamq-auth\", \"ciqadamq-topic-acl\", \"ciqadamq-rest\"]\n";
    let warned = |text: &str| odd(&read(text, &[])).iter().any(|w| w.contains("nobody can log in"));
    assert!(warned(without) && !warned(""));
    assert!(!warned(&format!("{without}enable = [\"rmqtt-auth-http\"]\n")));
}

#[test]
fn expiry_of_zero_is_refused_where_the_engine_reads_it_otherwise() {
    assert!(problem("[mqtt]\nmessage_expiry_secs = 0\n").contains("from 1 to 4294967295"));
    assert!(problem("[mqtt]\nmax_session_expiry_secs = 0\nsession_expiry_secs = 0\n").contains("from 1"));
    assert_eq!(good("[mqtt]\nsession_expiry_secs = 0\n", &[]).mqtt.session_expiry_secs, 0);
    let text = problem("[mqtt]\nmax_session_expiry_secs = 60\n");
    assert!(text.starts_with("c.toml:2:1: mqtt.max_session_expiry_secs: "), "{text}");
}

#[test]
fn sizes_come_as_numbers_or_with_a_unit() {
    for (given, bytes) in [("2048", 2048), ("\"2KB\"", 2048), ("\"3 mb\"", 3 << 20), ("\"256MB\"", 256 << 20)] {
        assert_eq!(good(&format!("[mqtt]\nmax_packet_size = {given}\n"), &[]).mqtt.max_packet_size, bytes);
    }
    for bad in ["100", "\"1\"", "\"257MB\"", "\"1XB\"", "\"-1MB\"", "\"\"", "-5", "1.5", "\"99999999999999999999MB\""] {
        let text = problem(&format!("[mqtt]\nmax_packet_size = {bad}\n"));
        assert!(text.contains("a size from 1KB to 256MB"), "{text}");
    }
}

#[test]
fn values_of_another_type_are_named_as_such() {
    assert!(problem("[mqtt]\nbusy_check = \"yes\"\n").contains("expects true or false, has a string"));
    assert!(problem("[mqtt]\ntcp_addr = 1883\n").contains("has an integer"));
    assert!(problem("[mqtt]\ntcp_addr = \"localhost:1883\"\n").contains("an IP address and a port"));
    assert!(problem("[acl]\npublish_topics = \"updates\"\n").contains("expects a list of strings"));
    assert!(problem("[acl]\npublish_topics = [1]\n").contains("an entry that is no string"));
    assert!(problem("log = \"info,=,x[\"\n").starts_with("c.toml:1:1: log: expects a log filter"));
}

#[test]
fn sections_and_values_are_not_mixed_up() {
    assert!(problem("mqtt = 1\n").contains("is a section; write `[mqtt]`"));
    assert!(problem("[mqtt.tcp_addr]\nx = 1\n").contains("expects a value, has a section"));
    assert!(problem("[mqttt]\ntcp_addr = \"\"\n").contains("unknown section; did you mean `[mqtt]`?"));
    assert!(problem("[[mqtt]]\n").contains("is a section"));
    assert!(problem("[fanout]\npublish_topics = []\n").contains("did you mean `acl.publish_topics`?"));
    assert_eq!(good("mqtt = { max_inflight = 5 }\nauth.argon2.t_cost = 3\n", &[]).mqtt.max_inflight, 5);
}

#[test]
fn broken_toml_is_reported_with_its_line_and_the_environment_all_the_same() {
    let found = problems("[mqtt]\ntcp_addr = \n", &[("NODE_ID", "-1")]);
    assert!(found.iter().any(|p| p.starts_with("c.toml:2:") && p.contains("is no valid TOML")), "{found:#?}");
    assert!(found.iter().any(|p| p.starts_with("environment: NODE_ID: ")), "{found:#?}");
    assert!(problems("[api]\naddr = \"1.1.1.1:1\"\naddr = \"1.1.1.1:2\"\n", &[])[0].starts_with("c.toml:3:"));
}

#[test]
fn databases_of_the_predecessor_are_refused_with_the_way_to_migrate() {
    let text = problem("[db]\nurl = \"redb://data/users.redb\"\n");
    assert!(text.contains("GET /internal/users-full") && text.contains("POST /internal/replicate"), "{text}");
    for bad in ["data/users", "sled://", "postgres://x", ""] {
        assert!(problem(&format!("[db]\nurl = \"{bad}\"\n")).contains("sled://"), "{bad}");
    }
    assert_eq!(good("[db]\nurl = \"sled://users\"\n", &[]).db.data_dir(), Path::new("."));
    assert_eq!(good("", &[]).db.data_dir(), Path::new("data"));
}

#[test]
fn access_rules_are_checked_entry_by_entry() {
    let text = "[acl]\npublish_topics = [\"a/#\", \"device/{userid}\", \"x{userid}\"]\nfanout_prefixes = [\"#\"]\n";
    let found = problems(text, &[]);
    assert_eq!(found.len(), 3, "{found:#?}");
    assert!(found.iter().filter(|p| p.starts_with("c.toml:2:1: acl.publish_topics: `")).count() == 2, "{found:#?}");
    assert!(found.iter().any(|p| p.starts_with("c.toml:3:1: acl.fanout_prefixes: `#`")), "{found:#?}");
}

#[test]
fn plugins_are_known_and_not_contradictory() {
    let text =
        "[plugins]\nenable = [\"rmqtt-retaner\", \"nonsense\", \"rmqtt-http-api\"]\ndisable = [\"rmqtt-http-api\"]\n";
    let all = problems(text, &[]).join("\n");
    for wanted in ["did you mean `rmqtt-retainer`?", "known are ciqadamq-auth, ", "is in plugins.enable too"] {
        assert!(all.contains(wanted), "{wanted}\nnot in\n{all}");
    }
    let text = "[mqtt]\ntcp_addr = \"127.0.0.1:1\"\nws_addr = \"\"\n[plugins]\ndisable = [\"ciqadamq-auth\"]\n";
    let all = problems(text, &[]).join("\n");
    assert!(all.contains("`ciqadamq-topic-acl` needs `ciqadamq-auth`; disable both or neither"), "{all}");
    assert!(all.contains("`ciqadamq-rest` needs `ciqadamq-auth`"), "{all}");
}

#[test]
fn the_command_line_wins_over_the_file_and_must_not_contradict_itself() {
    let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let file = "[plugins]\nenable = [\"rmqtt-http-api\"]\ndisable = [\"rmqtt-retainer\"]\n";
    let overrides = Overrides { file: None, enable: names(&["rmqtt-retainer"]), disable: names(&["rmqtt-http-api"]) };
    let config = read_with(file, &[], &overrides).config;
    assert!(config.plugins.starts("rmqtt-retainer", true) && !config.plugins.starts("rmqtt-http-api", false));
    let overrides =
        Overrides { file: None, enable: names(&["rmqtt-http-api", "x"]), disable: names(&["rmqtt-http-api"]) };
    let all: Vec<_> = read_with("", &[], &overrides).problems.iter().map(Problem::to_string).collect();
    assert_eq!(all.len(), 2, "{all:#?}");
    assert!(all[0].starts_with("command line: --enable: unknown plugin `x`"), "{all:#?}");
    assert!(all[1].starts_with("command line: --disable: `rmqtt-http-api` is given to --enable too"), "{all:#?}");
}

#[test]
fn argon2_needs_memory_for_its_lanes() {
    assert!(problem("[auth.argon2]\nm_cost = 16\np_cost = 4\n").contains("32 or more, has 16"));
}

#[test]
fn nodes_have_an_id_a_host_and_a_port() {
    for bad in ["node1:5363", "0@node1:5363", "1@node1", "1@:5363", "70000@n:1", "1@n:0", "1@http://n:1"] {
        assert!(problem(&format!("[cluster]\nnode_grpc_addrs = [\"{bad}\"]\n")).contains("id@host:port"), "{bad}");
    }
    assert!(problem("[cluster]\nraft_peer_addrs = [\"1@a:1\", \"1@b:1\"]\n").contains("names node 1 twice"));
    let endless = "n".repeat(10_000);
    assert!(problem(&format!("[cluster]\nnode_grpc_addrs = [\"1@{endless}\"]\n")).len() < 300, "an excerpt will do");
    good("[cluster]\nnode_grpc_addrs = [\"1@a:1\"]\nnode_api_addrs = [\"1@http://a:8090\", \"2@https://b:1\"]\n", &[]);
}

#[test]
fn the_file_is_looked_for_in_the_documented_order() {
    let exists = |there: &'static [&'static str]| move |path: &Path| there.iter().any(|p| Path::new(p) == path);
    let both = exists(&["config.toml", "configs/ciqadamq.toml"]);
    let (option, variable) = (Some(Path::new("o")), Some(Path::new("v")));
    assert_eq!(locate(option, variable, both), Source::Option("o".into()));
    assert_eq!(locate(None, variable, both), Source::Variable("v".into()));
    assert_eq!(locate(None, Some(Path::new("")), both), Source::Found("config.toml".into()));
    assert_eq!(locate(None, None, exists(&["configs/ciqadamq.toml"])), Source::Found("configs/ciqadamq.toml".into()));
    assert_eq!(locate(None, None, exists(&[])), Source::BuiltIn);
}

#[test]
fn a_named_file_that_is_not_there_is_a_problem() {
    let overrides = Overrides { file: Some("no/such/file.toml".into()), ..Overrides::default() };
    let (reading, _) = read_all(&overrides, OFFICIAL, |_| None);
    let text = reading.problems[0].to_string();
    assert!(text.starts_with("command line: --config: cannot read `no/such/file.toml`"), "{text}");
    let env = |name: &str| (name == "CIQADAMQ_CONFIG").then(|| OsString::from("no/such/file.toml"));
    let (reading, _) = read_all(&Overrides::default(), OFFICIAL, env);
    let text = reading.problems[0].to_string();
    assert!(text.starts_with("environment: CIQADAMQ_CONFIG: cannot read"), "{text}");
}

#[test]
fn the_effective_configuration_reads_back_as_the_same() {
    let config = good("[mqtt]\nmax_packet_size = 5000\nws_addr = \"\"\n[acl]\npublish_topics = [\"a\\\"b\"]\n", &[]);
    let text = effective(&config);
    // The listener that is switched off, too: found by the fuzz target.
    assert!(text.contains("\nws_addr = \"\"\n"), "{text}");
    assert_eq!(effective(&good(&text, &[])), text);
}

#[test]
fn each_key_and_each_variable_is_declared_once() {
    let paths: BTreeSet<_> = KEYS.iter().map(|key| key.path).collect();
    let variables: Vec<_> = KEYS.iter().filter_map(|key| key.env).collect();
    assert_eq!(paths.len(), KEYS.len());
    assert_eq!(variables.iter().collect::<BTreeSet<_>>().len(), variables.len());
}

const SAMPLE: &str = include_str!("../../../configs/ciqadamq.toml");

#[test]
fn the_sample_passes_and_documents_every_key_with_its_default() {
    good(SAMPLE, &[]);
    let defaults = Config::default();
    let mut section = String::new();
    let mut seen = BTreeSet::new();
    for line in SAMPLE.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = format!("{name}.");
        }
        let Some((name, value)) = line.strip_prefix('#').and_then(|rest| rest.split_once(" = ")) else { continue };
        if name.starts_with(' ') || name.contains(' ') {
            continue;
        }
        let path = format!("{section}{name}");
        let key = find(&path).unwrap_or_else(|| panic!("`{path}` is no key"));
        // What depends on the machine, or has no default, stands there as an example.
        if let Some(default) = (key.show)(&defaults).filter(|_| path != "auth.hash_concurrency") {
            assert_eq!(value, default.trim(), "{path}");
        }
        assert!(seen.insert(key.path), "{path} stands there twice");
    }
    let missing: Vec<_> = KEYS.iter().map(|key| key.path).filter(|path| !seen.contains(path)).collect();
    assert!(missing.is_empty(), "not in the sample: {missing:?}");
    for name in KEYS.iter().filter_map(|key| key.env) {
        assert!(SAMPLE.contains(name), "{name} is not in the sample");
    }
}

#[test]
fn the_sample_still_passes_with_every_default_written_out() {
    let examples = [
        "_addr = \"0.0.0.0:8883\"",
        "_addr = \"0.0.0.0:8084\"",
        "#tls_",
        "#internal_addr",
        "#token =",
        "#token_file",
        "#repl_token",
        "#pepper",
        "#peer_ca",
        "#dir",
        "#provider",
        "#addr = \"https",
        "#ca_file",
        "#namespace",
        "#auth_mount",
        "#role_id",
        "#secret_id",
        "#kubernetes_role",
    ];
    let active: Vec<_> = SAMPLE
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(setting) if !setting.starts_with([' ', '\0']) && !examples.iter().any(|e| line.contains(e)) => setting,
            _ => line,
        })
        .collect();
    let config = good(&active.join("\n"), &[]);
    let same = Config { auth: Auth { hash_concurrency: 2, ..Auth::default() }, ..Config::default() };
    assert_eq!(effective(&config), effective(&same));
}

#[test]
fn a_full_queue_leaves_packet_identifiers_for_what_is_in_flight() {
    assert!((QUEUE_MAX as u64) < ciqadamq_session_store::PACKET_IDS);
    assert!(problem("[mqtt]\nmax_mqueue_len = 40000\n").contains("from 1 to 32767"));
}
