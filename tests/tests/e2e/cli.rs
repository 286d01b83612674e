//! The command line against a running node.

use std::fs;
use std::process::{Output, Stdio};

use ciqadamq_tests::{Account, Broker, BrokerOptions, Cluster, Version, command, eventually};
use serde_json::Value;

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A broker, and its program with the arguments that lead to it.
struct Cli {
    broker: Broker,
    api: Vec<String>,
}

impl Cli {
    fn new() -> Self {
        let broker = Broker::start_default();
        let file = broker.dir().join("token");
        fs::write(&file, format!("{}\n", broker.rest.token)).unwrap();
        let api = vec![
            "--api".into(),
            format!("http://{}", broker.rest.addr),
            "--token-file".into(),
            file.display().to_string(),
        ];
        Self { broker, api }
    }

    #[track_caller]
    fn run(&self, args: &[&str], code: i32) -> String {
        let mut all: Vec<&str> = args.to_vec();
        all.extend(self.api.iter().map(String::as_str));
        let output = self.broker.run(&all);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output));
        text(&output)
    }

    fn password(&self, password: &str) -> String {
        let path = self.broker.dir().join("password");
        fs::write(&path, format!("{password}\n")).unwrap();
        path.display().to_string()
    }
}

#[test]
fn users_are_managed_on_the_command_line() {
    let cli = Cli::new();
    let file = cli.password("the password");
    cli.run(&["users", "add", "t1", "--userid", "u1", "--password-file", &file], 0);
    cli.run(&["users", "add", "t1", "--userid", "u1", "--password-file", &file], 1);
    cli.run(&["users", "add", "t2", "--userid", "u 2", "--password-file", &file], 1);
    cli.run(&["users", "add", "root", "--userid", "root", "--superuser", "--password-file", &file], 0);
    let list = cli.run(&["users", "list"], 0);
    assert!(list.contains("t1") && list.contains("root"), "{list}");
    let json: Value = serde_json::from_str(&cli.run(&["users", "list", "--userid", "u1", "--json"], 0)).unwrap();
    assert!(json.to_string().contains("\"t1\"") && !json.to_string().contains("root"), "{json}");
    let account = Account { username: "t1".into(), userid: "u1".into(), password: "the password".into() };
    let mut phone = cli.broker.client(&account, Version::V5, "phone");

    cli.run(&["users", "set", "t1", "--admin", "true"], 0);
    assert!(phone.may_subscribe("adminfanout/#"));
    assert!(cli.run(&["users", "show", "t1"], 0).contains("u1"));
    let file = cli.password("the next one");
    cli.run(&["users", "set", "t1", "--password", "--password-file", &file], 0);
    phone.expect_closed();
    assert!(!cli.broker.connect(&account.connect(Version::V5, "phone")).is_accepted());
    let account = Account { password: "the next one".into(), ..account };
    cli.broker.client(&account, Version::V5, "phone").disconnect();

    cli.run(&["users", "delete", "t1"], 0);
    cli.run(&["users", "delete", "t1"], 1);
    cli.run(&["users", "show", "t1"], 1);
}

#[test]
fn the_access_rule_can_be_asked() {
    let cli = Cli::new();
    cli.broker.user("ua");
    cli.run(&["acl", "check", "ua-token", "subscribe", "chat/ua/#"], 0);
    cli.run(&["acl", "check", "ua-token", "subscribe", "#"], 1);
    cli.run(&["acl", "check", "ua-token", "publish", "chatsync"], 0);
    cli.run(&["acl", "check", "ua-token", "publish", "chat/ua/x"], 1);
    cli.run(&["acl", "check", "nobody", "publish", "chatsync"], 1);
    cli.run(&["acl", "check", "ua-token", "dance", "chatsync"], 2);
}

#[test]
fn without_options_the_local_configuration_says_where_and_with_which_token() {
    for broker in [Broker::start_default(), Broker::start(BrokerOptions::new().own_token())] {
        broker.user("ua");
        let config = broker.config().display().to_string();
        let output = broker.run(&["users", "list", "--config", &config]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
        assert!(text(&output).contains("ua-token"));
    }
}

#[test]
fn a_node_that_is_not_there_is_another_exit_code() {
    let mut cli = Cli::new();
    cli.broker.sigterm();
    cli.run(&["users", "list"], 3);
}

#[test]
fn whether_a_node_is_alive_and_ready_can_be_asked_without_a_token_or_an_http_client() {
    let mut broker = Broker::start_default();
    let config = broker.config().display().to_string();
    let ask = |broker: &Broker, args: &[&str]| {
        let output = broker.run(&[&["health", "--config", &config], args].concat());
        (output.status.code(), text(&output))
    };
    assert_eq!(ask(&broker, &[]), (Some(0), "alive\n".into()));
    assert_eq!(ask(&broker, &["--ready"]), (Some(0), "ready\n".into()));
    let url = format!("http://{}", broker.rest.addr);
    assert_eq!(ask(&broker, &["--ready", "--api", &url]).0, Some(0));
    broker.sigterm();
    assert_eq!(ask(&broker, &[]).0, Some(3));

    // One of three waits for the others.
    let mut cluster = Cluster::prepare(3, |_| BrokerOptions::new());
    cluster[1].spawn();
    let config = cluster[1].config().display().to_string();
    let ask = |args: &[&str]| cluster[1].run(&[&["health", "--config", &config], args].concat());
    eventually("its API", || (ask(&[]).status.code() == Some(0)).then_some(()));
    let output = ask(&["--ready"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("not ready: "), "{}", text(&output));
}

#[test]
fn a_wrong_token_is_refused() {
    let cli = Cli::new();
    let file = cli.broker.dir().join("token");
    fs::write(file, "something else altogether").unwrap();
    assert!(cli.run(&["users", "list"], 1).contains("token"));
}

#[test]
fn completions_version_and_help_need_no_broker() {
    let dir = tempfile::TempDir::new().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = command(dir.path()).args(["completions", shell]).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output).contains("check-config"), "{shell}");
    }
    for (args, wanted) in
        [(&["--version"][..], "ciqadamq"), (&["--help"], "check-config"), (&["users", "--help"], "list")]
    {
        let output = command(dir.path()).args(args).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(text(&output).contains(wanted), "{args:?}");
    }
    let output = command(dir.path()).arg("--no-such-option").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
