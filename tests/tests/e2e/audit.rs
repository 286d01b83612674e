//! Who did what, and who was refused what, as structured log events with stable names.

use std::collections::BTreeSet;

use ciqadamq_tests::mqtt::{Answer, Publish};
use ciqadamq_tests::{Broker, BrokerOptions, Connect, Link, Version, WAIT, eventually, request};
use serde_json::{Value, json};

/// What a broker alone cannot cause; see [`crate::nodes`].
const IN_A_CLUSTER: [&str; 2] = ["member_added", "member_removed"];

/// The events of the table in `docs/security.md`, and the fields that each has.
pub fn documented() -> Vec<(String, Vec<String>)> {
    let page = include_str!("../../../docs/security.md");
    let table = page.split("<!-- audit events -->").nth(1).expect("the table is marked");
    let code = |cell: &str| -> Vec<String> { cell.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
    table
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            let cells: Vec<&str> = line.split('|').collect();
            (code(cells[1])[0].clone(), code(cells[2]))
        })
        .collect()
}

/// What a broker with `--log-format json` has logged for the audit.
pub fn events(broker: &Broker) -> Vec<Value> {
    let log = broker.log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["target"] == "audit").collect()
}

/// Does everything that has an event.
fn cause_all(broker: &Broker) {
    let root = broker.superuser("root");
    let (ua, ub) = (broker.user("ua"), broker.user("ub"));
    broker.rest.change_user("ub-token", &json!({"admin": true}));
    // Logins, sessions.
    broker.connect(&Connect::new(Version::V5, Link::Tcp, "guess").login("ua-token", "guess")).refused();
    let many: Vec<_> = (0..30).map(|n| broker.client(&ub, Version::V5, &format!("many{n}"))).collect();
    broker.connect(&ub.connect(Version::V5, "one too many")).refused();
    drop(many);
    broker.rest.wait_gone("many0");
    let mut kept = broker.client(&ua, Version::V5, "kept");
    // Access.
    kept.may_subscribe("#");
    kept.publish(&Publish::new("chat/ub/x", "forged", 1));
    // A message and a Will of users who are deleted.
    kept.publish(&Publish::new("chatsync", "kept", 1).retained());
    kept.disconnect();
    broker.rest.wait_gone("kept");
    let willing = ub.connect(Version::V5, "willing").will(Publish::new("updates", "never", 1));
    let _willing = eventually("there is room again", || match broker.connect(&willing) {
        Answer::Accepted(client, _) => Some(client),
        _ => None,
    });
    broker.rest.delete_user("ub-token");
    broker.rest.delete_user("ua-token");
    // A client that does not read.
    let mut slow = broker.client(&root, Version::V5, "slow");
    slow.try_subscribe(&[("fast/#", 0)]);
    let mut backend = broker.client(&root, Version::V5, "backend");
    let payload = "x".repeat(20_000);
    eventually("the slow client is closed", || {
        for _ in 0..300 {
            backend.publish_ok("fast/x", &payload, 0);
        }
        backend.ping();
        (broker.rest.metric("ciqadamq_auth_laggards_closed_total", &[]) > 0.0).then_some(())
    });
    // REST.
    let _ended = broker.client(&root, Version::V5, "ended");
    assert_eq!(broker.rest.delete("/api/v1/sessions/ended").status, 204);
    assert_eq!(broker.rest.get("/internal/users-full").status, 200);
    let put = json!({"op": "upsert", "user": {"username": "moved", "userid": "moved",
        "password_hash": "$argon2id$v=19$m=64,t=1,p=1$c29tZXNhbHRzb21lc2FsdA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}});
    let response = broker.rest.post("/internal/replicate", &put);
    assert_eq!(response.status, 204, "{}", response.text());
    for _ in 0..30 {
        request(broker.rest.addr, "GET", "/api/v1/users", &[("Authorization", "Bearer guess")], None).unwrap();
    }
    // Two users, one client id, at the same moment: seldom, so in the race's own test too.
    race(broker);
}

fn race(broker: &Broker) {
    let accounts = [broker.user("uc"), broker.user("ud")];
    for round in 0..100 {
        // Forty CONNECTs in flight: the verdicts on some pairs come at about the same moment.
        let mut all: Vec<_> = (0..40)
            .map(|n| {
                let connect = accounts[n % 2].connect(Version::V5, &format!("dev{round}-{}", n / 2));
                (ciqadamq_tests::Client::open(&connect, broker.tcp).unwrap(), connect.encode())
            })
            .collect();
        for (client, packet) in &mut all {
            client.send(packet);
        }
        for (client, _) in all {
            if let Answer::Accepted(client, _) = client.connack() {
                client.cut();
            }
        }
        if broker.rest.metric("ciqadamq_auth_client_id_contested_total", &[]) > 0.0 {
            return;
        }
    }
    panic!("the guard had nothing to do");
}

#[test]
fn every_documented_event_occurs_with_its_fields_and_no_other_does() {
    let options = BrokerOptions::new()
        .args(&["--log-format", "json"])
        .set("limits.sessions_per_user", 30)
        .set("auth.cache_ttl_secs", 0)
        .set("auth.hash_concurrency", 40)
        .set("auth.argon2.m_cost", 256)
        .set("limits.lag_secs", 1)
        .set("acl.on_deny", "drop");
    let broker = Broker::start(options);
    cause_all(&broker);
    let documented = documented();
    assert!(documented.len() > 10, "{documented:?}");
    let names = documented.iter().map(|(name, _)| name.as_str()).filter(|name| !IN_A_CLUSTER.contains(name));
    let names: BTreeSet<&str> = names.collect();
    let begun = std::time::Instant::now();
    loop {
        let seen: BTreeSet<String> =
            events(&broker).iter().map(|event| event["event"].as_str().unwrap_or_default().to_owned()).collect();
        let missing: Vec<_> = names.iter().filter(|name| !seen.contains(**name)).collect();
        if missing.is_empty() {
            let unknown: Vec<_> = seen.iter().filter(|name| !names.contains(name.as_str())).collect();
            assert!(unknown.is_empty(), "not documented: {unknown:?}");
            break;
        }
        assert!(begun.elapsed() < WAIT, "did not occur: {missing:?}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let all = events(&broker);
    for (name, fields) in &documented {
        for event in all.iter().filter(|event| event["event"] == name.as_str()) {
            for field in fields {
                assert!(!event[field.as_str()].is_null(), "{name} has no `{field}`: {event}");
            }
        }
    }
    // No secret in any line, of any level.
    let log = broker.log();
    assert!(!log.contains(&broker.rest.token) && !log.contains("argon2id$"), "a secret is in the log");
}

/// `docs/security.md` names tests; a test that is renamed or removed must not go unnoticed there.
#[test]
fn the_tests_that_the_security_page_names_exist() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut sources = String::new();
    let mut dirs: Vec<_> = ["crates", "bin", "tests", "fuzz/fuzz_targets"].iter().map(|dir| root.join(dir)).collect();
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() && !path.ends_with("target") {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources += &std::fs::read_to_string(path).unwrap();
            }
        }
    }
    let page = include_str!("../../../docs/security.md");
    let rows = page.lines().filter(|line| line.starts_with("| ")).filter_map(|line| line.rsplit('|').nth(1));
    let is_test = |name: &&str| name.contains('_') && name.bytes().all(|b| b == b'_' || b.is_ascii_alphanumeric());
    let named: Vec<&str> = rows.flat_map(|cell| cell.split('`').skip(1).step_by(2)).filter(is_test).collect();
    let named: Vec<&str> = named.into_iter().filter(|name| !name.starts_with("ciqadamq_")).collect();
    assert!(named.len() > 40, "{}", named.len());
    let targets = root.join("fuzz/fuzz_targets");
    let missing: Vec<_> = named
        .iter()
        .filter(|name| !sources.contains(&format!("fn {name}(")) && !targets.join(format!("{name}.rs")).is_file())
        .collect();
    assert!(missing.is_empty(), "no such tests: {missing:?}");
}
