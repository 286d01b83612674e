//! The API described by its own code, and a page to read and try it.
//!
//! The page is static and shows no data; its script asks for the token, keeps it in memory alone, and fetches
//! `openapi.json` with it. Everything is in the page: it works without the internet, and its Content-Security-Policy
//! lets it talk to this node and nobody else.

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use salvo::http::Response;
use salvo::http::header::{CONTENT_SECURITY_POLICY, HeaderValue};
use salvo::oapi::security::{Http, HttpAuthScheme, SecurityScheme};
use salvo::oapi::{Info, License, OpenApi, SecurityRequirement, endpoint};
use salvo::{Depot, Router};
use sha2::{Digest, Sha256};

use crate::app::Call;
use crate::error::ApiError;
use crate::reply::{Answer, Reply};
use crate::routes::{Guard, ROUTES};

const MANAGEMENT: &str = "management_token";
const REPLICATION: &str = "replication_token";

const SCRIPT: &str = include_str!("docs/page.js");
const STYLE: &str = include_str!("docs/page.css");

static PAGE: LazyLock<String> =
    LazyLock::new(|| include_str!("docs/page.html").replace("/*STYLE*/", STYLE).replace("/*SCRIPT*/", SCRIPT));

static POLICY: LazyLock<String> = LazyLock::new(|| {
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE)
    )
});

/// The OpenAPI document of `router`, as JSON.
pub(crate) fn openapi(router: &Router, version: &str) -> serde_json::Result<String> {
    let scheme = |description: &str| SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer).description(description));
    let info = Info::new("ciqadamq", version)
        .description("Users, sessions and state of a ciqadamq broker.")
        .license(License::new("MIT OR Apache-2.0"));
    let mut document = OpenApi::with_info(info)
        .add_security_scheme(MANAGEMENT, scheme("the management token"))
        .add_security_scheme(REPLICATION, scheme("the replication token if there is one, else the management token"))
        .merge_router(router);
    for route in ROUTES {
        let security = match route.guard {
            Guard::Open => continue,
            Guard::Replication => REPLICATION,
            Guard::Management | Guard::Metrics | Guard::Docs => MANAGEMENT,
        };
        if let Some(item) = document.paths.get_mut(route.path) {
            for (_, operation) in item.operations.iter_mut() {
                operation.securities = std::iter::once(SecurityRequirement::new(security, [] as [&str; 0])).collect();
                if matches!(route.guard, Guard::Metrics | Guard::Docs) {
                    // The empty requirement: may be open, as the configuration says.
                    operation.securities.extend([SecurityRequirement::default()]);
                }
            }
        }
    }
    document.to_json()
}

/// This document
#[endpoint(
    operation_id = "show_openapi", tags("docs"),
    responses((status_code = 200, description = "OpenAPI 3.1", content_type = "application/json", body = serde_json::Value))
)]
pub(crate) async fn show_openapi(depot: &mut Depot) -> Answer {
    Ok(Reply::bytes("application/json", Call::of(depot)?.app.openapi.clone()))
}

/// A page to read and try the API
#[endpoint(
    operation_id = "show_docs", tags("docs"),
    responses((status_code = 200, description = "the page", content_type = "text/html", body = String))
)]
pub(crate) async fn show_docs(res: &mut Response) -> Answer {
    let policy = HeaderValue::from_str(&POLICY).map_err(|_| ApiError::internal("the page's policy is no header"))?;
    res.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    Ok(Reply::bytes("text/html; charset=utf-8", PAGE.as_str()))
}
