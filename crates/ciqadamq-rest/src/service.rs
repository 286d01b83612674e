//! What happens to every request before and after its handler: the token, the route, the time limit, the metrics.
//!
//! The token is checked before anything of the body is read, so a stranger costs one small answer. Where tokens come from a
//! vault, an unknown one waits until the vault was asked whether it has rotated; see [`ciqadamq_core::SecretRefresh`]. A path that does
//! not exist needs a token too: without one, the API only tells whether the node is alive.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use ciqadamq_core::{AUDIT, LookedAgain, SecretName};
use futures::future::select;
use prometheus::IntGauge;
use salvo::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use salvo::http::{Method, Request, ResBody, Response, StatusCode};
use salvo::hyper::body::Body;
use salvo::{Depot, FlowCtrl, Handler, async_trait};

use crate::app::{App, Call};
use crate::error::ApiError;
use crate::routes::{self, Guard, Route};
use crate::tokens::{Credential, check_token};

/// Route label of requests to no known path.
const UNMATCHED: &str = "unmatched";

/// Which routes a listener answers; the others do not exist there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    /// all but `/internal/*`
    Public,
    /// `/internal/*` alone
    Internal,
}

impl Scope {
    fn has(self, route: &Route) -> bool {
        match self {
            Self::All => true,
            Self::Public => route.guard != Guard::Replication,
            Self::Internal => route.guard == Guard::Replication,
        }
    }
}

/// Wraps every handler.
pub(crate) struct Pipeline {
    pub(crate) app: Arc<App>,
    pub(crate) scope: Scope,
}

#[async_trait]
impl Handler for Pipeline {
    async fn handle(&self, req: &mut Request, depot: &mut Depot, res: &mut Response, ctrl: &mut FlowCtrl) {
        let started = Instant::now();
        let _in_flight = InFlight::new(&self.app.metrics.in_flight);
        let method = req.method().clone();
        let peer = req.remote_addr().clone().into_std();
        let path = req.uri().path().to_owned();
        let found = routes::find(&path).filter(|(route, _)| self.scope.has(route));
        let route = found.map_or(UNMATCHED, |(route, _)| route.path);

        match self.admit(req, found, peer).await {
            Ok(call) => {
                depot.inject(call);
                // The body has `request_timeout` to arrive, the answer has as long again.
                let patience = self.app.config.request_timeout.saturating_mul(2);
                if tokio::time::timeout(patience, ctrl.call_next(req, depot, res)).await.is_err() {
                    let error = "the request took too long; a change it asked for may still be made";
                    late(found, error).closing().render(res);
                }
            }
            Err(refusal) => {
                refusal.render(res);
                ctrl.skip_rest();
            }
        }
        self.finish(req, res, &method);

        let status = res.status_code.unwrap_or(StatusCode::OK);
        self.app.metrics.answered(route, &method, status, started.elapsed().as_secs_f64());
        tracing::debug!(%method, route, status = status.as_u16(), peer = ?peer, "REST request");
    }
}

