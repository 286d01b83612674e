//! One request to a vault: an endpoint of `vaultrs`, sent within our bounds.

use std::sync::Arc;

use async_trait::async_trait;
use ciqadamq_core::Secret;
use http::{HeaderName, HeaderValue, Uri};
use parking_lot::Mutex;
use percent_encoding::utf8_percent_encode;
use rustify::client::Client;
use rustify::endpoint::{Endpoint, MiddleWare};
use rustify::errors::ClientError;

use super::config::VaultConfig;
use crate::error::ReadError;
use crate::http::{Answer, Http, SetupError, UNRESERVED, base, parse_address};

const TOKEN: HeaderName = HeaderName::from_static("x-vault-token");
const NAMESPACE: HeaderName = HeaderName::from_static("x-vault-namespace");
/// Vault's guard against requests that somebody else made a browser or a server send.
const REQUEST: HeaderName = HeaderName::from_static("x-vault-request");

/// The vault's API.
pub(super) struct Api {
    pub(super) base: String,
    http: Http,
    namespace: Option<HeaderValue>,
}

impl Api {
    pub(super) fn new(config: &VaultConfig) -> Result<Self, SetupError> {
        let namespace = config.namespace.as_deref().map(HeaderValue::from_str).transpose();
        let namespace = namespace.map_err(|_| SetupError::Address("the namespace cannot stand in a header".into()))?;
        let base = base(&parse_address(&config.address)?);
        Ok(Self { base, http: Http::new(config.timeout, config.ca_file.as_deref())?, namespace })
    }

    /// Sends an endpoint and gives the answer, whatever its status.
    pub(super) async fn call(&self, endpoint: impl Endpoint, token: Option<&Secret>) -> Result<Answer, ReadError> {
        let mut token = token.map(|token| HeaderValue::from_bytes(token.expose())).transpose();
        if let Ok(Some(token)) = &mut token {
            token.set_sensitive(true);
        }
        let token = token.map_err(|_| ReadError::Login("the token cannot stand in a header"))?;
        let outcome = Arc::new(Mutex::new(None));
        let sender = Sender { base: &self.base, http: &self.http, outcome: outcome.clone() };
        let headers = Headers { base: &self.base, token, namespace: self.namespace.clone() };
        let sent = endpoint.with_middleware(&headers).exec(&sender).await;
        let answer = outcome.lock().take();
        match (answer, sent) {
            (Some(answer), _) => answer,
            // The request could not even be made. The error has no answer in it that it could show.
            (None, _) => {
                Err(ReadError::Unreachable("the request cannot be made; check the address and the paths".into()))
            }
        }
    }
}

/// Completes a request: our address and path, and who we are.
struct Headers<'a> {
    base: &'a str,
    token: Option<HeaderValue>,
    namespace: Option<HeaderValue>,
}

impl MiddleWare for Headers<'_> {
    fn request<E: Endpoint>(&self, endpoint: &E, request: &mut http::Request<Vec<u8>>) -> Result<(), ClientError> {
        // Endpoints put slashes and white space around their paths in different ways.
        let path = endpoint.path();
        let segments = path.trim().trim_matches('/').split('/').filter(|segment| !segment.is_empty());
        let url = segments.fold(format!("{}/v1", self.base), |url, segment| {
            url + "/" + &utf8_percent_encode(segment, UNRESERVED).to_string()
        });
        *request.uri_mut() = url.parse::<Uri>().map_err(|source| ClientError::UrlBuildError { source })?;
        let headers = request.headers_mut();
        headers.insert(REQUEST, HeaderValue::from_static("true"));
        if let Some(token) = &self.token {
            headers.insert(TOKEN, token.clone());
        }
        if let Some(namespace) = &self.namespace {
            headers.insert(NAMESPACE, namespace.clone());
        }
        Ok(())
    }

    fn response<E: Endpoint>(&self, _: &E, _: &mut http::Response<Vec<u8>>) -> Result<(), ClientError> {
        Ok(())
    }
}

/// Sends it. The outcome goes past `rustify`, which logs every error it sees and copies every answer.
struct Sender<'a> {
    base: &'a str,
    http: &'a Http,
    outcome: Arc<Mutex<Option<Result<Answer, ReadError>>>>,
}

#[async_trait]
impl Client for Sender<'_> {
    fn base(&self) -> &str {
        self.base
    }

    async fn send(&self, request: http::Request<Vec<u8>>) -> Result<http::Response<Vec<u8>>, ClientError> {
        let request =
            reqwest::Request::try_from(request).map_err(|source| ClientError::ReqwestBuildError { source })?;
        let answer = self.http.send(request).await;
        *self.outcome.lock() = Some(answer);
        Ok(http::Response::new(Vec::new()))
    }

    async fn execute(&self, request: http::Request<Vec<u8>>) -> Result<http::Response<Vec<u8>>, ClientError> {
        self.send(request).await
    }
}
