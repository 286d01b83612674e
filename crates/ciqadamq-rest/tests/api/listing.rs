//! Lists of users.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::support::{encode, start};

fn names(said: &Value) -> Vec<&str> {
    said["users"].as_array().unwrap().iter().map(|u| u["username"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_limit_all_users_come_sorted_and_there_is_no_next() {
    let api = start().await;
    assert_eq!(api.get("/api/v1/users").await, (200, json!({"users": []})));
    for count in [1, 500, 501, 1234] {
        api.directory.fill(count);
        let (status, said) = api.get("/api/v1/users").await;
        assert_eq!(status, 200);
        let names = names(&said);
        assert_eq!(names.len(), count);
        assert!(names.is_sorted() && said.get("next").is_none());
        let (_, full) = api.get("/internal/users-full").await;
        assert_eq!(full["users"].as_array().unwrap().len(), count);
    }
    let (_, rest) = api.get("/api/v1/users?after=user0000600").await;
    assert_eq!(names(&rest).len(), 1234 - 601);
    let (_, some) = api.get("/api/v1/users?userid=id1").await;
    assert_eq!(names(&some).len(), 411);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_follow_each_other_without_gap_or_repetition() {
    let api = start().await;
    api.directory.fill(10);
    api.create("+first&", "id1").await;
    let (mut seen, mut path) = (Vec::new(), "/api/v1/users?limit=3".to_owned());
    loop {
        let (status, page) = api.get(&path).await;
        assert_eq!(status, 200);
        seen.extend(names(&page).into_iter().map(str::to_owned));
        match page["next"].as_str() {
            Some(next) => path = format!("/api/v1/users?limit=3&after={}", encode(next)),
            None => break,
        }
    }
    assert!(seen.len() == 11 && seen.is_sorted(), "{seen:?}");
    let (_, exact) = api.get("/api/v1/users?limit=11").await;
    assert!(exact.get("next").is_none(), "there is no more");
    let (_, narrowed) = api.get("/api/v1/users?limit=2&userid=id1").await;
    assert_eq!(names(&narrowed), ["+first&", "user0000001"]);
    assert_eq!(narrowed["next"], "user0000001");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_that_is_not_understood_is_refused_by_field() {
    let api = start().await;
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("limit=", "limit"),
        ("limit=1&limit=2", "limit"),
        ("userid=a%2Fb", "userid"),
        ("userid=", "userid"),
        ("userid=%ff", "userid"),
        ("limt=5", "limt"),
        ("token=x", "token"),
    ] {
        let (status, said) = api.get(&format!("/api/v1/users?{query}")).await;
        assert_eq!((status, &said["field"]), (400, &json!(field)), "{query}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_breaks_off_is_not_taken_for_a_whole_one() {
    let api = start().await;
    api.directory.fill(1200);
    api.directory.pages_left.store(2, Ordering::Relaxed);
    let answer = api.request(reqwest::Method::GET, "/api/v1/users").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.bytes().await.is_err(), "the body has no end");
}
