//! Who may call what.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ciqadamq_core::{LookedAgain, Secret, SecretName, SecretRefresh};
use ciqadamq_rest::{Credential, RestConfig, Tokens};
use reqwest::Method;

use crate::openapi::PATHS;
use crate::support::{Parts, TOKEN, config, eventually, exchange, said, start, start_parts, start_with};

#[tokio::test(flavor = "multi_thread")]
async fn nothing_answers_without_a_token_but_health_ready_and_the_page() {
    let api = start().await;
    let all: Vec<&str> = PATHS.iter().map(|(path, _)| *path).chain(["/nope", "/", "/api/v1/users/"]).collect();
    for path in all {
        for method in
            [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS]
        {
            let open = ["/health", "/ready", "/docs"].contains(&path);
            let answer = api.client.request(method.clone(), api.url(path)).send().await.unwrap();
            let status = answer.status().as_u16();
            let readable = method == Method::GET || method == Method::HEAD;
            let expected = if !open {
                401
            } else if readable {
                200
            } else {
                405
            };
            assert_eq!(status, expected, "{method} {path}");
            if status == 401 {
                assert_eq!(answer.headers()["www-authenticate"], "Bearer realm=\"ciqadamq\"");
                assert!(method == Method::HEAD || said(answer).await.1["error"].is_string());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_one_whole_bearer_token_in_the_header_counts() {
    let api = start().await;
    let get = |headers: String| {
        let request = format!("GET /api/v1/users HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
        async move { exchange(api.addr, request.as_bytes()).await.status }
    };
    for good in [
        format!("Authorization: Bearer {TOKEN}\r\n"),
        format!("authorization: bearer {TOKEN}\r\n"),
        format!("authorization: BEARER   {TOKEN}\r\n"),
    ] {
        assert_eq!(get(good.clone()).await, 200, "{good}");
    }
    for bad in [
        String::new(),
        format!("authorization: {TOKEN}\r\n"),
        format!("authorization: Basic {TOKEN}\r\n"),
        "authorization: Bearer\r\n".into(),
        "authorization: Bearer \r\n".into(),
        format!("authorization: Bearer {TOKEN}x\r\n"),
        format!("authorization: Bearer {}\r\n", &TOKEN[1..]),
        format!("authorization: Bearer {TOKEN} {TOKEN}\r\n"),
        format!("authorization: Bearer {TOKEN}\r\nauthorization: Bearer {TOKEN}\r\n"),
        format!("authorization: Bearer\u{e9}{TOKEN}\r\n"),
        format!("cookie: token={TOKEN}\r\n"),
    ] {
        assert_eq!(get(bad.clone()).await, 401, "{bad}");
    }
    let by_query =
        api.client.get(api.url(&format!("/api/v1/users?token={TOKEN}&access_token={TOKEN}"))).send().await.unwrap();
    assert_eq!(by_query.status(), 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn guessing_is_braked_and_the_right_token_never() {
    let api = start().await;
    let guess = || async { api.client.get(api.url("/api/v1/users")).bearer_auth("guess").send().await.unwrap() };
    for _ in 0..20 {
        let answer = guess().await;
        assert_eq!(answer.status(), 401);
        assert!(answer.headers()["www-authenticate"].to_str().unwrap().contains("invalid_token"));
    }
    let braked = guess().await;
    assert_eq!(braked.status(), 429);
    let wait: u64 = braked.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait));
    assert!(said(braked).await.1["error"].is_string());
    assert_eq!(api.get("/api/v1/users").await.0, 200, "the right token from the same address");
    assert_eq!(api.client.get(api.url("/api/v1/users")).send().await.unwrap().status(), 401, "none at all is no guess");
    assert_eq!(api.metric("ciqadamq_rest_token_refusals_total{reason=\"braked\"}").await, Some(1.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_token_works_at_once_and_the_previous_one_for_the_overlap() {
    let api = start().await;
    api.tokens.replace(Credential::Management, &Secret::new("next"), Duration::from_secs(600)).unwrap();
    let client = &api;
    let status = |token: &'static str| async move {
        client.client.get(client.url("/api/v1/users")).bearer_auth(token).send().await.unwrap().status().as_u16()
    };
    assert_eq!((status(TOKEN).await, status("next").await), (200, 200));
    api.tokens.replace(Credential::Management, &Secret::new("last"), Duration::ZERO).unwrap();
    assert_eq!((status(TOKEN).await, status("next").await, status("last").await), (401, 401, 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_internal_routes_take_the_replication_token_alone_if_there_is_one() {
    let api = start_with(config(), Some("between-nodes")).await;
    let client = &api;
    let status = |path: &'static str, token: &'static str| async move {
        client.client.get(client.url(path)).bearer_auth(token).send().await.unwrap().status().as_u16()
    };
    assert_eq!(status("/internal/users-full", "between-nodes").await, 200);
    assert_eq!(status("/internal/users-full", TOKEN).await, 401);
    assert_eq!(status("/api/v1/users", "between-nodes").await, 401);
    let api = start().await;
    assert_eq!(api.get("/internal/users-full").await.0, 200, "without one, the management token");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_and_docs_are_open_as_the_configuration_says() {
    let api = start_with(RestConfig { metrics_open: true, docs_open: false, ..config() }, None).await;
    assert_eq!(api.client.get(api.url("/metrics")).send().await.unwrap().status(), 200);
    assert_eq!(api.client.get(api.url("/docs")).send().await.unwrap().status(), 401);
    assert_eq!(api.get("/docs").await.0, 200);
}

/// A vault that has other tokens by now.
struct Vault {
    tokens: Arc<Tokens>,
    says: LookedAgain,
    asked: [AtomicUsize; 2],
}

#[async_trait]
impl SecretRefresh for Vault {
    async fn look_again(&self, name: SecretName, known: &(dyn Fn() -> bool + Send + Sync)) -> LookedAgain {
        assert!(!known(), "known tokens are no question");
        let (credential, new, count) = match name {
            SecretName::ReplToken => (Credential::Replication, "rotated-between-nodes", &self.asked[1]),
            _ => (Credential::Management, "rotated", &self.asked[0]),
        };
        count.fetch_add(1, Ordering::SeqCst);
        if self.says == LookedAgain::Asked {
            self.tokens.replace(credential, &Secret::new(new), Duration::from_secs(600)).unwrap();
        }
        self.says
    }
}

async fn with_vault(says: LookedAgain, replication: Option<&str>) -> (crate::support::Api, Arc<Vault>) {
    let parts = Parts::new(replication);
    let vault = Arc::new(Vault { tokens: parts.tokens.clone(), says, asked: Default::default() });
    (start_parts(config(), parts, Some(vault.clone())).await, vault)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_not_known_is_asked_about_before_it_is_refused() {
    let (api, vault) = with_vault(LookedAgain::Asked, Some("between-nodes")).await;
    let client = &api;
    let status = |path: &'static str, token: &'static str| async move {
        client.client.get(client.url(path)).bearer_auth(token).send().await.unwrap().status().as_u16()
    };
    let asked = || [0, 1].map(|i| vault.asked[i].load(Ordering::SeqCst));
    assert_eq!(status("/api/v1/users", TOKEN).await, 200);
    assert_eq!(status("/internal/users-full", "between-nodes").await, 200);
    assert_eq!(asked(), [0, 0], "known tokens are no question");
    assert_eq!(status("/api/v1/users", "rotated").await, 200);
    assert_eq!(status("/internal/users-full", "rotated-between-nodes").await, 200);
    assert_eq!(asked(), [1, 1]);
    assert_eq!(
        (status("/api/v1/users", TOKEN).await, status("/internal/users-full", "between-nodes").await),
        (200, 200)
    );
    assert_eq!(status("/api/v1/users", "wrong").await, 401);
    assert_eq!(asked(), [2, 1]);
    let long = "x".repeat(5000);
    let answer = api.client.get(api.url("/api/v1/users")).bearer_auth(&long).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), asked()), (401, [2, 1]), "what can be no token is no question");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_replication_token_is_asked_about_like_any_other() {
    let (api, vault) = with_vault(LookedAgain::Asked, None).await;
    let status = async |token: &str| {
        api.client.get(api.url("/internal/users-full")).bearer_auth(token).send().await.unwrap().status().as_u16()
    };
    assert_eq!(status(TOKEN).await, 200, "there is no other yet");
    assert_eq!(status("rotated-between-nodes").await, 200);
    assert_eq!(vault.asked[1].load(Ordering::SeqCst), 1);
    assert_eq!(status("rotated").await, 401, "from here on the management token is no way in");
}

/// A vault that takes its time until it is let go.
struct Slow {
    go: tokio::sync::Semaphore,
    asked: AtomicUsize,
}

#[async_trait]
impl SecretRefresh for Slow {
    async fn look_again(&self, _: SecretName, _: &(dyn Fn() -> bool + Send + Sync)) -> LookedAgain {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let _ = self.go.acquire().await;
        LookedAgain::Asked
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_address_does_not_take_all_places_of_those_who_wait() {
    let slow = Arc::new(Slow { go: tokio::sync::Semaphore::new(0), asked: AtomicUsize::new(0) });
    let api = start_parts(config(), Parts::new(None), Some(slow.clone())).await;
    let from = |address: [u8; 4]| {
        let client = reqwest::Client::builder().no_proxy().local_address(std::net::IpAddr::from(address)).build();
        let request = client.unwrap().get(api.url("/api/v1/users")).bearer_auth("guess");
        async move { request.send().await.unwrap().status().as_u16() }
    };
    let crowd: Vec<_> = (0..64).map(|_| tokio::spawn(from([127, 0, 0, 1]))).collect();
    eventually("64 wait", || async { slow.asked.load(Ordering::SeqCst) == 64 }).await;
    assert_eq!(from([127, 0, 0, 1]).await, 503, "one more of that address");
    let other = tokio::spawn(from([127, 0, 0, 2]));
    eventually("another address waits", || async { slow.asked.load(Ordering::SeqCst) == 65 }).await;
    slow.go.close();
    assert_eq!(other.await.unwrap(), 401);
    for one in crowd {
        assert!(matches!(one.await.unwrap(), 401 | 429));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn when_too_many_wait_or_the_vault_is_silent_nothing_opens() {
    let guess = |api: &crate::support::Api| api.client.get(api.url("/api/v1/users")).bearer_auth("rotated").send();
    let (api, _) = with_vault(LookedAgain::NoAnswer, None).await;
    assert_eq!(guess(&api).await.unwrap().status(), 401);
    let (api, _) = with_vault(LookedAgain::Busy, None).await;
    let answer = guess(&api).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers()["retry-after"].to_str().unwrap()), (503, "1"));
    assert_eq!(api.metric("ciqadamq_rest_token_refusals_total{reason=\"busy\"}").await, Some(1.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_turns_out_right_is_not_braked_whoever_guessed_before() {
    let (api, _) = with_vault(LookedAgain::Asked, None).await;
    for _ in 0..30 {
        api.client.get(api.url("/api/v1/users")).bearer_auth("guess").send().await.unwrap();
    }
    // Every guess made the vault say the new one; the old one is what has to be asked about now.
    api.tokens.replace(Credential::Management, &Secret::new("a"), Duration::ZERO).unwrap();
    api.tokens.replace(Credential::Management, &Secret::new("b"), Duration::ZERO).unwrap();
    let answer = api.client.get(api.url("/api/v1/users")).bearer_auth("rotated").send().await.unwrap();
    assert_eq!(answer.status(), 200);
}
