//! Health, readiness, metrics, cluster.

use ciqadamq_core::Condition;
use serde_json::json;

use crate::support::{said, start};

#[tokio::test(flavor = "multi_thread")]
async fn ready_is_a_503_with_the_reasons_until_all_conditions_are_met() {
    let api = start().await;
    let ready = || async { said(api.client.get(api.url("/ready")).send().await.unwrap()).await };
    assert_eq!(ready().await, (200, json!({"ready": true, "reasons": {}})));
    api.health.set("users", Condition::Unmet("catching up".into()));
    api.health.set("listeners", Condition::Met);
    let expected =
        json!({"ready": false, "error": "not ready: users: catching up", "reasons": {"users": "catching up"}});
    assert_eq!(ready().await, (503, expected));
    assert_eq!(api.client.get(api.url("/health")).send().await.unwrap().status(), 200, "alive all the same");
    api.health.set("users", Condition::Met);
    assert_eq!(ready().await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_degraded_is_told_and_turns_nobody_away() {
    let api = start().await;
    api.health.set("secrets", Condition::Degraded("ciqada/api-token: vault: sealed".into()));
    let ready = said(api.client.get(api.url("/ready")).send().await.unwrap()).await;
    let reasons = json!({"secrets": "ciqada/api-token: vault: sealed"});
    assert_eq!(ready, (200, json!({"ready": true, "reasons": reasons})));
    let (_, view) = api.get("/api/v1/cluster").await;
    let node = &view["nodes"][0];
    assert_eq!(node["ready"], json!(true));
    assert_eq!(node["conditions"], json!({"secrets": "ciqada/api-token: vault: sealed"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cluster_view_shows_this_node() {
    let api = start().await;
    api.create("t", "u").await;
    api.health.set("listeners", Condition::Unmet("closed".into()));
    let (status, view) = api.get("/api/v1/cluster").await;
    assert_eq!((status, &view["node"]), (200, &json!(7)));
    let node = &view["nodes"][0];
    assert_eq!(node["api_addr"], json!(api.addr.to_string()));
    assert_eq!((&node["ready"], &node["conditions"]), (&json!(false), &json!({"listeners": "closed"})));
    assert_eq!(node["plugins"], json!([{"name": "some-plugin", "version": "1.2.3", "active": true}]));
    assert_eq!(node["users"], json!({"count": 1, "revision": 1, "bytes": 4096, "read_only": null}));
    assert!(node["version"].is_string() && node["uptime_secs"].is_u64() && node["role"] == "single");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_counted_by_route_and_never_by_path() {
    let api = start().await;
    for i in 0..3 {
        api.get(&format!("/api/v1/users/nobody{i}")).await;
        api.get(&format!("/stray/{i}")).await;
    }
    let of = |route: &str, status: u16| {
        format!("ciqadamq_rest_requests_total{{method=\"GET\",route=\"{route}\",status=\"{status}\"}}")
    };
    assert_eq!(api.metric(&of("/api/v1/users/{username}", 404)).await, Some(3.0));
    assert_eq!(api.metric(&of("unmatched", 404)).await, Some(3.0));
    assert_eq!(api.metric("ciqadamq_rest_requests_in_flight").await, Some(1.0));
    assert_eq!(api.metric("ciqadamq_rest_request_duration_seconds_count{route=\"unmatched\"}").await, Some(3.0));
    let (_, text) = api.get("/metrics").await;
    assert!(!text.as_str().unwrap().contains("nobody"));
}
