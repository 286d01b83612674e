//! Making, reading, changing and deleting users.

use std::sync::atomic::Ordering;

use ciqadamq_core::{HashError, UserDirectory};
use reqwest::Method;
use serde_json::json;

use crate::fakes::Writes;
use crate::support::{encode, said, start};

#[tokio::test(flavor = "multi_thread")]
async fn a_user_is_made_read_changed_and_deleted() {
    let api = start().await;
    let body = json!({"username": "t1", "userid": "u1", "password": "pw", "admin": true});
    let made = api.request(Method::POST, "/api/v1/users").json(&body).send().await.unwrap();
    assert_eq!(made.headers()["location"], "/api/v1/users/t1");
    assert_eq!(made.headers()["cache-control"], "no-store");
    let view = json!({"username": "t1", "userid": "u1", "superuser": false, "admin": true, "disabled": false});
    assert_eq!(said(made).await, (201, view.clone()));
    assert_eq!(api.get("/api/v1/users/t1").await, (200, view.clone()));
    assert_eq!(api.get("/api/v1/users").await, (200, json!({"users": [view]})));

    let (status, changed) =
        api.patch("/api/v1/users/t1", &json!({"admin": false, "userid": "u2", "disabled": true})).await;
    let view = json!({"username": "t1", "userid": "u2", "superuser": false, "admin": false, "disabled": true});
    assert_eq!((status, changed), (200, view));

    assert_eq!(api.delete("/api/v1/users/t1").await.0, 204);
    for (status, said) in [
        api.get("/api/v1/users/t1").await,
        api.delete("/api/v1/users/t1").await,
        api.patch("/api/v1/users/t1", &json!({"admin": true})).await,
    ] {
        assert_eq!((status, said), (404, json!({"error": "no such user"})));
    }
    api.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_name_that_can_be_made_can_be_read_changed_and_deleted_by_its_path() {
    let api = start().await;
    let mut names: Vec<String> =
        vec!["x".repeat(128), "{username}".into(), "a+b".into(), "<**rest>".into(), "{}".into()];
    for c in (0x21u8..=0x7e).map(char::from).filter(|c| !matches!(c, '/' | '\\' | '%' | '?' | '#')) {
        names.extend([format!("a{c}"), format!("{c}{c}{c}"), format!("a{c}2Fb")]);
    }
    for name in &names {
        api.create(name, "u1").await;
        let path = format!("/api/v1/users/{}", encode(name));
        let (status, view) = api.get(&path).await;
        assert_eq!((status, &view["username"]), (200, &json!(name)), "{name}");
        assert_eq!(api.patch(&path, &json!({"admin": true})).await.1["username"], json!(name));
    }
    assert_eq!(api.directory.status().users, names.len() as u64);
    for name in &names {
        assert_eq!(api.delete(&format!("/api/v1/users/{}", encode(name))).await.0, 204, "{name}");
    }
    assert_eq!(api.directory.status().users, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_location_leads_to_the_user() {
    let api = start().await;
    for name in ["a+b&c=d", "~.-_", "{x}|^`\"<>"] {
        let body = json!({"username": name, "userid": "u", "password": "p"});
        let made = api.request(Method::POST, "/api/v1/users").json(&body).send().await.unwrap();
        let location = made.headers()["location"].to_str().unwrap().to_owned();
        assert_eq!(api.get(&location).await.1["username"], json!(name));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_and_passwords_out_of_bounds_are_refused_by_field() {
    let api = start().await;
    let long = "x".repeat(129);
    for (field, value) in [
        ("username", json!("")),
        ("username", json!("a b")),
        ("username", json!("a/b")),
        ("username", json!("%41")),
        ("username", json!(".")),
        ("username", json!("..")),
        ("username", json!("é")),
        ("username", json!("a\u{0}")),
        ("username", json!(long)),
        ("username", json!(null)),
        ("username", json!(1)),
        ("username", json!(["a"])),
        ("userid", json!("")),
        ("userid", json!("+")),
        ("userid", json!("a/b")),
        ("userid", json!("x".repeat(65))),
        ("password", json!("")),
        ("password", json!(null)),
        ("password", json!("x".repeat(513))),
        ("password", json!({})),
        ("password", json!("é".repeat(257))),
        ("superuser", json!(null)),
        ("superuser", json!("true")),
        ("admin", json!(1)),
        ("disabled", json!(false)),
        ("nope", json!(1)),
    ] {
        let mut body = json!({"username": "t", "userid": "u", "password": "p"});
        body[field] = value.clone();
        let (status, said) = api.post("/api/v1/users", &body).await;
        assert_eq!((status, &said["field"]), (400, &json!(field)), "{value}: {said}");
        assert!(said["error"].is_string());
    }
    for absent in ["username", "userid", "password"] {
        let mut body = json!({"username": "t", "userid": "u", "password": "p"});
        body.as_object_mut().unwrap().remove(absent);
        let (status, said) = api.post("/api/v1/users", &body).await;
        assert_eq!((status, &said["field"]), (400, &json!(absent)));
    }
    assert_eq!(api.directory.status().users, 0);
    assert_eq!(api.passwords.hashed.load(Ordering::Relaxed), 0, "nothing was hashed for a bad request");
    for (i, good) in ["p".to_owned(), "x".repeat(512), "é".repeat(256), "\u{0} \n".into()].iter().enumerate() {
        let body = json!({"username": format!("t{i}"), "userid": "u", "password": good});
        assert_eq!(api.post("/api/v1/users", &body).await.0, 201);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_parallel_creations_of_one_name_one_wins() {
    let api = start().await;
    let body = json!({"username": "t", "userid": "u", "password": "p"});
    let all = futures::future::join_all((0..50).map(|_| api.post("/api/v1/users", &body))).await;
    assert_eq!(all.iter().filter(|(status, _)| *status == 201).count(), 1);
    assert_eq!(all.iter().filter(|(status, _)| *status == 409).count(), 49);
    let hashed = api.passwords.hashed.load(Ordering::Relaxed);
    assert_eq!(api.post("/api/v1/users", &body).await, (409, json!({"error": "user exists", "field": "username"})));
    assert_eq!(api.passwords.hashed.load(Ordering::Relaxed), hashed, "a known name costs no hash");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_says_what_it_changes() {
    let api = start().await;
    api.create("t", "u").await;
    let path = "/api/v1/users/t";
    for bad in [
        json!({}),
        json!({"password": null}),
        json!({"password": ""}),
        json!({"disabled": null}),
        json!({"username": "x"}),
        json!({"admin": "yes"}),
        json!({"userid": "a/b"}),
        json!({"revision": 1}),
        json!([]),
    ] {
        assert_eq!(api.patch(path, &bad).await.0, 400, "{bad}");
    }
    let before = api.directory.get("t").unwrap().unwrap();
    assert_eq!(api.patch(path, &json!({"password": "another"})).await.0, 200);
    let after = api.directory.get("t").unwrap().unwrap();
    assert_ne!(before.password, after.password);
    assert!(after.valid_from > before.valid_from, "older sessions are over");
    assert_eq!((before.userid.clone(), before.admin), (after.userid.clone(), after.admin));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_done_now_is_a_503_that_says_when_to_come_back() {
    let api = start().await;
    api.create("t", "u").await;
    let body = json!({"username": "new", "userid": "u", "password": "p"});
    for writes in [Writes::Busy, Writes::Unavailable] {
        *api.directory.writes.lock().unwrap() = writes;
        for (method, path, body) in [
            (Method::POST, "/api/v1/users", Some(&body)),
            (Method::DELETE, "/api/v1/users/t", None),
            (Method::PATCH, "/api/v1/users/t", Some(&json!({"admin": true}))),
        ] {
            let mut request = api.request(method, path);
            if let Some(body) = body {
                request = request.json(body);
            }
            let answer = request.send().await.unwrap();
            assert_eq!(answer.headers()["retry-after"], "1");
            let (status, said) = said(answer).await;
            assert_eq!(status, 503);
            assert!(!said.to_string().contains("/secret"), "inner reasons are for the log: {said}");
        }
    }
    *api.directory.writes.lock().unwrap() = Writes::Taken;
    for refusal in [HashError::Busy, HashError::Failed] {
        *api.passwords.refuses.lock().unwrap() = Some(refusal);
        assert_eq!(api.post("/api/v1/users", &body).await.0, 503);
    }
    *api.passwords.refuses.lock().unwrap() = None;
    api.directory.reads_fail.store(true, Ordering::Relaxed);
    for path in ["/api/v1/users", "/api/v1/users/t", "/api/v1/users?limit=1", "/internal/users-full"] {
        let (status, said) = api.get(path).await;
        assert_eq!(status, 503);
        assert!(!said.to_string().contains("/secret"), "{said}");
    }
    assert_eq!(api.directory.status().users, 1, "nothing was changed");
}
