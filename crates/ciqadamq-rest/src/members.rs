//! `/api/v1/cluster/members`: taking nodes in and out of the replicated user directory.

use ciqadamq_core::{AUDIT, ClusterPart, MembersError, NodeId};
use salvo::Depot;
use salvo::http::{Request, StatusCode};
use salvo::oapi::{ToSchema, endpoint};
use serde::Serialize;
use std::sync::Arc;

use crate::app::Call;
use crate::body::read_object;
use crate::error::ApiError;
use crate::reply::{Answer, Reply};
use crate::state::USERS;

/// A node to take in.
#[derive(Serialize, ToSchema)]
#[salvo(schema(name = AddMember))]
pub(crate) struct AddMember {
    /// its `cluster.node_id`
    #[salvo(schema(minimum = 1, maximum = 65535))]
    id: NodeId,
    /// base URL of its API, such as `http://node2:8090`
    url: String,
}

/// Take a node in
///
/// The node must be up, with an empty user directory. The answer comes when it has caught up and votes. Any member
/// takes this.
#[endpoint(
    operation_id = "add_member", tags("node"),
    request_body = AddMember,
    responses((status_code = 200, description = "it is a member", body = AddMember))
)]
pub(crate) async fn add_member(req: &mut Request, depot: &mut Depot) -> Answer {
    let call = Call::of(depot)?;
    let config = &call.app.config;
    let mut object = read_object(req, config.body_bytes_max, config.request_timeout).await?;
    let id = object.required_number("id", 1, 65_535)?;
    let url = object.required_string("url")?;
    object.finish()?;
    if !(url.starts_with("http://") || url.starts_with("https://")) || url.len() > 512 || !url.is_ascii() {
        return Err(ApiError::field("url", "`url` must be the node's API, such as `http://node2:8090`"));
    }
    part(call)?.add_member(id, url.trim_end_matches('/')).await?;
    let (by, peer) = (call.by, call.peer());
    tracing::info!(target: AUDIT, event = "member_added", node = id, url, by, peer, "cluster changed");
    Reply::json(&AddMember { id, url })
}

/// Take a node out
///
/// It may be down. Its vote no longer counts afterwards, and it can be taken in again with an empty user directory.
#[endpoint(
    operation_id = "remove_member", tags("node"),
    parameters(("id" = u64, Path, description = "its `cluster.node_id`")),
    responses((status_code = 204, description = "it is no member any more"))
)]
pub(crate) async fn remove_member(depot: &mut Depot) -> Answer {
    let call = Call::of(depot)?;
    let id: NodeId = call.parameter.parse().map_err(|_| ApiError::new(StatusCode::NOT_FOUND, "no such member"))?;
    part(call)?.remove_member(id).await?;
    let (by, peer) = (call.by, call.peer());
    tracing::info!(target: AUDIT, event = "member_removed", node = id, by, peer, "cluster changed");
    Ok(Reply::no_content())
}

/// The part whose members are named by hand; routes follow the configuration.
fn part(call: &Call) -> Result<Arc<dyn ClusterPart>, ApiError> {
    let part = call.app.deps.cluster.all().into_iter().find(|(name, _)| *name == USERS);
    part.map(|(_, part)| part)
        .ok_or_else(|| ApiError::new(StatusCode::CONFLICT, "this node runs no replicated user directory"))
}

impl From<MembersError> for ApiError {
    fn from(error: MembersError) -> Self {
        match error {
            MembersError::Refused(text) => Self::new(StatusCode::CONFLICT, text),
            MembersError::Unavailable(text) => Self::unavailable(text),
        }
    }
}
