//! The REST API used as it is meant.

use std::fs;

use ciqadamq_tests::{Account, Broker, BrokerOptions, Link, Version, command, random_token, request};
use serde_json::{Value, json};

#[test]
fn a_user_is_created_read_changed_listed_and_deleted() {
    let broker = Broker::start_default();
    let created = broker.rest.post("/api/v1/users", &json!({"username": "t1", "userid": "u1", "password": "p"}));
    assert_eq!(created.status, 201);
    let shown = json!({"username": "t1", "userid": "u1", "superuser": false, "admin": false, "disabled": false});
    assert_eq!(broker.rest.get("/api/v1/users/t1").json(), shown);
    assert!(!created.text().contains("password"));
    let again = broker.rest.post("/api/v1/users", &json!({"username": "t1", "userid": "u2", "password": "q"}));
    assert_eq!(again.status, 409);

    let changed = broker.rest.patch("/api/v1/users/t1", &json!({"admin": true, "userid": "u2"}));
    assert_eq!(changed.status, 200);
    let shown = broker.rest.get("/api/v1/users/t1").json();
    assert_eq!((&shown["admin"], &shown["userid"]), (&json!(true), &json!("u2")));
    assert_eq!(broker.rest.patch("/api/v1/users/nobody", &json!({"admin": true})).status, 404);
    assert_eq!(broker.rest.patch("/api/v1/users/t1", &json!({"username": "t2"})).status, 400);

    assert_eq!(broker.rest.delete("/api/v1/users/t1").status, 204);
    assert_eq!(broker.rest.delete("/api/v1/users/t1").status, 404);
    assert_eq!(broker.rest.get("/api/v1/users/t1").status, 404);
}

#[test]
fn the_listing_is_sorted_paged_and_narrowed() {
    let broker = Broker::start_default();
    for i in (0..25).rev() {
        broker.create(&format!("name{i:02}"), &format!("id{}", i % 2), false, false);
    }
    let names = |body: &Value| -> Vec<String> {
        body["users"].as_array().unwrap().iter().map(|user| user["username"].as_str().unwrap().to_owned()).collect()
    };
    let all = names(&broker.rest.get("/api/v1/users").json());
    assert_eq!(all, (0..25).map(|i| format!("name{i:02}")).collect::<Vec<_>>());
    let mut paged = Vec::new();
    let mut path = "/api/v1/users?limit=10".to_owned();
    loop {
        let page = broker.rest.get(&path).json();
        paged.extend(names(&page));
        match page["next"].as_str() {
            Some(next) => path = format!("/api/v1/users?limit=10&after={next}"),
            None => break,
        }
    }
    assert_eq!(paged, all);
    let narrowed = names(&broker.rest.get("/api/v1/users?userid=id1").json());
    assert_eq!(narrowed.len(), 12);
    assert_eq!(names(&broker.rest.get("/api/v1/users?userid=nobody").json()), Vec::<String>::new());
}

#[test]
fn sessions_are_listed_by_user_and_say_what_they_hold() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let (ua, ub) = (broker.user("ua"), broker.user("ub"));
    let (mut phone, _) = broker.connect(&ua.connect(Version::V5, "phone").persistent(600)).accepted();
    phone.subscribe(&["chat/ua/#", "fanout/#"]);
    phone.disconnect();
    broker.rest.wait_offline("phone");
    watcher.publish("chat/ua/x", "1");
    watcher.publish("chat/ua/x", "2");
    let browser = ciqadamq_tests::Connect::new(Version::V311, Link::ws(), "browser").login(&ua.username, &ua.password);
    let (_browser, _) = broker.connect(&browser).accepted();
    let _other = broker.client(&ub, Version::V5, "other");

    for path in ["/api/v1/sessions?userid=ua", "/api/v1/sessions?username=ua-token"] {
        let body = broker.rest.get(path).json();
        let sessions = body["sessions"].as_array().unwrap();
        let ids: Vec<&str> = sessions.iter().map(|session| session["clientid"].as_str().unwrap()).collect();
        assert_eq!(ids, ["browser", "phone"]);
        let phone = &sessions[1];
        assert_eq!(
            (&phone["online"], &phone["queued"], &phone["subscriptions"]),
            (&json!(false), &json!(2), &json!(2))
        );
        assert_eq!((&phone["protocol"], &phone["userid"]), (&json!(5), &json!("ua")));
        assert_eq!((&sessions[0]["online"], &sessions[0]["protocol"]), (&json!(true), &json!(4)));
    }
}

