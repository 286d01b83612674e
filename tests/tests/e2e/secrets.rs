//! Secrets from a vault: rotation, and a vault that does not do what it should.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use ciqadamq_tests::vault::{Hyperion, Load, Mood};
use ciqadamq_tests::{
    Broker, BrokerOptions, Cluster, Version, command, eventually, free_addresses, random_token, request,
};

pub const API: &str = "ciqada/api-token";
pub const PEPPER: &str = "ciqada/pepper";
pub const REPL: &str = "ciqada/repl-token";

/// How long the previous token works in these tests.
pub const OVERLAP: Duration = Duration::from_secs(3);

/// Status of a request with this token.
#[track_caller]
pub fn status(node: SocketAddr, token: &str) -> u16 {
    status_at(node, "/api/v1/users?limit=1", token)
}

#[track_caller]
fn status_at(node: SocketAddr, path: &str, token: &str) -> u16 {
    request(node, "GET", path, &[("Authorization", &format!("Bearer {token}"))], None).unwrap().status
}

/// What `/ready` says is degraded; empty if nothing is.
pub fn degraded(node: SocketAddr) -> String {
    let response = request(node, "GET", "/ready", &[], None).unwrap();
    assert_eq!(response.status, 200, "clients notice nothing: {}", response.text());
    response.json()["reasons"]["secrets"].as_str().unwrap_or_default().to_owned()
}

/// Nothing that the broker said or shows has one of these in it.
#[track_caller]
pub fn nothing_shows(broker: &Broker, secrets: &[&str]) {
    let config = broker.config().display().to_string();
    let mut said = vec![("log", broker.log())];
    for args in [&["secrets", "check"][..], &["check-config", "--print"]] {
        let output = broker.run(&[args, &["--config", &config]].concat());
        said.push(("command", text(&output)));
    }
    for path in ["/ready", "/metrics", "/api/v1/cluster", "/api/v1/openapi.json"] {
        let response = broker.rest.get(path);
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        said.push((path, response.text()));
    }
    for (place, text) in said {
        for secret in secrets {
            assert!(!text.contains(secret), "{place} shows a secret:\n{}", text.replace(secret, "(here)"));
        }
    }
}

pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Rotates the management token of three nodes that share a vault, with 100 requests a second running. The load, which
/// goes on, knows the new one.
pub fn rotation_under_load(addrs: &[SocketAddr], old: &str, put: impl Fn(&str)) -> Load {
    let load = Load::start(addrs, old, 100, |status| status == 200);
    eventually("the load runs", || (load.sent() > 50).then_some(()));

    let new = random_token();
    let rotated = Instant::now();
    put(&new);
    // Any request with it may be a node's first.
    load.set_token(&new);
    let mut learned = Vec::new();
    for node in addrs {
        assert_eq!(status(*node, &new), 200, "the first request with the new token");
        learned.push(Instant::now());
    }
    while rotated.elapsed() + Duration::from_millis(500) < OVERLAP {
        for node in addrs {
            let (code, now) = (status(*node, old), rotated.elapsed());
            assert!(code == 200 || now >= OVERLAP, "the previous token in the overlap: {code} after {now:?}");
        }
    }
    for (node, learned) in addrs.iter().zip(&learned) {
        // From here on it must not work any more.
        thread::sleep((*learned + OVERLAP).saturating_duration_since(Instant::now()));
        assert_eq!(status(*node, old), 401, "the previous token after the overlap");
    }
    load
}

pub fn addresses(nodes: &[Broker]) -> Vec<SocketAddr> {
    nodes.iter().map(|node| node.rest.addr).collect()
}

/// Ends the load; it has proved something.
pub fn finish(load: Load) {
    let (sent, rate) = load.finish();
    println!("{sent} requests, {rate:.0}/s");
    assert!(rate > 50.0, "the load was too slow to prove anything: {rate:.0}/s");
}

