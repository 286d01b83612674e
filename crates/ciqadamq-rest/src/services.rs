//! `/internal/v1/{service}`: calls between nodes, handed to the service of that name as bytes.
//!
//! What they mean is the services' business; the token, the size and the time are checked here.

use ciqadamq_core::{INTERNAL_BODY_BYTES_MAX, ServiceError};
use salvo::Depot;
use salvo::http::{Request, StatusCode};
use salvo::oapi::endpoint;

use crate::app::Call;
use crate::body::read_bytes;
use crate::error::ApiError;
use crate::reply::{Answer, Reply};

/// Call a service of this node
///
/// Used by the nodes among themselves; body and answer are bytes that only they understand.
#[endpoint(
    operation_id = "call_service", tags("internal"),
    parameters(("service" = String, Path, description = "its name")),
    request_body(content = String, content_type = "application/octet-stream", description = "the call"),
    responses((status_code = 200, description = "the answer", content_type = "application/octet-stream", body = String))
)]
pub(crate) async fn call_service(req: &mut Request, depot: &mut Depot) -> Answer {
    let call = Call::of(depot)?;
    let service = call
        .app
        .deps
        .internal
        .get(&call.parameter)
        .ok_or_else(|| ApiError::new(StatusCode::NOT_FOUND, "this node has no such service"))?;
    let body = read_bytes(req, INTERNAL_BODY_BYTES_MAX, call.app.config.request_timeout).await?;
    match service.call(body).await {
        Ok(answer) => Ok(Reply::bytes("application/octet-stream", answer)),
        Err(ServiceError::BadRequest(error)) => Err(ApiError::bad_request(error)),
        Err(ServiceError::Unavailable(error)) => Err(ApiError::unavailable(error)),
    }
}