#[test]
fn an_access_check_says_what_the_broker_would_do_and_by_which_rule() {
    let broker = Broker::start_default();
    broker.user("ua");
    broker.admin("ad");
    broker.superuser("root");
    for (username, action, topic, allowed, rule) in [
        ("ua-token", "subscribe", "chat/ua/#", true, "own_topics"),
        ("ua-token", "subscribe", "$share/g/chat/ua/#", true, "own_topics"),
        ("ua-token", "subscribe", "fanout/x", true, "fanout_prefix"),
        ("ua-token", "subscribe", "adminfanout/x", false, "not_granted"),
        ("ad-token", "subscribe", "adminfanout/x", true, "admin_prefix"),
        ("ua-token", "subscribe", "#", false, "not_granted"),
        ("ua-token", "publish", "chatsync", true, "publish_topic"),
        ("ua-token", "publish", "chat/ua/x", false, "not_granted"),
        ("root", "publish", "chat/ua/x", true, "superuser"),
        ("root", "publish", "chat/+/x", false, "invalid_topic"),
    ] {
        let body = json!({"username": username, "action": action, "topic": topic});
        let response = broker.rest.post("/api/v1/acl/check", &body);
        assert_eq!(response.status, 200, "{}", response.text());
        let verdict = response.json();
        assert_eq!((&verdict["allowed"], &verdict["rule"]), (&json!(allowed), &json!(rule)), "{body}");
    }
    let body = json!({"username": "nobody", "action": "publish", "topic": "x"});
    assert_eq!(broker.rest.post("/api/v1/acl/check", &body).status, 404);
    let body = json!({"username": "root", "action": "dance", "topic": "x"});
    assert_eq!(broker.rest.post("/api/v1/acl/check", &body).status, 400);
}

#[test]
fn without_a_configured_token_one_is_made_for_the_owner_alone() {
    let mut broker = Broker::start(BrokerOptions::new().own_token());
    let path = broker.dir().join("data/api-token");
    let token = fs::read_to_string(&path).unwrap();
    assert!(token.trim().len() >= 32);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(broker.rest.get("/api/v1/users").status, 200);
    let log = broker.log();
    assert!(log.contains("api-token") && !log.contains(token.trim()), "the log names the file, never the token");
    broker.restart();
    assert_eq!(fs::read_to_string(&path).unwrap(), token);
    assert_eq!(broker.rest.get("/api/v1/users").status, 200);
}

#[test]
fn the_environment_overrides_the_token_of_the_file() {
    let token = random_token();
    let broker = Broker::start(BrokerOptions::new().env("API_TOKEN", &token));
    assert_eq!(broker.rest.get("/api/v1/users").status, 401);
    let rest = ciqadamq_tests::Rest { token, ..broker.rest.clone() };
    assert_eq!(rest.get("/api/v1/users").status, 200);
}

#[test]
fn users_move_with_their_passwords_through_the_internal_api() {
    let from = Broker::start_default();
    let to = Broker::start(BrokerOptions::new().set("api.repl_token", "a-token-of-its-own"));
    let accounts = [from.user("ua"), from.admin("ad"), from.superuser("root")];
    let export = from.rest.get("/internal/users-full").json();
    let users = export["users"].as_array().unwrap();
    assert_eq!(users.len(), 3);
    assert!(users.iter().all(|user| user["password_hash"].as_str().unwrap().starts_with("$argon2id$")));

    let repl = ciqadamq_tests::Rest { token: "a-token-of-its-own".into(), ..to.rest.clone() };
    for user in users {
        let body = json!({"op": "upsert", "user": user});
        assert!(matches!(to.rest.post("/internal/replicate", &body).status, 401 | 403));
        let response = repl.post("/internal/replicate", &body);
        assert!((200..300).contains(&response.status), "{}", response.text());
    }
    for account in &accounts {
        to.client(account, Version::V5, &format!("moved-{}", account.userid)).disconnect();
    }
    assert_eq!(to.rest.get("/api/v1/users").json(), from.rest.get("/api/v1/users").json());
    repl.post("/internal/replicate", &json!({"op": "delete", "username": "ua-token"}));
    assert!(!to.connect(&accounts[0].connect(Version::V5, "moved-ua")).is_accepted());
    let bad = json!({"op": "upsert", "user": {"username": "x", "userid": "x", "password_hash": "plain"}});
    assert_eq!(repl.post("/internal/replicate", &bad).status, 400);
}

