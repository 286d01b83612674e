//! REST as clients misuse it: never a 500, never a hang, always JSON.

use std::io::Write as _;
use std::net::TcpStream;
use std::thread;

use ciqadamq_tests::{Broker, Response, Version, exchange, request};
use serde_json::json;

#[track_caller]
fn is_refused(response: &Response, allowed: &[u16]) {
    assert!(allowed.contains(&response.status), "{} {}", response.status, response.text());
    assert!(response.header("content-type").is_some_and(|value| value.starts_with("application/json")));
    let body = response.json();
    assert!(body["error"].as_str().is_some_and(|error| !error.is_empty()), "{body}");
}

#[test]
fn every_name_that_may_be_created_can_be_read_and_deleted() {
    let broker = Broker::start_default();
    let longest = "~".repeat(128);
    for name in ["a", "+", "a+b", ".*", "{x}", "a&b=c", "~!@$^*()_-=[]{}|;:'\"<>,.", "...", "a;b", longest.as_str()] {
        let body = json!({"username": name, "userid": "u", "password": "p"});
        let created = broker.rest.post("/api/v1/users", &body);
        assert_eq!(created.status, 201, "{name}: {}", created.text());
        let everything: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let path = format!("/api/v1/users/{everything}");
        assert_eq!(broker.rest.get(&path).json()["username"], name);
        assert_eq!(broker.rest.patch(&path, &json!({"admin": true})).status, 200);
        assert_eq!(broker.rest.post("/api/v1/users", &body).status, 409);
        assert_eq!(broker.rest.delete(&path).status, 204);
        assert_eq!(broker.rest.delete(&path).status, 404);
    }
}

#[test]
fn bodies_that_are_no_user_are_refused_in_json() {
    let broker = Broker::start_default();
    let bearer = format!("Bearer {}", broker.rest.token);
    let post = |content_type: &str, body: &[u8]| {
        let headers = [("Authorization", bearer.as_str()), ("Content-Type", content_type)];
        request(broker.rest.addr, "POST", "/api/v1/users", &headers, Some(body)).unwrap()
    };
    let good = br#"{"username":"a","userid":"a","password":"p"}"#;
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    let deep_member = format!(r#"{{"username":{}"#, "{\"a\":".repeat(50_000));
    let bodies: Vec<&[u8]> = vec![
        b"",
        b" ",
        b"{",
        b"[]",
        b"null",
        b"1",
        b"\"text\"",
        b"{}",
        br#"{"username":1}"#,
        br#"{"username":"a","username":"b","userid":"a","password":"p"}"#,
        br#"{"username":"a","userid":"a","password":"p","role":"x"}"#,
        br#"{"username":"a","userid":"a","password":"p","superuser":"true"}"#,
        br#"{"username":"a","userid":"a","password":"p"} trailing"#,
        b"\xef\xbb\xbf{\"username\":\"a\",\"userid\":\"a\",\"password\":\"p\"}",
        b"{\"username\":\"a\xff\",\"userid\":\"a\",\"password\":\"p\"}",
        br#"{"username":"a","userid":"a","password":"\ud800"}"#,
        br#"{"username":"a\u0000","userid":"a","password":"p"}"#,
        &deep,
        deep_member.as_bytes(),
    ];
    for body in bodies {
        is_refused(&post("application/json", body), &[400, 413]);
    }
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x", ""] {
        is_refused(&post(content_type, good), &[415]);
    }
    assert_eq!(broker.rest.get("/api/v1/users").json(), json!({"users": []}));
    assert_eq!(post("application/json; charset=utf-8", good).status, 201);
}

#[test]
fn a_body_that_is_too_large_is_not_read() {
    let broker = Broker::start_default();
    let bearer = format!("Bearer {}", broker.rest.token);
    let large = vec![b' '; 10 << 20];
    let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
    let response = request(broker.rest.addr, "POST", "/api/v1/users", &headers, Some(&large)).unwrap();
    is_refused(&response, &[413]);
    // 1 GB announced, hardly anything sent: answered without waiting for it.
    let head = format!(
        "POST /api/v1/users HTTP/1.1\r\nHost: x\r\nAuthorization: {bearer}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{{",
        1 << 30
    );
    is_refused(&exchange(broker.rest.addr, &[head.as_bytes()]).unwrap(), &[413]);
    // Without a length: chunk after chunk.
    let head = format!(
        "POST /api/v1/users HTTP/1.1\r\nHost: x\r\nAuthorization: {bearer}\r\nContent-Type: application/json\r\n\
         Transfer-Encoding: chunked\r\n\r\n"
    );
    let chunk = [b"10000\r\n".as_slice(), &vec![b' '; 0x10000], b"\r\n"].concat();
    let parts: Vec<&[u8]> =
        std::iter::once(head.as_bytes()).chain(std::iter::repeat_n(chunk.as_slice(), 160)).collect();
    is_refused(&exchange(broker.rest.addr, &parts).unwrap(), &[413]);
}

