//! `ciqadamq users`.

use ciqadamq_core::Username;
use reqwest::Method;
use serde_json::{Map, Value, json};

use super::api::{Api, encode};
use super::{Done, Failure, password};
use crate::cli::{SetArgs, UsersCommand};

/// Users of one answer.
const PAGE: usize = 1000;

pub(super) async fn run(api: &Api, command: &UsersCommand, as_json: bool) -> Result<Done, Failure> {
    match command {
        UsersCommand::Add { username, userid, superuser, admin, password } => {
            let password = password::read(password)?;
            let body = json!({
                "username": username, "userid": userid, "password": password, "superuser": superuser, "admin": admin,
            });
            let answer = api.call(Method::POST, "/api/v1/users", Some(&body)).await?;
            Ok(shown(as_json, &answer, || format!("created {username} (userid {userid})")))
        }
        UsersCommand::List { userid } => list(api, userid.as_deref(), as_json).await,
        UsersCommand::Show { username } => {
            let user = api.call(Method::GET, &path(username)?, None).await?;
            Ok(shown(as_json, &user, || fields(&user)))
        }
        UsersCommand::Set(args) => {
            let answer = api.call(Method::PATCH, &path(&args.username)?, Some(&patch(args)?)).await?;
            Ok(shown(as_json, &answer, || format!("changed {}", args.username)))
        }
        UsersCommand::Delete { username } => {
            let answer = api.call(Method::DELETE, &path(username)?, None).await?;
            Ok(shown(as_json, &answer, || format!("deleted {username}")))
        }
    }
}

/// The path of a user. A name that cannot exist is refused here: `..` would be resolved away and mean something else.
fn path(username: &str) -> Result<String, Failure> {
    let name = Username::new(username).map_err(|error| Failure::Usage(format!("user name `{username}` {error}")))?;
    Ok(format!("/api/v1/users/{}", encode(name.as_str())))
}

fn patch(args: &SetArgs) -> Result<Value, Failure> {
    let mut patch = Map::new();
    if args.password || args.source.is_given() {
        patch.insert("password".into(), password::read(&args.source)?.into());
    }
    if let Some(userid) = &args.userid {
        patch.insert("userid".into(), userid.as_str().into());
    }
    for (field, value) in [("superuser", args.superuser), ("admin", args.admin), ("disabled", args.disabled)] {
        if let Some(value) = value {
            patch.insert(field.into(), value.into());
        }
    }
    if patch.is_empty() {
        return Err(Failure::Usage("nothing to change; see `ciqadamq users set --help`".into()));
    }
    Ok(patch.into())
}

/// Reads page after page, so that no node has to answer with everything at once.
async fn list(api: &Api, userid: Option<&str>, as_json: bool) -> Result<Done, Failure> {
    let mut users: Vec<Value> = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let mut query = format!("/api/v1/users?limit={PAGE}");
        for (name, value) in [("userid", userid), ("after", after.as_deref())] {
            if let Some(value) = value {
                query.push_str(&format!("&{name}={}", encode(value)));
            }
        }
        let mut page = api.call(Method::GET, &query, None).await?;
        let Some(found) = page["users"].as_array_mut() else {
            return Err(Failure::Refused("the node does not answer with a list of users; check --api".into()));
        };
        users.append(found);
        match page["next"].as_str() {
            // A node that does not move on would be asked for ever.
            Some(next) if after.as_deref() != Some(next) => after = Some(next.to_owned()),
            _ => break,
        }
    }
    Ok(shown(as_json, &json!({ "users": users }), || table(&users)))
}

fn shown(as_json: bool, answer: &Value, human: impl FnOnce() -> String) -> Done {
    if as_json { answer.to_string().into() } else { human().into() }
}

fn fields(user: &Value) -> String {
    let Some(fields) = user.as_object() else { return user.to_string() };
    let width = fields.keys().map(String::len).max().unwrap_or(0);
    let line = |(name, value): (&String, &Value)| format!("{name:width$}  {}", plain(value));
    fields.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn table(users: &[Value]) -> String {
    let rows: Vec<[String; 3]> = users
        .iter()
        .map(|user| {
            let flags = ["superuser", "admin", "disabled"].into_iter().filter(|flag| user[flag] == true);
            [plain(&user["username"]), plain(&user["userid"]), flags.collect::<Vec<_>>().join(", ")]
        })
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (first, second) = (width(0).max(8), width(1).max(6));
    let head = ["USERNAME".to_owned(), "USERID".to_owned(), "FLAGS".to_owned()];
    let line = |row: &[String; 3]| format!("{:first$}  {:second$}  {}", row[0], row[1], row[2]).trim_end().to_owned();
    std::iter::once(&head).chain(&rows).map(line).collect::<Vec<_>>().join("\n")
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn every_possible_name_is_one_segment_of_the_path_and_others_are_refused() {
        assert_eq!(path("a+b&=;~").unwrap(), "/api/v1/users/a%2Bb%26%3D%3B~");
        for bad in ["", ".", "..", "a/b", "a?b", "a#b", "%2e"] {
            assert!(matches!(path(bad), Err(Failure::Usage(_))), "{bad}");
        }
    }

    #[test]
    fn users_are_shown_as_a_table_with_their_flags() {
        let users = [
            json!({ "username": "a-long-name", "userid": "u", "superuser": true, "admin": true, "disabled": false }),
            json!({ "username": "b", "userid": "u2", "superuser": false, "admin": false }),
        ];
        let wanted = "USERNAME     USERID  FLAGS\na-long-name  u       superuser, admin\nb            u2";
        assert_eq!(table(&users), wanted);
    }
}
