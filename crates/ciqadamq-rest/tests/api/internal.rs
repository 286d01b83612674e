//! Export and replication.

use ciqadamq_core::UserDirectory;
use reqwest::Method;
use serde_json::json;

use crate::support::start;

#[tokio::test(flavor = "multi_thread")]
async fn an_export_can_be_put_back_record_by_record() {
    let from = start().await;
    from.create("a", "u1").await;
    from.create("+b&", "u2").await;
    from.patch("/api/v1/users/a", &json!({"admin": true, "disabled": true})).await;
    let (status, export) = from.get("/internal/users-full").await;
    assert_eq!(status, 200);
    let record = json!({"username": "a", "userid": "u1", "password_hash": "$fake$6", "superuser": false, "admin": true, "disabled": true});
    assert_eq!(export["users"][1], record);

    let to = start().await;
    for user in export["users"].as_array().unwrap() {
        assert_eq!(to.post("/internal/replicate", &json!({"op": "upsert", "user": user})).await.0, 204);
    }
    assert_eq!(to.get("/internal/users-full").await.1, export);
    // Again: it replaces.
    let mut user = export["users"][1].clone();
    user["userid"] = json!("u9");
    assert_eq!(to.post("/internal/replicate", &json!({"op": "upsert", "user": user})).await.0, 204);
    assert_eq!(to.get("/api/v1/users/a").await.1["userid"], "u9");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replicated_deletion_may_come_twice() {
    let api = start().await;
    api.create("a", "u1").await;
    for _ in 0..2 {
        assert_eq!(api.post("/internal/replicate", &json!({"op": "delete", "username": "a"})).await.0, 204);
    }
    assert_eq!(api.directory.status().users, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_cannot_be_used_is_refused_by_field() {
    let api = start().await;
    let user = || json!({"username": "a", "userid": "u", "password_hash": "$fake$1"});
    let with = |key: &str, value| {
        let mut user = user();
        user[key] = value;
        json!({"op": "upsert", "user": user})
    };
    for (body, field) in [
        (json!({}), "op"),
        (json!({"op": "x"}), "op"),
        (json!({"op": "upsert"}), "user"),
        (json!({"op": "delete"}), "username"),
        (json!({"op": "upsert", "user": []}), "user"),
        (json!({"op": "delete", "username": "a/b"}), "username"),
        (json!({"op": "delete", "username": "a", "user": user()}), "user"),
        (with("username", json!("a b")), "user.username"),
        (with("userid", json!(1)), "user.userid"),
        (with("password_hash", json!("plain")), "user.password_hash"),
        (with("password_hash", json!(null)), "user.password_hash"),
        (with("password", json!("plain")), "user.password"),
        (with("admin", json!(null)), "user.admin"),
    ] {
        let (status, said) = api.post("/internal/replicate", &body).await;
        assert_eq!((status, &said["field"]), (400, &json!(field)), "{body}: {said}");
    }
    assert_eq!(api.directory.status().users, 0);
    assert_eq!(api.send(Method::PUT, "/internal/replicate", &json!({})).await.0, 405);
}