#[test]
fn without_the_token_nothing_is_read_and_nothing_told() {
    let broker = Broker::start_default();
    let ua = broker.user("ua");
    let bearer = format!("Bearer {}", broker.rest.token);
    let almost = format!("{bearer}x");
    let lower = format!("Basic {}", broker.rest.token);
    for (method, path) in [
        ("GET", "/api/v1/users"),
        ("POST", "/api/v1/users"),
        ("GET", "/api/v1/users/ua-token"),
        ("GET", "/api/v1/users/nobody"),
        ("PATCH", "/api/v1/users/ua-token"),
        ("DELETE", "/api/v1/users/ua-token"),
        ("GET", "/api/v1/sessions"),
        ("DELETE", "/api/v1/sessions/x"),
        ("POST", "/api/v1/acl/check"),
        ("GET", "/api/v1/cluster"),
        ("POST", "/api/v1/cluster/members"),
        ("DELETE", "/api/v1/cluster/members/2"),
        ("POST", "/internal/v1/users"),
        ("GET", "/internal/users-full"),
        ("POST", "/internal/replicate"),
    ] {
        for token in
            [None, Some(""), Some("Bearer"), Some("Bearer "), Some("Bearer wrong"), Some(&*almost), Some(&*lower)]
        {
            let mut headers = vec![("Content-Type", "application/json")];
            headers.extend(token.map(|token| ("Authorization", token)));
            let body: Option<&[u8]> = (method != "GET").then_some(b"{}");
            let response = request(broker.rest.addr, method, path, &headers, body).unwrap();
            // After too many wrong ones it brakes, which tells nothing either.
            is_refused(&response, &[401, 429]);
            assert!(!response.text().contains("ua-token"));
        }
    }
    for path in ["/health", "/ready"] {
        assert_eq!(request(broker.rest.addr, "GET", path, &[], None).unwrap().status, 200);
    }
    broker.client(&ua, Version::V5, "still").disconnect();
}

#[test]
fn many_large_bodies_without_a_token_cost_no_memory() {
    let broker = Broker::start_default();
    let before = broker.resident_kb();
    let head = format!(
        "POST /api/v1/users HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        10 << 20
    );
    let chunk = vec![b' '; 256 << 10];
    thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| {
                for _ in 0..4 {
                    let Ok(mut socket) = TcpStream::connect(broker.rest.addr) else { continue };
                    let sent = socket.write_all(head.as_bytes());
                    // It closes as soon as it sees that there is no token.
                    sent.and_then(|()| (0..40).try_for_each(|_| socket.write_all(&chunk))).ok();
                }
            });
        }
    });
    let after = broker.resident_kb();
    if let (Some(before), Some(after)) = (before, after) {
        assert!(after < before + 64 * 1024, "{before} KB grew to {after} KB");
    }
    assert_eq!(broker.rest.get("/health").status, 200);
}

#[test]
fn of_many_creations_of_one_name_one_wins_and_its_password_works() {
    let broker = Broker::start_default();
    let results: Vec<(u16, String)> = thread::scope(|scope| {
        let handles: Vec<_> = (0..50)
            .map(|n| {
                let rest = &broker.rest;
                scope.spawn(move || {
                    let password = format!("password {n}");
                    let body = json!({"username": "one", "userid": "one", "password": password});
                    (rest.post("/api/v1/users", &body).status, password)
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    });
    let winners: Vec<&String> = results.iter().filter(|(status, _)| *status == 201).map(|(_, p)| p).collect();
    assert_eq!(winners.len(), 1, "{results:?}");
    assert_eq!(results.iter().filter(|(status, _)| *status == 409).count(), 49, "{results:?}");
    let account =
        ciqadamq_tests::Account { username: "one".into(), userid: "one".into(), password: winners[0].clone() };
    broker.client(&account, Version::V5, "c").disconnect();
}

#[test]
fn a_created_user_is_there_at_once_and_a_deleted_one_is_not() {
    let broker = Broker::start_default();
    for i in 0..200 {
        let name = format!("user{i}");
        let body = json!({"username": name, "userid": name, "password": "p"});
        assert_eq!(broker.rest.post("/api/v1/users", &body).status, 201);
        assert_eq!(broker.rest.get(&format!("/api/v1/users/{name}")).status, 200);
        if i % 2 == 0 {
            assert_eq!(broker.rest.delete(&format!("/api/v1/users/{name}")).status, 204);
            assert_eq!(broker.rest.get(&format!("/api/v1/users/{name}")).status, 404);
        }
    }
}

#[test]
fn paths_methods_and_queries_that_do_not_exist_are_refused_in_json() {
    let broker = Broker::start_default();
    for path in ["/", "/api", "/api/v1", "/api/v2/users", "/api/v1/users/", "/api/v1/users/a/b", "/nothing"] {
        is_refused(&broker.rest.get(path), &[404]);
    }
    for path in ["/api/v1/users/%ff", "/api/v1/users/a%2Fb", "/api/v1/users/%00", "/api/v1/users/%"] {
        is_refused(&broker.rest.get(path), &[400, 404]);
    }
    for path in [
        "/api/v1/users?limit=0",
        "/api/v1/users?limit=x",
        "/api/v1/users?limit=-1",
        "/api/v1/users?limit=999999999999999999999",
        "/api/v1/users?lmit=1",
        "/api/v1/sessions?limit=0",
    ] {
        is_refused(&broker.rest.get(path), &[400]);
    }
    for (method, path) in [("PUT", "/api/v1/users"), ("POST", "/health"), ("TRACE", "/api/v1/users"), ("FOO", "/ready")]
    {
        is_refused(&broker.rest.call(method, path, None), &[405]);
    }
}
