//! Access checks and sessions.

use serde_json::json;

use crate::support::{config, encode, start, start_with};

#[tokio::test(flavor = "multi_thread")]
async fn the_access_rule_says_what_it_would_do_and_why() {
    let api = start().await;
    api.create("t", "u1").await;
    api.create("boss", "u2").await;
    api.patch("/api/v1/users/boss", &json!({"superuser": true})).await;
    api.create("gone", "u3").await;
    api.patch("/api/v1/users/gone", &json!({"disabled": true})).await;
    for (username, action, topic, allowed, rule) in [
        ("t", "subscribe", "chat/u1/m/all", true, "own_topics"),
        ("t", "subscribe", "$share/g/chat/u1/#", true, "own_topics"),
        ("t", "subscribe", "fanout/#", true, "fanout_prefix"),
        ("t", "subscribe", "#", false, "not_granted"),
        ("t", "subscribe", "$SYS/#", false, "reserved"),
        ("t", "subscribe", "a/#/b", false, "invalid_filter"),
        ("t", "publish", "chatsync", true, "publish_topic"),
        ("t", "publish", "chat/u1/m/all", false, "not_granted"),
        ("t", "publish", "chat/+", false, "invalid_topic"),
        ("boss", "publish", "anything", true, "superuser"),
        ("gone", "publish", "chatsync", false, "user_disabled"),
    ] {
        let (status, said) =
            api.post("/api/v1/acl/check", &json!({"username": username, "action": action, "topic": topic})).await;
        assert_eq!(status, 200);
        assert_eq!(
            (&said["allowed"], &said["rule"]),
            (&json!(allowed), &json!(rule)),
            "{username} {action} {topic}: {said}"
        );
        assert!(said["reason"].is_string());
    }
    let api = &api;
    let check = |body| async move { api.post("/api/v1/acl/check", &body).await };
    let by_client = json!({"username": "t", "action": "publish", "topic": "up/dev1", "clientid": "dev1"});
    assert_eq!(check(by_client).await.1["allowed"], json!(true));
    assert_eq!(check(json!({"username": "x", "action": "publish", "topic": "a"})).await.0, 404);
    assert_eq!(check(json!({"username": "t", "action": "read", "topic": "a"})).await.1["field"], "action");
    assert_eq!(check(json!({"username": "t", "action": "publish"})).await.1["field"], "topic");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_the_access_rule_says_so() {
    let api = start_with(ciqadamq_rest::RestConfig { acl_enabled: false, ..config() }, None).await;
    api.create("t", "u1").await;
    let (_, said) = api.post("/api/v1/acl/check", &json!({"username": "t", "action": "subscribe", "topic": "#"})).await;
    assert_eq!((&said["allowed"], &said["rule"]), (&json!(true), &json!("acl_disabled")));
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_listed_page_by_page_and_narrowed() {
    let api = start().await;
    for (client, user, id) in [("c1", "a", "ua"), ("c2", "a", "ua"), ("c3", "b", "ua"), ("c4", "d", "ud")] {
        api.sessions.add(client, user, id);
    }
    let (status, all) = api.get("/api/v1/sessions").await;
    assert_eq!((status, all["sessions"].as_array().unwrap().len()), (200, 4));
    assert!(all.get("next").is_none());
    assert_eq!(all["sessions"][0]["address"], "192.0.2.1:5000");
    let (_, page) = api.get("/api/v1/sessions?limit=3").await;
    assert_eq!((page["sessions"].as_array().unwrap().len(), &page["next"]), (3, &json!("c3")));
    let (_, rest) = api.get("/api/v1/sessions?limit=3&after=c3").await;
    assert_eq!(rest["sessions"][0]["clientid"], "c4");
    assert_eq!(api.get("/api/v1/sessions?username=a").await.1["sessions"].as_array().unwrap().len(), 2);
    assert_eq!(api.get("/api/v1/sessions?userid=ua").await.1["sessions"].as_array().unwrap().len(), 3);
    assert_eq!(api.get("/api/v1/sessions?clientid=c1").await.0, 400);
    assert_eq!(api.get("/api/v1/sessions?limit=0").await.1["field"], "limit");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_any_client_id_can_be_ended_once() {
    let api = start().await;
    for client in ["dev1", "chat/ua", "#", "+", "%c", "a b", "é", "{clientid}", "a%2Fb", "?x=1"] {
        api.sessions.add(client, "a", "ua");
        let path = format!("/api/v1/sessions/{}", encode(client));
        assert_eq!(api.delete(&path).await.0, 204, "{client}");
        assert_eq!(api.delete(&path).await, (404, json!({"error": "no such session"})), "{client}");
    }
}
