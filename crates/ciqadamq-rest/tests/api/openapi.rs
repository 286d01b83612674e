//! The document and the page.

use serde_json::json;

use crate::support::{TOKEN, start};

/// Every path of the API and its methods.
pub const PATHS: &[(&str, &[&str])] = &[
    ("/api/v1/users", &["get", "post"]),
    ("/api/v1/users/{username}", &["delete", "get", "patch"]),
    ("/api/v1/sessions", &["get"]),
    ("/api/v1/sessions/{clientid}", &["delete"]),
    ("/api/v1/acl/check", &["post"]),
    ("/api/v1/cluster", &["get"]),
    ("/api/v1/cluster/members", &["post"]),
    ("/api/v1/cluster/members/{id}", &["delete"]),
    ("/api/v1/openapi.json", &["get"]),
    ("/health", &["get"]),
    ("/ready", &["get"]),
    ("/metrics", &["get"]),
    ("/docs", &["get"]),
    ("/internal/users-full", &["get"]),
    ("/internal/replicate", &["post"]),
    ("/internal/v1/{service}", &["post"]),
];

#[tokio::test(flavor = "multi_thread")]
async fn the_document_describes_every_route_with_its_credential_and_the_error_shape() {
    let api = start().await;
    let (status, doc) = api.get("/api/v1/openapi.json").await;
    assert_eq!(status, 200);
    let described: Vec<&String> = doc["paths"].as_object().unwrap().keys().collect();
    assert_eq!(described.len(), PATHS.len(), "{described:?}");
    for (path, methods) in PATHS {
        let mut found: Vec<&str> = doc["paths"][path].as_object().unwrap().keys().map(String::as_str).collect();
        found.sort_unstable();
        assert_eq!(found, *methods, "{path}");
        for method in *methods {
            let operation = &doc["paths"][path][method];
            let security = operation["security"].to_string();
            let expected = match *path {
                "/health" | "/ready" => "null",
                "/metrics" | "/docs" => r#"[{"management_token":[]},{}]"#,
                internal if internal.starts_with("/internal") => r#"[{"replication_token":[]}]"#,
                _ => r#"[{"management_token":[]}]"#,
            };
            assert_eq!(security, expected, "{method} {path}");
            assert!(operation["summary"].is_string() && operation["operationId"].is_string(), "{method} {path}");
            let responses = operation["responses"].as_object().unwrap();
            assert!(responses.keys().any(|code| code.starts_with('2')), "{method} {path}");
            let refusal = &responses["default"]["content"]["application/json"]["schema"]["$ref"];
            assert!(refusal.as_str().is_some_and(|r| r.ends_with("ErrorBody")), "{method} {path}: {responses:?}");
            if path.contains('{') {
                assert_eq!(operation["parameters"][0]["in"], "path", "{method} {path}");
            }
        }
    }
    let scheme = &doc["components"]["securitySchemes"]["management_token"];
    assert_eq!((&scheme["type"], &scheme["scheme"]), (&json!("http"), &json!("bearer")));
    let schemas = doc["components"]["schemas"].as_object().unwrap();
    let error = schemas.iter().find(|(name, _)| name.ends_with("ErrorBody")).unwrap().1;
    assert_eq!(error["required"], json!(["error"]));
    assert!(error["properties"]["field"].is_object());
    let new = schemas.iter().find(|(name, _)| name.ends_with("CreateUser")).unwrap().1;
    assert_eq!(new["required"], json!(["username", "userid", "password"]));
    let node = schemas.iter().find(|(name, _)| name.ends_with("ClusterNode")).unwrap().1;
    assert!(node["allOf"].to_string().contains("NodeState"), "{node}");
    assert!(!node["allOf"].to_string().contains("oneOf"), "{node}");
    let said = schemas.iter().find(|(name, _)| name.ends_with("NodeState")).unwrap().1;
    assert!(said["required"].is_null() && said["properties"]["rafts"].is_object(), "all of it may be left out: {said}");
    assert_eq!(doc["paths"]["/api/v1/users"]["post"]["responses"].as_object().unwrap().keys().next().unwrap(), "201");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_needs_no_other_host_and_shows_no_data() {
    let api = start().await;
    let answer = api.client.get(api.url("/docs")).send().await.unwrap();
    let policy = answer.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.starts_with("default-src 'none'") && policy.contains("connect-src 'self'"), "{policy}");
    assert!(answer.headers()["content-type"].to_str().unwrap().starts_with("text/html"));
    let page = answer.text().await.unwrap();
    assert!(page.contains("<script>") && page.contains("openapi.json"));
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains(TOKEN));
    assert!(!page.contains("/*SCRIPT*/") && !page.contains("/*STYLE*/"));
}
