//! The one shape in which the API refuses something: `{"error": "...", "field"?: "..."}`.

use std::borrow::Cow;

use ciqadamq_core::{DirectoryError, ExecuteError, HashError, Rejection};
use salvo::http::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use salvo::http::{Request, Response, StatusCode};
use salvo::oapi::{Components, Content, EndpointOutRegister, Operation, ToSchema};
use salvo::{Depot, Writer, async_trait};
use serde::Serialize;

/// Seconds after which a client may try again when this node is busy.
const RETRY_AFTER_SECS: u64 = 1;

const REFUSED: &str = "Refused: 400 or 415 for a bad request, 401 without a token, 404, 405, 408, 409, 413, 429 after \
                       many wrong tokens, 503 with Retry-After.";

/// What is said instead of the answer that was asked for.
#[derive(Debug, Serialize, ToSchema)]
#[salvo(schema(name = ErrorBody))]
pub(crate) struct ErrorBody {
    /// what is wrong and what helps, for people
    pub(crate) error: Cow<'static, str>,
    /// the field of the body or the query that is wrong
    #[serde(skip_serializing_if = "Option::is_none")]
    #[salvo(schema(value_type = String, required = false))]
    pub(crate) field: Option<String>,
}

/// The header that goes with a refusal.
#[derive(Debug)]
enum Hint {
    None,
    RetryAfter(u64),
    Challenge(&'static str),
    Allow(String),
}

/// A refusal on its way to the client.
#[derive(Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    body: ErrorBody,
    hint: Hint,
    close: bool,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, error: impl Into<Cow<'static, str>>) -> Self {
        Self { status, body: ErrorBody { error: error.into(), field: None }, hint: Hint::None, close: false }
    }

    pub(crate) fn bad_request(error: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error)
    }

    /// 400 that names the field.
    pub(crate) fn field(field: impl Into<String>, error: impl Into<Cow<'static, str>>) -> Self {
        let mut refusal = Self::bad_request(error);
        refusal.body.field = Some(field.into());
        refusal
    }

    pub(crate) fn no_such_user() -> Self {
        Self::new(StatusCode::NOT_FOUND, "no such user")
    }

    /// 503 that says when to come back.
    pub(crate) fn unavailable(error: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, error).retry_after(RETRY_AFTER_SECS)
    }

    /// A defect of ours. The client learns no more than that; the log has it.
    pub(crate) fn internal(what: &str) -> Self {
        tracing::error!(what, "a REST request met a defect");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error")
    }

    pub(crate) fn retry_after(mut self, secs: u64) -> Self {
        self.hint = Hint::RetryAfter(secs);
        self
    }

    /// 401 with its `WWW-Authenticate`.
    pub(crate) fn unauthorized(error: &'static str, challenge: &'static str) -> Self {
        Self { hint: Hint::Challenge(challenge), ..Self::new(StatusCode::UNAUTHORIZED, error) }
    }

    /// 405 with its `Allow`.
    pub(crate) fn method_not_allowed(path: &str, allow: String) -> Self {
        let error = format!("{path} answers to {allow}");
        Self { hint: Hint::Allow(allow), ..Self::new(StatusCode::METHOD_NOT_ALLOWED, error) }
    }

    /// The connection cannot be used for another request.
    pub(crate) fn closing(mut self) -> Self {
        self.close = true;
        self
    }

    pub(crate) fn render(self, res: &mut Response) {
        res.status_code = Some(self.status);
        let headers = res.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let hint = match self.hint {
            Hint::None => None,
            Hint::RetryAfter(secs) => Some((RETRY_AFTER, HeaderValue::from(secs))),
            Hint::Challenge(challenge) => Some((WWW_AUTHENTICATE, HeaderValue::from_static(challenge))),
            Hint::Allow(methods) => HeaderValue::try_from(methods).ok().map(|methods| (ALLOW, methods)),
        };
        if let Some((name, value)) = hint {
            headers.insert(name, value);
        }
        if self.close {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        // Two strings always serialise.
        res.body(serde_json::to_vec(&self.body).unwrap_or_default());
    }
}

impl From<DirectoryError> for ApiError {
    fn from(error: DirectoryError) -> Self {
        // The reason names paths and the like: it is for the operator.
        tracing::error!(reason = %error.reason, "the user directory could not be read");
        Self::unavailable("the user directory cannot be read now; try again")
    }
}

impl From<ExecuteError> for ApiError {
    fn from(error: ExecuteError) -> Self {
        match error {
            ExecuteError::Rejected(Rejection::Exists) => {
                Self { body: ErrorBody { error: "user exists".into(), field: Some("username".into()) }, ..conflict() }
            }
            ExecuteError::Rejected(Rejection::NotFound) => Self::no_such_user(),
            ExecuteError::Rejected(Rejection::Stale) => conflict(),
            ExecuteError::Busy => Self::unavailable("too many user changes are waiting; try again"),
            ExecuteError::Unavailable(reason) => {
                tracing::warn!(%reason, "a user change was refused");
                Self::unavailable("the user directory does not take changes now; try again")
            }
            // No Retry-After: trying again blindly may meet the change itself.
            ExecuteError::Unconfirmed(reason) => {
                tracing::warn!(%reason, "the outcome of a user change is not known");
                let error = "the change was begun and may still be made; look at the user before trying again";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, error)
            }
        }
    }
}

fn conflict() -> ApiError {
    ApiError::new(StatusCode::CONFLICT, "the user changed meanwhile; try again")
}

impl From<HashError> for ApiError {
    fn from(error: HashError) -> Self {
        match error {
            HashError::Busy => Self::unavailable("too many passwords are waiting to be hashed; try again"),
            HashError::Failed => {
                tracing::error!("a password could not be hashed");
                Self::unavailable("the password could not be hashed now; try again")
            }
        }
    }
}

#[async_trait]
impl Writer for ApiError {
    async fn write(self, _req: &mut Request, _depot: &mut Depot, res: &mut Response) {
        self.render(res);
    }
}

impl EndpointOutRegister for ApiError {
    fn register(components: &mut Components, operation: &mut Operation) {
        let schema = ErrorBody::to_schema(components);
        operation.responses.insert(
            "default",
            salvo::oapi::Response::new(REFUSED).add_content("application/json", Content::new(schema)),
        );
    }
}
