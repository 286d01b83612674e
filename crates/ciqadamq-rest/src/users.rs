//! `/api/v1/users`: making, reading, changing and deleting users.

use ciqadamq_core::{Command, PASSWORD_BYTES_MAX, PasswordHash, Secret, User, UserId, UserPatch, Username};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
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

/// Everything but the unreserved characters of RFC 3986: the result is one path segment.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A user as the API shows it: everything but the password.
#[derive(Debug, Serialize, ToSchema)]
#[salvo(schema(name = UserView))]
pub(crate) struct UserView {
    /// login name
    pub(crate) username: String,
    /// the person
    pub(crate) userid: String,
    /// no access rule applies
    pub(crate) superuser: bool,
    /// may also subscribe the admin prefixes
    pub(crate) admin: bool,
    /// kept, but may not log in
    pub(crate) disabled: bool,
}

impl From<&User> for UserView {
    fn from(user: &User) -> Self {
        Self {
            username: user.username.to_string(),
            userid: user.userid.to_string(),
            superuser: user.superuser,
            admin: user.admin,
            disabled: user.disabled,
        }
    }
}

/// A user to make.
#[derive(ToSchema)]
#[salvo(schema(name = CreateUser))]
pub(crate) struct CreateUser {
    /// login name: 1-128 printable ASCII characters, no spaces, none of `/ \ % ? #`, not `.` or `..`
    #[salvo(schema(value_type = String, min_length = 1, max_length = 128))]
    username: Username,
    /// the application's user id: 1-64 of `A-Za-z0-9_-`
    #[salvo(schema(value_type = String, min_length = 1, max_length = 64))]
    userid: UserId,
    /// 1-512 bytes of UTF-8
    #[salvo(schema(value_type = String, format = Password, min_length = 1, max_length = 512))]
    password: Secret,
    /// no access rule applies; false when left out
    #[salvo(schema(required = false))]
    superuser: bool,
    /// may also subscribe the admin prefixes; false when left out
    #[salvo(schema(required = false))]
    admin: bool,
}

impl CreateUser {
    fn read(mut object: Object) -> Result<Self, ApiError> {
        let user = Self {
            username: required_username(&mut object)?,
            userid: required_userid(&mut object)?,
            password: password(&mut object)?.ok_or_else(|| ApiError::field("password", "`password` is missing"))?,
            superuser: object.boolean("superuser")?.unwrap_or_default(),
            admin: object.boolean("admin")?.unwrap_or_default(),
        };
        object.finish()?;
        Ok(user)
    }
}

/// What to change of a user; what is left out stays.
#[derive(ToSchema)]
#[salvo(schema(name = ChangeUser))]
pub(crate) struct ChangeUser {
    /// 1-512 bytes of UTF-8
    #[salvo(schema(value_type = String, format = Password, min_length = 1, max_length = 512, required = false))]
    password: Option<Secret>,
    /// the application's user id: 1-64 of `A-Za-z0-9_-`
    #[salvo(schema(value_type = String, min_length = 1, max_length = 64, required = false))]
    userid: Option<UserId>,
    /// no access rule applies
    #[salvo(schema(value_type = bool, required = false))]
    superuser: Option<bool>,
    /// may also subscribe the admin prefixes
    #[salvo(schema(value_type = bool, required = false))]
    admin: Option<bool>,
    /// kept, but may not log in
    #[salvo(schema(value_type = bool, required = false))]
    disabled: Option<bool>,
}

impl ChangeUser {
    fn read(mut object: Object) -> Result<Self, ApiError> {
        let change = Self {
            password: password(&mut object)?,
            userid: object.string("userid")?.map(|id| userid(&object, &id)).transpose()?,
            superuser: object.boolean("superuser")?,
            admin: object.boolean("admin")?,
            disabled: object.boolean("disabled")?,
        };
        object.finish()?;
        if change.fields().is_empty() {
            return Err(ApiError::bad_request(
                "nothing to change; give at least one of password, userid, superuser, admin, disabled",
            ));
        }
        Ok(change)
    }

    /// The names of what changes, for the audit line.
    fn fields(&self) -> String {
        let given = [
            ("password", self.password.is_some()),
            ("userid", self.userid.is_some()),
            ("superuser", self.superuser.is_some()),
            ("admin", self.admin.is_some()),
            ("disabled", self.disabled.is_some()),
        ];
        given.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect::<Vec<_>>().join(",")
    }
}

pub(crate) fn required_username(object: &mut Object) -> Result<Username, ApiError> {
    let path = object.path_of("username");
    Username::new(&object.required_string("username")?)
        .map_err(|e| ApiError::field(path.clone(), format!("`{path}` {e}")))
}

pub(crate) fn required_userid(object: &mut Object) -> Result<UserId, ApiError> {
    let id = object.required_string("userid")?;
    userid(object, &id)
}

fn userid(object: &Object, id: &str) -> Result<UserId, ApiError> {
    let path = object.path_of("userid");
    UserId::new(id).map_err(|e| ApiError::field(path.clone(), format!("`{path}` {e}")))
}

fn password(object: &mut Object) -> Result<Option<Secret>, ApiError> {
    let Some(password) = object.string("password")?.map(Secret::new) else { return Ok(None) };
    if password.is_empty() || password.len() > PASSWORD_BYTES_MAX {
        let error = format!("`password` must have 1 to {PASSWORD_BYTES_MAX} bytes, has {}", password.len());
        return Err(ApiError::field("password", error));
    }
    Ok(Some(password))
}