/// Another node takes a 503 for "nothing was done", so it is told something else.
fn late(found: Option<(&'static Route, Option<&str>)>, error: &'static str) -> ApiError {
    match found {
        Some((route, _)) if route.guard == Guard::Replication => ApiError::new(StatusCode::GATEWAY_TIMEOUT, error),
        _ => ApiError::unavailable(error),
    }
}

impl Pipeline {
    async fn admit(
        &self,
        req: &Request,
        found: Option<(&'static Route, Option<&str>)>,
        peer: Option<SocketAddr>,
    ) -> Result<Call, ApiError> {
        let stranger = if self.scope == Scope::Internal { Guard::Replication } else { Guard::Management };
        let guard = found.map_or(stranger, |(route, _)| route.guard);
        if let Some(credential) = self.credential(guard) {
            self.check_token(req, credential, peer).await?;
        }
        let Some((route, parameter)) = found else {
            return Err(ApiError::new(StatusCode::NOT_FOUND, "no such path; GET /api/v1/openapi.json lists them"));
        };
        if !route.allows(req.method()) {
            return Err(ApiError::method_not_allowed(route.path, route.allow_header()));
        }
        let parameter = percent_encoding::percent_decode_str(parameter.unwrap_or_default())
            .decode_utf8()
            .map_err(|_| ApiError::bad_request("the path is not UTF-8"))?
            .into_owned();
        let by = self.credential(guard).map_or("nobody", |credential| self.app.deps.tokens.name(credential));
        Ok(Call { app: self.app.clone(), peer, by, parameter })
    }

    fn credential(&self, guard: Guard) -> Option<Credential> {
        let config = &self.app.config;
        match guard {
            Guard::Open => None,
            Guard::Metrics if config.metrics_open => None,
            Guard::Docs if config.docs_open => None,
            Guard::Management | Guard::Metrics | Guard::Docs => Some(Credential::Management),
            Guard::Replication => Some(Credential::Replication),
        }
    }

    async fn check_token(
        &self,
        req: &Request,
        credential: Credential,
        peer: Option<SocketAddr>,
    ) -> Result<(), ApiError> {
        let refused = |reason| self.app.metrics.token_refusals.with_label_values(&[reason]).inc();
        let Some(token) = bearer(req) else {
            refused("missing");
            return Err(ApiError::unauthorized("send `Authorization: Bearer <token>`", "Bearer realm=\"ciqadamq\""));
        };
        if self.app.deps.tokens.admits(credential, token) {
            return Ok(());
        }
        match self.look_again(credential, token, peer).await {
            // The brake is not asked: it must never hold off a token that is right.
            _ if self.app.deps.tokens.admits(credential, token) => return Ok(()),
            Some(LookedAgain::Busy) => {
                refused("busy");
                return Err(ApiError::unavailable("the token is not known yet, and too many wait to hear; try again"));
            }
            _ => {}
        }
        let wait = peer.and_then(|peer| self.app.brake.wrong(peer.ip(), Instant::now()));
        if let Some(wait) = wait {
            refused("braked");
            if let Some(suppressed) = self.app.braked.spend() {
                let peer = peer.map(tracing::field::display);
                tracing::warn!(target: AUDIT, event = "token_refused", reason = "braked", peer, suppressed, "REST source braked");
            }
            let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too many wrong tokens from this address; wait");
            return Err(error.retry_after(wait.as_secs() + 1));
        }
        refused("wrong");
        // Bounded by the brake: at most so many lines a minute and source.
        let peer = peer.map(tracing::field::display);
        let credential = self.app.deps.tokens.name(credential);
        tracing::warn!(target: AUDIT, event = "token_refused", reason = "wrong", credential, peer, "wrong REST token");
        Err(ApiError::unauthorized("the token is wrong", "Bearer realm=\"ciqadamq\", error=\"invalid_token\""))
    }

    /// A token that is not in force may be one that was put into the vault a moment ago.
    ///
    /// `/internal/*` takes the management token while there is no other, and the first other one may be this very token: both
    /// are looked for, at once, for a caller may have no time to wait for one after the other.
    async fn look_again(&self, credential: Credential, token: &[u8], peer: Option<SocketAddr>) -> Option<LookedAgain> {
        let app = &self.app;
        let refresh = app.deps.refresh.as_ref()?;
        // What can be no token costs the vault nothing.
        check_token(token).ok()?;
        let Some(_place) = app.waiting.place(peer.map(|peer| peer.ip())) else { return Some(LookedAgain::Busy) };
        let token = token.to_vec();
        let known = move || app.deps.tokens.admits(credential, &token);
        if credential == Credential::Management {
            return Some(refresh.look_again(SecretName::ApiToken, &known).await);
        }
        let replication = refresh.look_again(SecretName::ReplToken, &known);
        if !app.deps.tokens.management_opens_internal() {
            return Some(replication.await);
        }
        let management = refresh.look_again(SecretName::ApiToken, &known);
        let (first, other) = select(replication, management).await.factor_first();
        if known() {
            return Some(first);
        }
        Some(if first == LookedAgain::Busy { first } else { other.await })
    }

    fn finish(&self, req: &Request, res: &mut Response, method: &Method) {
        let status = res.status_code.unwrap_or(StatusCode::OK);
        if (status.is_client_error() || status.is_server_error()) && (res.body.is_none() || res.body.is_error()) {
            // Something in salvo refused: it gets our shape too.
            ApiError::new(status, status.canonical_reason().unwrap_or("refused").to_ascii_lowercase()).render(res);
        }
        let headers = res.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if !req.body().is_end_stream() {
            // The body was not wanted, and its bytes must not be taken for the next request.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if method == Method::HEAD {
            if let Some(size) = res.body.size().filter(|_| !res.body.is_none()) {
                res.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(size));
            }
            res.body = ResBody::None;
        }
    }
}

/// The one bearer token of a request. Two headers are none: nobody knows which one a proxy looked at.
fn bearer(req: &Request) -> Option<&[u8]> {
    let mut headers = req.headers().get_all(AUTHORIZATION).iter();
    let (Some(header), None) = (headers.next(), headers.next()) else { return None };
    let (scheme, token) = header.as_bytes().split_at_checked(b"Bearer ".len())?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"Bearer ") && !token.is_empty()).then_some(token)
}

/// Counts a request for as long as it lasts, also when its client hangs up.
struct InFlight(IntGauge);

impl InFlight {
    fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}
