//! Lists of users of any length in bounded memory: read page by page, sent as they are read.

use std::sync::Arc;

use ciqadamq_core::{DirectoryError, User, UserDirectory, UserId, UserPage, UserQuery};
use futures::stream::{self, Stream};
use salvo::http::{Request, ResBody};
use salvo::oapi::ToSchema;
use serde::Serialize;

use crate::app::Call;
use crate::error::ApiError;
use crate::query::Query;
use crate::reply::{Answer, Reply};
use crate::users::UserView;

/// Users read at once while streaming: some 50 KB of text.
const PAGE: usize = 500;

/// Users.
#[derive(Debug, Serialize, ToSchema)]
#[salvo(schema(name = UserList))]
pub(crate) struct UserList {
    /// sorted by username
    users: Vec<UserView>,
    /// give this as `after` for the rest; only with `limit`, and only if there is more
    #[serde(skip_serializing_if = "Option::is_none")]
    #[salvo(schema(value_type = String, required = false))]
    next: Option<String>,
}

/// How one user is written.
type Row = fn(&User) -> serde_json::Result<Vec<u8>>;

/// `GET /api/v1/users`.
pub(crate) async fn users(call: &Call, req: &Request) -> Answer {
    let mut query = Query::of(req, &["limit", "after", "userid"])?;
    let limit = query.limit()?;
    let userid = query
        .take("userid")
        .map(|id| UserId::new(&id).map_err(|e| ApiError::field("userid", format!("`userid` {e}"))))
        .transpose()?;
    let after = query.take("after");
    let query = UserQuery { after, userid, limit: limit.unwrap_or(PAGE) };
    if limit.is_none() {
        return stream_all(call, query, |user| serde_json::to_vec(&UserView::from(user))).await;
    }
    let page = read_page(call.app.deps.directory.clone(), query).await?;
    let users = page.users.iter().map(|user| UserView::from(&**user)).collect();
    Reply::json(&UserList { users, next: page.next })
}

/// All users that fit `query`, as `{"users":[...]}`.
///
/// The first page is read before the answer begins, so a directory that cannot answer is a 503. When a later one
/// fails, the body breaks off without its end: a client never takes a part for the whole.
pub(crate) async fn stream_all(call: &Call, query: UserQuery, row: Row) -> Answer {
    let directory = call.app.deps.directory.clone();
    let first = read_page(directory.clone(), query.clone()).await?;
    let chunks = chunks(directory, query, first, row);
    Ok(Reply::bytes("application/json", ResBody::stream(chunks)))
}

/// Where the stream is.
enum Step {
    Page { head: &'static [u8], page: UserPage },
    Read { after: String },
    Done,
}

fn chunks(
    directory: Arc<dyn UserDirectory>,
    query: UserQuery,
    first: UserPage,
    row: Row,
) -> impl Stream<Item = Result<Vec<u8>, DirectoryError>> {
    let start = Step::Page { head: b"{\"users\":[", page: first };
    stream::try_unfold((start, directory, query), move |(step, directory, mut query)| async move {
        let (head, page) = match step {
            Step::Done => return Ok(None),
            Step::Page { head, page } => (head, page),
            Step::Read { after } => {
                query.after = Some(after);
                // A page that has no users although one was promised needs no comma.
                let page = read_page(directory.clone(), query.clone()).await.inspect_err(|e| {
                    tracing::error!(reason = %e.reason, "a list of users broke off");
                })?;
                (if page.users.is_empty() { &b""[..] } else { b"," }, page)
            }
        };
        let mut chunk = head.to_vec();
        for (i, user) in page.users.iter().enumerate() {
            if i > 0 {
                chunk.push(b',');
            }
            let row = row(user).map_err(|e| DirectoryError { reason: e.to_string() })?;
            chunk.extend_from_slice(&row);
        }
        let step = match page.next {
            Some(after) => Step::Read { after },
            None => {
                chunk.extend_from_slice(b"]}");
                Step::Done
            }
        };
        Ok(Some((chunk, (step, directory, query))))
    })
}

async fn read_page(directory: Arc<dyn UserDirectory>, query: UserQuery) -> Result<UserPage, DirectoryError> {
    // Reading may touch the disk, and narrowing by userid may look at many records.
    tokio::task::spawn_blocking(move || directory.list(&query))
        .await
        .unwrap_or_else(|_| Err(DirectoryError { reason: "reading a page broke off".into() }))
}