#[test]
fn the_api_describes_itself() {
    let broker = Broker::start_default();
    let openapi = broker.rest.get("/api/v1/openapi.json").json();
    assert!(openapi["openapi"].as_str().unwrap().starts_with("3."));
    for (path, methods) in [
        ("/api/v1/users", vec!["get", "post"]),
        ("/api/v1/users/{username}", vec!["get", "patch", "delete"]),
        ("/api/v1/sessions", vec!["get"]),
        ("/api/v1/sessions/{clientid}", vec!["delete"]),
        ("/api/v1/acl/check", vec!["post"]),
        ("/api/v1/cluster", vec!["get"]),
        ("/api/v1/cluster/members", vec!["post"]),
        ("/ready", vec!["get"]),
        ("/metrics", vec!["get"]),
    ] {
        for method in methods {
            assert!(openapi["paths"][path][method].is_object(), "{method} {path}");
        }
    }
    let docs = broker.rest.get("/docs");
    assert_eq!(docs.status, 200);
    assert!(docs.header("content-type").unwrap().starts_with("text/html"));
    assert!(!docs.text().contains("https://"), "the page loads nothing from elsewhere");
}

#[test]
fn the_cluster_view_shows_this_node_and_its_plugins() {
    let broker = Broker::start_default();
    let view = broker.rest.get("/api/v1/cluster").json();
    let node = &view["nodes"][0];
    assert_eq!(node["ready"], true);
    let active = |name: &str| {
        node["plugins"].as_array().unwrap().iter().any(|plugin| plugin["name"] == name && plugin["active"] == true)
    };
    for name in
        ["ciqadamq-user-store", "ciqadamq-auth", "ciqadamq-topic-acl", "ciqadamq-rest", "ciqadamq-session-store"]
    {
        assert!(active(name), "{name}: {view}");
    }
    assert!(!active("rmqtt-http-api") && !active("rmqtt-retainer"));
}

#[test]
fn health_and_ready_need_no_token() {
    let broker = Broker::start_default();
    for path in ["/health", "/ready"] {
        let response = request(broker.rest.addr, "GET", path, &[], None).unwrap();
        assert_eq!(response.status, 200, "{path}");
        assert!(response.json().is_object());
    }
}

#[test]
fn no_secret_is_logged() {
    let mut broker =
        Broker::start(BrokerOptions::new().set("log", "trace").env("AUTH_PEPPER", "a pepper of some length"));
    let ua: Account = broker.user("ua");
    broker.client(&ua, Version::V5, "phone").disconnect();
    let wrong = ciqadamq_tests::Connect::new(Version::V5, Link::Tcp, "x").login(&ua.username, "the wrong password");
    broker.connect(&wrong).refused();
    broker.rest.change_user(&ua.username, &json!({"password": "the next password"}));
    broker.sigterm();
    let log = broker.log();
    for secret in [
        broker.rest.token.as_str(),
        &ua.password,
        "the wrong password",
        "the next password",
        "a pepper of some length",
        "$argon2id$v=",
    ] {
        assert!(!log.contains(secret), "{secret}");
    }
    // Nor does the program tell it when it prints its configuration.
    let config = broker.config();
    let shown = command(broker.dir())
        .args(["check-config", "--print", "--config"])
        .arg(config)
        .env("AUTH_PEPPER", "a pepper of some length")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&shown.stdout).into_owned() + &String::from_utf8_lossy(&shown.stderr);
    assert!(!text.contains(&broker.rest.token) && !text.contains("a pepper of some length"), "{text}");
}
