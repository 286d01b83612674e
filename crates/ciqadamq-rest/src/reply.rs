//! Answers that are not refusals.

use salvo::http::header::{CONTENT_TYPE, HeaderValue, LOCATION};
use salvo::http::{Request, ResBody, Response, StatusCode};
use salvo::oapi::{Components, EndpointOutRegister, Operation};
use salvo::{Depot, Writer, async_trait};
use serde::Serialize;

use crate::error::ApiError;

/// What every handler returns.
pub(crate) type Answer = Result<Reply, ApiError>;

/// A status, a body and its type. Which ones a route gives stands in its `#[endpoint]` attribute.
pub(crate) struct Reply {
    status: StatusCode,
    content_type: Option<&'static str>,
    location: Option<String>,
    body: ResBody,
}

impl Reply {
    pub(crate) fn json(value: &impl Serialize) -> Answer {
        match serde_json::to_vec(value) {
            Ok(bytes) => Ok(Self::bytes("application/json", bytes)),
            Err(_) => Err(ApiError::internal("an answer could not be serialised")),
        }
    }

    pub(crate) fn bytes(content_type: &'static str, bytes: impl Into<ResBody>) -> Self {
        Self { status: StatusCode::OK, content_type: Some(content_type), location: None, body: bytes.into() }
    }

    pub(crate) fn no_content() -> Self {
        Self { status: StatusCode::NO_CONTENT, content_type: None, location: None, body: ResBody::None }
    }

    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    pub(crate) fn with_location(mut self, path: String) -> Self {
        self.location = Some(path);
        self
    }
}

#[async_trait]
impl Writer for Reply {
    async fn write(self, _req: &mut Request, _depot: &mut Depot, res: &mut Response) {
        res.status_code = Some(self.status);
        let headers = res.headers_mut();
        if let Some(content_type) = self.content_type {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        if let Some(path) = self.location.and_then(|path| HeaderValue::try_from(path).ok()) {
            headers.insert(LOCATION, path);
        }
        res.body(self.body);
    }
}

impl EndpointOutRegister for Reply {
    fn register(_components: &mut Components, _operation: &mut Operation) {}
}