async fn hash(call: &Call, password: Secret) -> Result<PasswordHash, ApiError> {
    Ok(call.app.deps.passwords.hash(password).await?)
}

/// Make a user
///
/// The user can log in on every reachable node by the time the answer is sent. 409 if the username exists, 503 with
/// Retry-After if this node takes no changes now; in both cases nothing was changed.
#[endpoint(
    operation_id = "create_user", tags("users"),
    request_body = CreateUser,
    responses((status_code = 201, description = "made; `Location` has its path", body = UserView))
)]
pub(crate) async fn create_user(req: &mut Request, depot: &mut Depot) -> Answer {
    let call = Call::of(depot)?;
    let config = &call.app.config;
    let new = CreateUser::read(read_object(req, config.body_bytes_max, config.request_timeout).await?)?;
    let exists = || ApiError::from(ciqadamq_core::ExecuteError::Rejected(ciqadamq_core::Rejection::Exists));
    // Told now, a repeated creation costs no hash. The directory decides again when it is executed.
    if call.user(new.username.as_str())?.is_some() && call.latest(new.username.as_str()).await?.is_some() {
        return Err(exists());
    }
    let view = UserView {
        username: new.username.to_string(),
        userid: new.userid.to_string(),
        superuser: new.superuser,
        admin: new.admin,
        disabled: false,
    };
    let password = hash(call, new.password).await?;
    let command = Command::Create {
        username: new.username,
        userid: new.userid,
        password,
        superuser: new.superuser,
        admin: new.admin,
    };
    call.change("user_created", String::new(), command).await?;
    let location = format!("/api/v1/users/{}", utf8_percent_encode(&view.username, SEGMENT));
    Ok(Reply::json(&view)?.with_status(StatusCode::CREATED).with_location(location))
}

/// List users
///
/// Sorted by username, bytewise. Without `limit` all users are sent, page by page, so a user that is made or deleted
/// meanwhile may or may not be among them; a body that breaks off is an error. With `limit` there is `next` while
/// there are more: give it as `after`, percent-encoded.
#[endpoint(
    operation_id = "list_users", tags("users"),
    parameters(
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000, description = "at most so many, 1-1000"),
        ("after" = Option<String>, Query, description = "only usernames that sort after this one"),
        ("userid" = Option<String>, Query, description = "only this person's usernames"),
    ),
    responses((status_code = 200, description = "users", body = listing::UserList))
)]
pub(crate) async fn list_users(req: &mut Request, depot: &mut Depot) -> Answer {
    listing::users(Call::of(depot)?, req).await
}

/// Read a user
#[endpoint(
    operation_id = "read_user", tags("users"),
    parameters(("username" = String, Path, description = "percent-encoded")),
    responses((status_code = 200, description = "the user", body = UserView))
)]
pub(crate) async fn read_user(depot: &mut Depot) -> Answer {
    let call = Call::of(depot)?;
    let user = call.user(&call.parameter)?.ok_or_else(ApiError::no_such_user)?;
    Reply::json(&UserView::from(&*user))
}

/// Change a user
///
/// A new password, another userid, a flag taken away or `disabled` ends all sessions of the user, offline ones with
/// their queues. A flag that is granted reaches open connections.
#[endpoint(
    operation_id = "change_user", tags("users"),
    parameters(("username" = String, Path, description = "percent-encoded")),
    request_body = ChangeUser,
    responses((status_code = 200, description = "changed", body = UserView))
)]
pub(crate) async fn change_user(req: &mut Request, depot: &mut Depot) -> Answer {
    let call = Call::of(depot)?;
    let config = &call.app.config;
    let change = ChangeUser::read(read_object(req, config.body_bytes_max, config.request_timeout).await?)?;
    let user = match call.user(&call.parameter)? {
        None => call.latest(&call.parameter).await?,
        known => known,
    };
    let username = user.ok_or_else(ApiError::no_such_user)?.username.clone();
    let fields = change.fields();
    let password = match change.password {
        Some(password) => Some(hash(call, password).await?),
        None => None,
    };
    let patch = UserPatch {
        password,
        userid: change.userid,
        superuser: change.superuser,
        admin: change.admin,
        disabled: change.disabled,
    };
    call.change("user_changed", fields, Command::Update { username: username.clone(), patch }).await?;
    // Somebody may have deleted the user in between; then that is what there is to tell.
    let user = call.user(username.as_str())?.ok_or_else(ApiError::no_such_user)?;
    Reply::json(&UserView::from(&*user))
}

/// Delete a user
///
/// Ends all sessions of the user on all nodes, offline ones with their queues; no Will is sent.
#[endpoint(
    operation_id = "delete_user", tags("users"),
    parameters(("username" = String, Path, description = "percent-encoded")),
    responses((status_code = 204, description = "deleted"))
)]
pub(crate) async fn delete_user(depot: &mut Depot) -> Answer {
    let call = Call::of(depot)?;
    // What cannot be a username is nobody's.
    let username = Username::new(&call.parameter).map_err(|_| ApiError::no_such_user())?;
    call.change("user_deleted", String::new(), Command::Delete { username }).await?;
    Ok(Reply::no_content())
}