/// Both tokens of a cluster that shares a vault are rotated, with 100 requests a second running on its nodes, which need
/// the one for each other.
pub fn rotation_in_a_cluster(options: &BrokerOptions, old: &str, put: impl Fn(&str, &str)) {
    let (repl, pepper) = (random_token(), random_token());
    put(REPL, &repl);
    put(PEPPER, &pepper);
    let mut cluster = Cluster::start(3, |_| rotating(options));
    let addrs: Vec<_> = cluster.ids().map(|n| cluster[n].rest.addr).collect();
    let load = rotation_under_load(&addrs, old, |token| put(API, token));
    let new = load.token();
    for n in cluster.ids() {
        cluster[n].rest.token.clone_from(&new);
    }
    for round in 0..3 {
        let next = random_token();
        put(REPL, &next);
        // At once, when some nodes know it and some do not.
        for n in cluster.ids() {
            let user = cluster[n].user(&format!("u{round}{n}"));
            let other = n % 3 + 1;
            assert!(cluster[other].connect(&user.connect(Version::V5, &user.userid)).is_accepted(), "node {other}");
        }
        for addr in &addrs {
            let opens = || (status_at(*addr, "/internal/users-full", &next) == 200).then_some(());
            eventually("the node knows the new token", opens);
        }
    }
    finish(load);
    for n in cluster.ids() {
        nothing_shows(&cluster[n], &[old, &new, &repl, &pepper]);
    }
}

fn options(vault: &Hyperion, token: &str) -> BrokerOptions {
    BrokerOptions::new().outside_token(token).env("VAULT_ADDR", &vault.url())
}

/// What lets a test see rotations without waiting for long.
fn rotating(options: &BrokerOptions) -> BrokerOptions {
    options.clone().set("api.token_overlap_secs", OVERLAP.as_secs() as i64).set("secrets.refresh_secs", 1)
}

/// Three nodes that have nothing but the address of a vault.
pub fn three_nodes(options: &BrokerOptions) -> Vec<Broker> {
    let options = rotating(options);
    let starting: Vec<_> =
        (0..3).map(|_| options.clone()).map(|options| thread::spawn(|| Broker::start(options))).collect();
    starting.into_iter().map(|start| start.join().unwrap()).collect()
}

#[test]
fn a_token_from_hyperion_vault_rotates_under_load_without_one_wrong_answer() {
    let old = random_token();
    let vault = Hyperion::start(&[(API, &old)]);
    let mut nodes = three_nodes(&options(&vault, &old));
    let load = rotation_under_load(&addresses(&nodes), &old, |token| vault.put(API, token));
    let new = load.token();
    finish(load);
    for node in &mut nodes {
        node.rest.token.clone_from(&new);
        nothing_shows(node, &[&old, &new]);
    }
}

#[test]
fn tokens_of_a_cluster_rotate_in_hyperion_vault_without_one_wrong_answer() {
    let old = random_token();
    let vault = Hyperion::start(&[(API, &old)]);
    rotation_in_a_cluster(&options(&vault, &old), &old, |name, value| vault.put(name, value));
}

#[test]
fn the_replication_token_opens_internal_and_rotates_too() {
    let (api, old, new) = (random_token(), random_token(), random_token());
    let vault = Hyperion::start(&[(API, &api), (REPL, &old)]);
    let broker = Broker::start(options(&vault, &api).set("api.token_overlap_secs", 600));
    let open = |token: &str| status_at(broker.rest.addr, "/internal/users-full", token);
    assert_eq!((open(&old), open(&api)), (200, 401));
    vault.put(REPL, &new);
    assert_eq!((open(&new), open(&old)), (200, 200));
    assert_eq!(status(broker.rest.addr, &new), 401, "it opens nothing else");
    nothing_shows(&broker, &[&api, &old, &new]);
}

#[test]
fn a_vault_without_a_replication_token_leaves_internal_to_the_management_token() {
    let api = random_token();
    let vault = Hyperion::start(&[(API, &api)]);
    let broker = Broker::start(options(&vault, &api));
    assert_eq!(status_at(broker.rest.addr, "/internal/users-full", &api), 200);
    assert!(broker.log().contains("/internal/ takes the management token"));
    assert_eq!(degraded(broker.rest.addr), "");
}

