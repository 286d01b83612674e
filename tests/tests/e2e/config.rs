//! The configuration: read whole, refused whole.

use std::fs;
use std::process::Output;
use std::time::Instant;

use ciqadamq_tests::{Broker, BrokerOptions, Version, command, free_addresses};
use tempfile::TempDir;

/// Runs the program with a configuration file of this text.
fn with_config(text: &str, args: &[&str], env: &[(&str, &str)]) -> (Output, String) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("test.toml");
    fs::write(&path, text).unwrap();
    let mut command = command(dir.path());
    let output = command.args(args).arg("--config").arg(&path).envs(env.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output, said)
}

#[test]
fn four_lines_are_enough() {
    let started = Instant::now();
    let broker = Broker::start(BrokerOptions::new().minimal());
    assert!(started.elapsed().as_secs() < 20, "took {:?}", started.elapsed());
    let lines = fs::read_to_string(broker.config()).unwrap();
    assert_eq!(lines.lines().filter(|line| line.contains('=')).count(), 5, "{lines}");
    let ua = broker.user("ua");
    let mut client = broker.client(&ua, Version::V311, "phone");
    client.subscribe(&["chat/ua/#", "fanout/#"]);
    client.publish_ok("chatsync", "x", 1);
    client.publish_ok("updates", "x", 1);
}

#[test]
fn every_wrong_key_is_named_and_nothing_starts() {
    let text = "[mqtt]\ntcp_adr = \"127.0.0.1:1883\"\nmax_inflight = \"many\"\n[nonsense]\nx = 1\n";
    for args in [&["serve"][..], &["check-config"], &[]] {
        let (output, said) = with_config(text, args, &[]);
        assert!(output.status.code().is_some_and(|code| code != 0), "{args:?}: {:?}", output.status);
        for wanted in ["tcp_adr", "max_inflight", "nonsense", "test.toml", "tcp_addr"] {
            assert!(said.contains(wanted), "{args:?} does not say {wanted}: {said}");
        }
    }
}

#[test]
fn wrong_environment_variables_are_named_too() {
    let env = [("AUTH_CACHE_TTL_SECS", "soon"), ("ARGON2_M_COST", "-1"), ("DB_URL", "redb://x")];
    let (output, said) = with_config("", &["check-config"], &env);
    assert_ne!(output.status.code(), Some(0));
    for (name, _) in env {
        assert!(said.contains(name), "{name}: {said}");
    }
    assert!(said.contains("sled://"), "the way to migrate: {said}");
}

#[test]
fn contradictions_are_found() {
    for (text, wanted) in [
        ("[mqtt]\ntls_addr = \"127.0.0.1:8883\"\n", "tls_cert"),
        ("[mqtt]\ntcp_addr = \"127.0.0.1:1\"\nws_addr = \"127.0.0.1:1\"\n", "ws_addr"),
        ("[mqtt]\nsession_expiry_secs = 100\nmax_session_expiry_secs = 10\n", "session_expiry_secs"),
        ("[api]\ntoken = \"with space\"\n", "api.token"),
        ("[api]\ntoken = \"changemechangeme\"\n", "api.token"),
        ("[auth]\ndisabled = true\n", "auth.disabled"),
        ("[plugins]\nenable = [\"rmqtt-nothing\"]\n", "rmqtt-nothing"),
        ("[acl]\npublish_topics = [\"a/+\"]\n", "publish_topics"),
        ("[acl]\non_deny = \"explode\"\n", "on_deny"),
        ("this is no toml", "test.toml"),
    ] {
        let (output, said) = with_config(text, &["check-config"], &[]);
        assert_ne!(output.status.code(), Some(0), "{text}");
        assert!(said.contains(wanted), "{text}: {said}");
    }
}

#[test]
fn a_good_configuration_is_accepted_and_shown() {
    let text = "[mqtt]\ntcp_addr = \"127.0.0.1:21883\"\n[api]\ntoken = \"a-token-that-is-long-enough\"\n";
    let (output, said) = with_config(text, &["check-config"], &[]);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let (output, said) = with_config(text, &["check-config", "--print"], &[]);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("127.0.0.1:21883") && !said.contains("a-token-that-is-long-enough"), "{said}");
}

#[test]
fn a_file_that_is_not_there_is_no_reason_to_use_the_defaults() {
    let dir = TempDir::new().unwrap();
    let output = command(dir.path()).args(["--config", "missing.toml"]).output().unwrap();
    assert_ne!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stderr).contains("missing.toml"));
    let output = command(dir.path()).arg("check-config").env("CIQADAMQ_CONFIG", "gone.toml").output().unwrap();
    assert_ne!(output.status.code(), Some(0));
}

#[test]
fn a_port_that_is_taken_is_named_and_ends_the_start() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    let [ws, api] = free_addresses();
    let text = format!(
        "[mqtt]\ntcp_addr = \"{addr}\"\nws_addr = \"{ws}\"\n[api]\naddr = \"{api}\"\ntoken = \"a-token-that-is-long-enough\"\n"
    );
    let (output, said) = with_config(&text, &[], &[]);
    assert!(output.status.code().is_some_and(|code| code != 0), "{:?}", output.status);
    assert!(said.contains(&addr.to_string()) || said.contains(&addr.port().to_string()), "{said}");
}

#[test]
fn a_second_broker_on_the_same_data_does_not_start() {
    let broker = Broker::start_default();
    let [tcp, ws, api] = free_addresses();
    let text = format!(
        "[mqtt]\ntcp_addr = \"{tcp}\"\nws_addr = \"{ws}\"\n[api]\naddr = \"{api}\"\ntoken = \"a-token-that-is-long-enough\"\n\
         [db]\nurl = \"sled://{}\"\n",
        broker.dir().join("data/users").display()
    );
    let (output, said) = with_config(&text, &[], &[]);
    assert!(output.status.code().is_some_and(|code| code != 0), "{said}");
    broker.user("still-there");
}

#[test]
fn logs_can_be_json() {
    let broker = Broker::start(BrokerOptions::new().args(&["--log-format", "json"]));
    let log = broker.log();
    let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    assert!(!lines.is_empty());
    for line in lines {
        let value: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert!(value.is_object());
    }
}

#[test]
fn an_address_without_a_listener_is_a_listener_less() {
    let broker = Broker::start(BrokerOptions::new().set("mqtt.ws_addr", ""));
    let ua = broker.user("ua");
    broker.client(&ua, Version::V5, "phone").disconnect();
    assert!(std::net::TcpStream::connect(broker.ws).is_err());
}
