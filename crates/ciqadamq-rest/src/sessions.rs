//! `/api/v1/sessions`: looking at sessions and ending them.

use ciqadamq_core::{AUDIT, SessionInfo, SessionQuery};
use salvo::Depot;
use salvo::http::{Request, StatusCode};
use salvo::oapi::{ToSchema, endpoint};
use serde::Serialize;

use crate::app::Call;
use crate::error::ApiError;
use crate::query::{LIMIT_MAX, Query};
use crate::reply::{Answer, Reply};

/// Sessions on one page when nothing is said.
const LIMIT_DEFAULT: usize = 100;

/// One session, online or waiting for its client.
#[derive(Debug, Serialize, ToSchema)]
#[salvo(schema(name = SessionView))]
pub(crate) struct SessionView {
    /// client id
    clientid: String,
    /// login name
    username: String,
    /// the person; null when the login was not made by the user directory
    userid: Option<String>,
    /// node that holds it
    node: u64,
    /// a network connection is open
    online: bool,
    /// the peer's `address:port`
    address: Option<String>,
    /// 3 (MQTT 3.1), 4 (3.1.1) or 5
    protocol: u8,
    /// Unix time in milliseconds
    connected_at: i64,
    /// Unix time in milliseconds, for an offline session
    disconnected_at: Option<i64>,
    /// number of subscriptions
    subscriptions: usize,
    /// messages waiting
    queued: usize,
    /// messages sent and not acknowledged
    inflight: usize,
}

impl From<SessionInfo> for SessionView {
    fn from(s: SessionInfo) -> Self {
        Self {
            clientid: s.clientid,
            username: s.username,
            userid: s.userid,
            node: s.node,
            online: s.online,
            address: s.address,
            protocol: s.protocol,
            connected_at: s.connected_at,
            disconnected_at: s.disconnected_at,
            subscriptions: s.subscriptions,
            queued: s.queued,
            inflight: s.inflight,
        }
    }
}

/// Sessions.
#[derive(Debug, Serialize, ToSchema)]
#[salvo(schema(name = SessionList))]
pub(crate) struct SessionList {
    /// sorted by client id
    sessions: Vec<SessionView>,
    /// give this as `after` for the rest; only if there is more
    #[serde(skip_serializing_if = "Option::is_none")]
    #[salvo(schema(value_type = String, required = false))]
    next: Option<String>,
}

/// List sessions
///
/// Sorted by client id, at most `limit` at once. There is `next` while there are more: give it as `after`,
/// percent-encoded.
#[endpoint(
    operation_id = "list_sessions", tags("sessions"),
    parameters(
        ("username" = Option<String>, Query, description = "only sessions of this login name"),
        ("userid" = Option<String>, Query, description = "only sessions of this person"),
        ("after" = Option<String>, Query, description = "only client ids that sort after this one"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000, description = "at most so many, 1-1000; 100 when left out"),
    ),
    responses((status_code = 200, description = "sessions", body = SessionList))
)]
pub(crate) async fn list_sessions(req: &mut Request, depot: &mut Depot) -> Answer {
    let call = Call::of(depot)?;
    let mut query = Query::of(req, &["username", "userid", "after", "limit"])?;
    let limit = query.limit()?.unwrap_or(LIMIT_DEFAULT).min(LIMIT_MAX);
    let wanted = SessionQuery {
        username: query.take("username"),
        userid: query.take("userid"),
        after: query.take("after"),
        // One more than shown tells whether there is more.
        limit: limit + 1,
    };
    let mut found = call.app.deps.sessions.list(&wanted).await;
    let more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| more).map(|s| s.clientid.clone());
    Reply::json(&SessionList { sessions: found.into_iter().map(Into::into).collect(), next })
}

/// End a session
///
/// With its queue and subscriptions, without its Will. Its client may connect again.
#[endpoint(
    operation_id = "end_session", tags("sessions"),
    parameters(("clientid" = String, Path, description = "percent-encoded, `/` as `%2F`")),
    responses((status_code = 204, description = "ended"))
)]
pub(crate) async fn end_session(depot: &mut Depot) -> Answer {
    let call = Call::of(depot)?;
    if !call.app.deps.sessions.end(&call.parameter).await {
        return Err(ApiError::new(StatusCode::NOT_FOUND, "no such session"));
    }
    let (client_id, by, peer) = (&*call.parameter, call.by, call.peer());
    tracing::info!(target: AUDIT, event = "session_ended", client_id, by, peer, "session ended");
    Ok(Reply::no_content())
}