#[test]
fn another_pepper_costs_an_argon2_and_refuses_nobody() {
    let (api, first, second) = (random_token(), random_token(), random_token());
    let vault = Hyperion::start(&[(API, &api), (PEPPER, &first)]);
    let mut broker = Broker::start(options(&vault, &api));
    let ua = broker.user("ua");
    broker.client(&ua, Version::V5, "phone").disconnect();
    assert!(broker.dir().join("data/verifiers").is_dir(), "the pepper is used");
    for pepper in [Some(&second), None] {
        match pepper {
            Some(pepper) => vault.put(PEPPER, pepper),
            None => vault.remove(PEPPER),
        }
        broker.restart();
        broker.client(&ua, Version::V5, "phone").disconnect();
    }
    nothing_shows(&broker, &[&api, &first, &second]);
}

/// Every way to go wrong, how it is counted, and what the values in it are.
fn moods() -> Vec<(Mood, &'static str)> {
    let json = |body: &str| Mood::says(200, body);
    vec![
        (Mood::Refusing, "unreachable"),
        (Mood::BlackHole, "timeout"),
        (Mood::Late(Duration::from_secs(30)), "timeout"),
        (Mood::says(503, r#"{"error":"sealed","value":"hunter2hunter2hunter2"}"#), "sealed"),
        (Mood::says(403, r#"{"error":"address not allowed: hunter2hunter2hunter2"}"#), "forbidden"),
        (Mood::says(500, "hunter2hunter2hunter2"), "refused"),
        (json("{}"), "nonsense"),
        (json(r#"{"name":"ciqada/api-token","version":2,"value":null}"#), "nonsense"),
        (json(r#"{"value":""}"#), "nonsense"),
        (json(r#""""#), "nonsense"),
        (json("5"), "nonsense"),
        (json(r#"{"value":5}"#), "nonsense"),
        (json(r#"{"value":"<no value>"}"#), "nonsense"),
        (json(r#"{"value":"hunter2hunter2 hunter2"}"#), "nonsense"),
        (json(r#"{"value":"<html>hunter2hunter2hunter2</html>"}"#), "nonsense"),
        (json(r#"{"name":"ciqada/other","value":"hunter2hunter2hunter2"}"#), "nonsense"),
        (Mood::says(200, "<!DOCTYPE html><html><body>hunter2hunter2hunter2</body></html>"), "nonsense"),
        (json(r#"{"name":"ciqada/api-token","version":2,"value":"hunter2hunter2hunter2"#), "nonsense"),
        (Mood::Says(200, format!(r#"{{"value":"hunter2{}"}}"#, "x".repeat(10 << 20)).into_bytes()), "nonsense"),
        (Mood::Cut, "unreachable"),
        (Mood::SaysWith(302, ("Location", "http://127.0.0.1:1/v1/secrets/x".into()), Vec::new()), "refused"),
        (Mood::SaysWith(429, ("Retry-After", "1".into()), b"{}".to_vec()), "rate_limited"),
    ]
}

/// Values that must open nothing, whatever the vault says.
const INTRUDERS: [&str; 4] = ["hunter2hunter2hunter2", "null", "5", "{}"];

#[test]
fn whatever_a_vault_does_at_run_time_the_last_good_token_stays_and_nothing_else_opens() {
    let all = moods();
    let (some, others) = all.split_at(all.len() / 2);
    thread::scope(|scope| {
        scope.spawn(|| vault_fails_at_run_time(some));
        scope.spawn(|| vault_fails_at_run_time(others));
    });
}

fn vault_fails_at_run_time(moods: &[(Mood, &str)]) {
    let token = random_token();
    let vault = Hyperion::start(&[(API, &token), (REPL, &random_token())]);
    let broker = Broker::start(options(&vault, &token).set("secrets.refresh_secs", 1).set("secrets.timeout_secs", 1));
    let ua = broker.user("ua");
    let mut client = broker.client(&ua, Version::V5, "phone");
    let node = [broker.rest.addr];
    let good = Load::start(&node, &token, 40, |status| status == 200);
    let intruders: Vec<Load> = INTRUDERS
        .iter()
        .map(|token| Load::start(&node, token, 10, |status| matches!(status, 401 | 429 | 503)))
        .collect();
    for (mood, kind) in moods {
        let outcome = format!("outcome=\"{kind}\"");
        let count = || broker.rest.metric("ciqadamq_secrets_reads_total", &[&outcome, "secret=\"ciqada/api-token\""]);
        let before = count();
        vault.set_mood(mood.clone());
        eventually(&format!("{mood:.60?} is noticed as {kind}"), || (count() > before).then_some(()));
        assert!(degraded(node[0]).contains(&format!("ciqada/api-token: hyperion-vault: {kind}")), "{mood:.60?}");
        assert_eq!(broker.rest.metric("ciqadamq_secrets_stale", &["ciqada/api-token"]), 1.0);
        client.publish_ok("chatsync", "still here", 1);
    }
    let warnings = broker.log().matches("secret cannot be read; the last good value stays in force").count();
    assert_eq!(warnings, 2, "one line an episode for each of the two tokens");

    let new = random_token();
    vault.put(API, &new);
    vault.set_mood(Mood::Well);
    eventually("the vault is well again", || degraded(node[0]).is_empty().then_some(()));
    eventually("the new token is known", || (status(node[0], &new) == 200).then_some(()));
    client.publish_ok("chatsync", "still here", 1);
    good.finish();
    for intruder in intruders {
        intruder.finish();
    }
    nothing_shows(&broker, &[&token, &new, "hunter2"]);
}

/// Runs the broker until it ends by itself.
fn run_to_end(dir: &Path, vault: &Hyperion, extra: &str, env: &[(&str, &str)]) -> Output {
    let [tcp, ws, api] = free_addresses();
    let config = format!(
        "[mqtt]\ntcp_addr = \"{tcp}\"\nws_addr = \"{ws}\"\n[api]\naddr = \"{api}\"\n[db]\nurl = \"sled://{}\"\n\
         [secrets]\nstart_timeout_secs = 1\ntimeout_secs = 1\n{extra}",
        dir.join("data/users").display()
    );
    let path = dir.join("test.toml");
    fs::write(&path, config).unwrap();
    let mut command = command(dir);
    command.arg("--config").arg(path).env("VAULT_ADDR", vault.url()).envs(env.iter().copied());
    command.output().unwrap()
}

#[test]
fn without_an_answer_and_without_a_token_the_broker_does_not_start_and_says_why() {
    let stories: Vec<_> = moods()
        .into_iter()
        .map(|(mood, kind)| {
            thread::spawn(move || {
                let vault = Hyperion::start(&[(API, "hunter2-the-right-one-0123456789")]);
                vault.set_mood(mood.clone());
                let dir = tempfile::TempDir::new().unwrap();
                let started = Instant::now();
                let output = run_to_end(dir.path(), &vault, "", &[]);
                let said = text(&output);
                assert_eq!(output.status.code(), Some(4), "{mood:.60?}: {said}");
                for wanted in [API, "hyperion-vault", &vault.url(), "API_TOKEN", "VAULT_ADDR"] {
                    // Not every remedy is about the address.
                    assert!(
                        said.contains(wanted) || wanted == "VAULT_ADDR",
                        "{mood:.60?} does not say {wanted}: {said}"
                    );
                }
                assert!(!said.contains("hunter2"), "{mood:.60?}: {said}");
                assert!(!dir.path().join("data").exists(), "{mood:.60?}: nothing was opened");
                assert!(
                    started.elapsed() < Duration::from_secs(30),
                    "{mood:.60?} ({kind}) took {:?}",
                    started.elapsed()
                );
            })
        })
        .collect();
    for story in stories {
        story.join().unwrap();
    }
}

#[test]
fn a_vault_that_has_no_token_is_no_reason_to_make_one() {
    let vault = Hyperion::start(&[(PEPPER, &random_token())]);
    let dir = tempfile::TempDir::new().unwrap();
    let output = run_to_end(dir.path(), &vault, "", &[]);
    assert_eq!(output.status.code(), Some(4), "{}", text(&output));
    assert!(text(&output).contains("has no such secret"), "{}", text(&output));
}

#[test]
fn without_an_answer_the_configured_token_is_used_and_internal_stays_closed_until_the_vault_is_back() {
    let (configured, in_vault, repl) = (random_token(), random_token(), random_token());
    let vault = Hyperion::start(&[(API, &in_vault), (REPL, &repl)]);
    vault.set_mood(Mood::says(503, "{}"));
    let options = options(&vault, &configured)
        .env("API_TOKEN", &configured)
        .set("secrets.start_timeout_secs", 1)
        .set("secrets.refresh_secs", 1)
        .set("api.token_overlap_secs", 600);
    let broker = Broker::start(options);
    let node = broker.rest.addr;
    assert_eq!(status(node, &configured), 200);
    assert!(degraded(node).contains("ciqada/api-token: hyperion-vault: sealed"), "{}", degraded(node));
    for token in [&configured, &in_vault, &repl] {
        assert_eq!(
            status_at(node, "/internal/users-full", token),
            401,
            "whether there is a replication token is not known"
        );
    }
    vault.set_mood(Mood::Well);
    eventually("the vault's token is in force", || (status(node, &in_vault) == 200).then_some(()));
    eventually("internal is open", || (status_at(node, "/internal/users-full", &repl) == 200).then_some(()));
    assert_eq!(status_at(node, "/internal/users-full", &in_vault), 401);
    assert_eq!(status(node, &configured), 200, "the configured one for the overlap");
    eventually("nothing is degraded", || degraded(node).is_empty().then_some(()));
    nothing_shows(&broker, &[&configured, &in_vault, &repl]);
}

#[test]
fn a_vault_that_comes_up_late_is_waited_for() {
    let token = random_token();
    let vault = Hyperion::start(&[(API, &token)]);
    vault.set_mood(Mood::Refusing);
    let broker = thread::scope(|scope| {
        let starting = scope.spawn(|| Broker::start(options(&vault, &token)));
        thread::sleep(Duration::from_millis(700));
        vault.set_mood(Mood::Well);
        starting.join().unwrap()
    });
    assert_eq!(status(broker.rest.addr, &token), 200);
}

#[test]
fn a_token_rotates_while_a_node_waits_for_its_cluster() {
    let (old, new, repl) = (random_token(), random_token(), random_token());
    let vault = Hyperion::start(&[(API, &old), (REPL, &repl)]);
    let mut cluster = Cluster::prepare(3, |_| options(&vault, &old).set("secrets.refresh_secs", 3600));
    let node = cluster[1].rest.addr;
    cluster[1].spawn();
    eventually("its API answers", || request(node, "GET", "/health", &[], None).ok());
    assert!(!cluster[1].is_ready(), "it is alone");
    vault.put(API, &new);
    let since = Instant::now();
    assert_eq!(status_at(node, "/api/v1/cluster", &new), 200, "the first request with the new token");
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    assert_eq!(status_at(node, "/api/v1/cluster", &old), 200, "the old one for the overlap");
}

#[test]
fn secrets_in_files_rotate_when_the_file_changes() {
    let dir = tempfile::TempDir::new().unwrap();
    let (old, new) = (random_token(), random_token());
    // As Kubernetes mounts them: the name leads through a link that is replaced as a whole.
    let publish = |version: &str, token: &str| {
        let data = dir.path().join(version);
        fs::create_dir(&data).unwrap();
        fs::write(data.join("api-token"), format!("{token}\n")).unwrap();
        let link = dir.path().join("..data");
        let draft = dir.path().join("..draft");
        std::os::unix::fs::symlink(&data, &draft).unwrap();
        fs::rename(draft, link).unwrap();
    };
    publish("v1", &old);
    std::os::unix::fs::symlink("..data/api-token", dir.path().join("api-token")).unwrap();
    let options = BrokerOptions::new()
        .outside_token(&old)
        .set("secrets.provider", "files")
        .set("secrets.dir", dir.path().display().to_string())
        .set("api.token_overlap_secs", 1);
    let mut broker = Broker::start(options);
    publish("v2", &new);
    assert_eq!(status(broker.rest.addr, &new), 200, "the first request with the new token");
    eventually("the old one is out", || (status(broker.rest.addr, &old) == 401).then_some(()));
    broker.rest.token.clone_from(&new);
    nothing_shows(&broker, &[&old, &new]);
}

#[test]
fn a_check_says_where_each_secret_comes_from_and_what_is_wrong() {
    let (api, repl) = (random_token(), random_token());
    let vault = Hyperion::start(&[(API, &api), (REPL, &repl)]);
    let dir = tempfile::TempDir::new().unwrap();
    let check = |env: &[(&str, &str)]| {
        let output = command(dir.path()).args(["secrets", "check"]).envs(env.iter().copied()).output().unwrap();
        let said = text(&output);
        assert!(!said.contains(&api) && !said.contains(&repl), "{said}");
        (output.status.code(), said)
    };
    let url = vault.url();
    let addr = ("VAULT_ADDR", url.as_str());
    let (code, said) = check(&[addr]);
    assert_eq!(code, Some(0), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert!(
        lines[0].contains(API)
            && lines[0].contains("usable")
            && lines[0].contains(&url)
            && lines[0].contains("version 1")
    );
    assert!(lines[1].contains(PEPPER) && lines[1].contains("none") && lines[1].contains("AUTH_PEPPER"), "{said}");
    vault.set_mood(Mood::says(503, "{}"));
    let (code, said) = check(&[addr]);
    assert!(code == Some(4) && said.contains("FAILED") && said.contains("unseal it"), "{code:?} {said}");
    let (code, said) = check(&[addr, ("API_TOKEN", &api)]);
    assert!(code == Some(1) && said.contains("API_TOKEN or the configuration would be used"), "{code:?} {said}");
    let (code, said) = check(&[("API_TOKEN", &api)]);
    assert!(code == Some(0) && said.contains("usable"), "{code:?} {said}");
    let (code, said) = check(&[]);
    assert!(code == Some(0) && said.contains("is made at the first start"), "{code:?} {said}");
}

#[test]
fn commands_find_the_token_where_the_node_does() {
    let token = random_token();
    let vault = Hyperion::start(&[(API, &token)]);
    let broker = Broker::start(options(&vault, &token));
    broker.user("ua");
    let config = broker.config().display().to_string();
    let output = broker.run(&["users", "list", "--config", &config]);
    assert!(output.status.success() && text(&output).contains("ua-token"), "{}", text(&output));
    vault.set_mood(Mood::Refusing);
    let output = broker.run(&["users", "list", "--config", &config]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
}

#[test]
fn guessing_asks_the_vault_at_most_once_in_five_seconds() {
    let token = random_token();
    let vault = Hyperion::start(&[(API, &token)]);
    let broker = Broker::start(options(&vault, &token).set("secrets.refresh_secs", 3600));
    let (before, started) = (vault.asked(API), Instant::now());
    let guesses =
        Load::start(&[broker.rest.addr], "a-wrong-guess-0123456789", 50, |status| matches!(status, 401 | 429));
    thread::sleep(Duration::from_secs(6));
    guesses.finish();
    let (asked, time) = (vault.asked(API) - before, started.elapsed());
    assert!((1..=1 + time.as_secs() as usize / 5).contains(&asked), "{asked} questions in {time:?}");
}
