//! `/internal/*`: users with their password hashes, for migration and backup, in the shapes of ciqadamq 1.0.

use ciqadamq_core::{AUDIT, Command, PasswordHash, User, UserId, UserQuery, Username};
use salvo::Depot;
use salvo::http::{Request, StatusCode};
use salvo::oapi::{ToSchema, endpoint};
use serde::Serialize;

use crate::app::Call;
use crate::body::read_object;
use crate::error::ApiError;
use crate::json::Object;
use crate::listing;
use crate::reply::{Answer, Reply};
use crate::users::{required_userid, required_username};

/// Users read at once.
const PAGE: usize = 500;

/// A user with its password hash.
#[derive(Serialize, ToSchema)]
#[salvo(schema(name = FullUser))]
pub(crate) struct FullUser {
    /// login name
    #[salvo(schema(value_type = String))]
    username: Username,
    /// the person
    #[salvo(schema(value_type = String))]
    userid: UserId,
    /// PHC string
    #[salvo(schema(value_type = String))]
    password_hash: PasswordHash,
    /// no access rule applies; false when left out
    #[salvo(schema(required = false))]
    superuser: bool,
    /// may also subscribe the admin prefixes; false when left out
    #[salvo(schema(required = false))]
    admin: bool,
    /// kept, but may not log in; false when left out
    #[salvo(schema(required = false))]
    disabled: bool,
}

/// All users with their password hashes.
#[derive(Serialize, ToSchema)]
#[salvo(schema(name = FullUserList))]
pub(crate) struct FullUserList {
    /// sorted by username
    users: Vec<FullUser>,
}

/// What to do.
#[derive(ToSchema)]
#[salvo(schema(name = ReplicateOp, rename_all = "snake_case"))]
#[allow(dead_code)] // describes the body in the OpenAPI document; `Replication` is what it is read into
pub(crate) enum ReplicateOp {
    /// make the user, or replace it; needs `user`
    Upsert,
    /// delete the user, if there is one; needs `username`
    Delete,
}

/// `{"op":"upsert","user":{...}}` or `{"op":"delete","username":"..."}`
#[derive(ToSchema)]
#[allow(dead_code)] // the same
#[salvo(schema(name = ReplicateRequest))]
pub(crate) struct ReplicateRequest {
    /// what to do
    op: ReplicateOp,
    /// the user to make or replace
    #[salvo(schema(value_type = FullUser, required = false))]
    user: Option<FullUser>,
    /// the user to delete
    #[salvo(schema(value_type = String, required = false))]
    username: Option<String>,
}

enum Replication {
    Upsert(FullUser),
    Delete(Username),
}

impl Replication {
    fn read(mut object: Object) -> Result<Self, ApiError> {
        let order = match object.required_string("op")?.as_str() {
            "upsert" => {
                let mut user = object.required_object("user")?;
                let full = FullUser {
                    username: required_username(&mut user)?,
                    userid: required_userid(&mut user)?,
                    password_hash: PasswordHash(user.required_string("password_hash")?),
                    superuser: user.boolean("superuser")?.unwrap_or_default(),
                    admin: user.boolean("admin")?.unwrap_or_default(),
                    disabled: user.boolean("disabled")?.unwrap_or_default(),
                };
                user.finish()?;
                Self::Upsert(full)
            }
            "delete" => Self::Delete(required_username(&mut object)?),
            _ => return Err(ApiError::field("op", "`op` must be `upsert` or `delete`")),
        };
        object.finish()?;
        Ok(order)
    }
}

/// All users with their password hashes
///
/// Streamed, sorted by username. Each record can be given to `POST /internal/replicate` as `user`.
#[endpoint(
    operation_id = "export_users", tags("internal"),
    responses((status_code = 200, description = "all users", body = FullUserList))
)]
pub(crate) async fn export_users(depot: &mut Depot) -> Answer {
    let call = Call::of(depot)?;
    let (by, peer) = (call.by, call.peer());
    tracing::info!(target: AUDIT, event = "users_exported", by, peer, "users with password hashes are being read");
    let query = UserQuery { limit: PAGE, ..UserQuery::default() };
    listing::stream_all(call, query, |user| serde_json::to_vec(&FullUser::from(user))).await
}

impl From<&User> for FullUser {
    fn from(user: &User) -> Self {
        Self {
            username: user.username.clone(),
            userid: user.userid.clone(),
            password_hash: user.password.clone(),
            superuser: user.superuser,
            admin: user.admin,
            disabled: user.disabled,
        }
    }
}

/// Make, replace or delete a user as it stands elsewhere
///
/// A replaced user's sessions end. Deleting a user that does not exist is a success: afterwards there is none.
#[endpoint(
    operation_id = "replicate", tags("internal"),
    request_body = ReplicateRequest,
    responses((status_code = 204, description = "done"))
)]
pub(crate) async fn replicate(req: &mut Request, depot: &mut Depot) -> Answer {
    let call = Call::of(depot)?;
    let config = &call.app.config;
    match Replication::read(read_object(req, config.body_bytes_max, config.request_timeout).await?)? {
        Replication::Upsert(user) => {
            call.app.deps.passwords.check_phc(&user.password_hash.0).map_err(|reason| {
                ApiError::field("user.password_hash", format!("`user.password_hash` cannot be used: {reason}"))
            })?;
            let command = Command::Put {
                username: user.username,
                userid: user.userid,
                password: user.password_hash,
                superuser: user.superuser,
                admin: user.admin,
                disabled: user.disabled,
            };
            call.change("user_put", String::new(), command).await?;
        }
        Replication::Delete(username) => {
            match call.change("user_deleted", String::new(), Command::Delete { username }).await {
                Err(e) if e.status == StatusCode::NOT_FOUND => {}
                outcome => {
                    outcome?;
                }
            }
        }
    }
    Ok(Reply::no_content())
}
