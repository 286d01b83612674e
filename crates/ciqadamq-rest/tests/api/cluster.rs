//! Calls between nodes, and members taken in and out.

use std::sync::Arc;
use std::sync::Mutex;

use async_trait::async_trait;
use ciqadamq_core::{
    ClusterPart, Condition, INTERNAL_BODY_BYTES_MAX, InternalService, MembersError, NodeId, PeerError, RaftPeer,
    RaftRole, RaftView, ServiceError,
};
use reqwest::Method;
use serde_json::json;

use crate::fakes::Peer;
use crate::support::{TOKEN, config, start, start_node, start_with};

struct Reverse;

#[async_trait]
impl InternalService for Reverse {
    async fn call(&self, mut body: Vec<u8>) -> Result<Vec<u8>, ServiceError> {
        match body.first() {
            None => Err(ServiceError::BadRequest("nothing to reverse".into())),
            Some(0) => Err(ServiceError::Unavailable("not now".into())),
            Some(_) => {
                body.reverse();
                Ok(body)
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_reaches_its_service_as_bytes_and_only_with_the_nodes_token() {
    let api = start_with(config(), Some("the-replication-token")).await;
    api.internal.offer("reverse", Arc::new(Reverse));
    let call = async |service: &str, token: &str, body: Vec<u8>| {
        let request = api.client.post(api.url(&format!("/internal/v1/{service}"))).bearer_auth(token);
        let answer = request.header("content-type", "application/octet-stream").body(body).send().await.unwrap();
        (answer.status().as_u16(), answer.bytes().await.unwrap().to_vec())
    };
    let token = "the-replication-token";
    assert_eq!(call("reverse", token, vec![1, 2, 255]).await, (200, vec![255, 2, 1]));
    assert_eq!(call("reverse", TOKEN, vec![1]).await.0, 401, "the management token is not the nodes'");
    assert_eq!(call("reverse", token, vec![]).await.0, 400);
    assert_eq!(call("reverse", token, vec![0]).await.0, 503);
    assert_eq!(call("nothing", token, vec![1]).await.0, 404);
    let large = vec![7; INTERNAL_BODY_BYTES_MAX];
    assert_eq!(call("reverse", token, large.clone()).await, (200, large.clone()));
    assert_eq!(call("reverse", token, [large, vec![7]].concat()).await.0, 413);
}

#[derive(Default)]
struct FakePart(Mutex<Vec<String>>);

#[async_trait]
impl ClusterPart for FakePart {
    fn raft(&self) -> RaftView {
        RaftView {
            role: RaftRole::Leader,
            leader: Some(7),
            term: Some(3),
            last_log_index: Some(9),
            committed_index: Some(9),
            applied_index: Some(8),
            voters: vec![7, 8],
            learners: vec![],
            problem: None,
            peers: vec![RaftPeer {
                node: 8,
                url: Some("http://n8:8090".into()),
                reachable: Some(true),
                matched_index: Some(7),
                lag: Some(2),
            }],
        }
    }

    async fn add_member(&self, node: NodeId, url: &str) -> Result<(), MembersError> {
        match node {
            8 => Err(MembersError::Refused("node 8 is a member".into())),
            9 => Err(MembersError::Unavailable("no quorum".into())),
            _ => {
                self.0.lock().unwrap().push(format!("+{node} {url}"));
                Ok(())
            }
        }
    }

    async fn remove_member(&self, node: NodeId) -> Result<(), MembersError> {
        self.0.lock().unwrap().push(format!("-{node}"));
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_are_taken_in_and_out_and_each_raft_is_shown() {
    let api = start().await;
    let path = "/api/v1/cluster/members";
    assert_eq!(api.post(path, &json!({"id": 2, "url": "http://n2:8090"})).await.0, 409, "nothing is replicated here");
    let part = Arc::new(FakePart::default());
    api.cluster.enter("users", part.clone());
    assert_eq!(api.post(path, &json!({"id": 2, "url": "http://n2:8090/"})).await.0, 200);
    assert_eq!(api.post(path, &json!({"id": 8, "url": "http://n8:8090"})).await.0, 409);
    assert_eq!(api.post(path, &json!({"id": 9, "url": "http://n9:8090"})).await.0, 503);
    for (bad, field) in [
        (json!({"id": 0, "url": "http://n"}), "id"),
        (json!({"id": "2", "url": "http://n"}), "id"),
        (json!({"id": 2.5, "url": "http://n"}), "id"),
        (json!({"id": 65536, "url": "http://n"}), "id"),
        (json!({"id": 2, "url": "n2:8090"}), "url"),
        (json!({"id": 2}), "url"),
        (json!({"id": 2, "url": "http://n", "x": 1}), "x"),
    ] {
        let (status, said) = api.post(path, &bad).await;
        assert_eq!((status, &said["field"]), (400, &json!(field)), "{bad}");
    }
    assert_eq!(api.delete(&format!("{path}/2")).await.0, 204);
    assert_eq!(api.delete(&format!("{path}/x")).await.0, 404);
    assert_eq!(api.send(Method::PUT, path, &json!({})).await.0, 405);
    assert_eq!(*part.0.lock().unwrap(), ["+2 http://n2:8090", "-2"]);

    let users = api.get("/api/v1/cluster").await.1["nodes"][0]["rafts"]["users"].clone();
    assert_eq!((&users["role"], &users["leader"], &users["term"]), (&json!("leader"), &json!(7), &json!(3)));
    assert_eq!(users["voters"], json!([7, 8]));
    assert_eq!(users["peers"][0]["lag"], json!(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_says_how_it_is_and_who_does_not_answer_is_listed_with_the_reason() {
    let (api, other) = (start().await, start_node(8).await);
    other.health.set("users", Condition::Unmet("catching up".into()));
    other.cluster.enter("users", Arc::new(FakePart::default()));
    let refused = PeerError::Refused("this node has no such service".into());
    api.peers.0.lock().unwrap().extend([
        (3, Peer::Fails(PeerError::Unreachable("connection refused".into()))),
        (4, Peer::Hangs),
        (5, Peer::Fails(refused)),
        (6, Peer::Says(b"<html>".to_vec())),
        (8, Peer::Node(other.internal.clone())),
        (9, Peer::Node(other.internal.clone())),
    ]);
    let since = std::time::Instant::now();
    let (status, view) = api.get("/api/v1/cluster").await;
    assert!(since.elapsed() < std::time::Duration::from_secs(5), "{:?}", since.elapsed());
    assert_eq!((status, &view["node"]), (200, &json!(7)));
    let nodes = view["nodes"].as_array().unwrap();
    let ids: Vec<u64> = nodes.iter().map(|node| node["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [3, 4, 5, 6, 7, 8, 9]);
    for (at, reachable, why) in [
        (0, false, "connection refused"),
        (1, false, "no answer: none within 1s"),
        (2, true, "no such service"),
        (3, true, "does not understand"),
        (6, true, "at its address answers node 8"),
    ] {
        let node = &nodes[at];
        assert_eq!(node["reachable"], json!(reachable), "{node}");
        assert!(node["error"].as_str().is_some_and(|error| error.contains(why)), "{node}");
        assert!(node["url"].is_string() && node["ready"].is_null() && node["role"].is_null(), "{node}");
    }
    let (this, eight) = (&nodes[4], &nodes[5]);
    assert_eq!((&this["reachable"], &this["error"], &this["role"]), (&json!(true), &json!(null), &json!("out")));
    assert_eq!((&eight["reachable"], &eight["error"]), (&json!(true), &json!(null)));
    assert_eq!((&eight["url"], &eight["role"]), (&json!("http://n8:8090"), &json!("single")), "it knows nobody");
    assert_eq!((&eight["ready"], &eight["conditions"]), (&json!(false), &json!({"users": "catching up"})));
    assert_eq!(eight["rafts"]["users"]["term"], json!(3));
    assert_eq!(eight["plugins"][0]["name"], json!("some-plugin"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_role_of_a_node_is_what_it_is_among_the_members_of_the_user_directory() {
    let api = start().await;
    api.cluster.enter("users", Arc::new(FakePart::default()));
    let role = async || api.get("/api/v1/cluster").await.1["nodes"].as_array().unwrap().last().unwrap()["role"].clone();
    assert_eq!(role().await, "single", "there are no others");
    api.peers.0.lock().unwrap().insert(1, Peer::Fails(PeerError::NoAddress(1)));
    assert_eq!(role().await, "leader");
}
