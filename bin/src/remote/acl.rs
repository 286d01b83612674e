//! `ciqadamq acl check`.

use reqwest::Method;
use serde_json::{Value, json};

use super::api::Api;
use super::{Done, Failure};
use crate::cli::AclCommand;

pub(super) async fn run(api: &Api, command: &AclCommand, as_json: bool) -> Result<Done, Failure> {
    let AclCommand::Check { username, action, topic, clientid } = command;
    let mut body = json!({ "username": username, "action": action.as_str(), "topic": topic });
    if let Some(clientid) = clientid {
        body["clientid"] = clientid.as_str().into();
    }
    let answer = api.call(Method::POST, "/api/v1/acl/check", Some(&body)).await?;
    let allowed = answer["allowed"]
        .as_bool()
        .ok_or_else(|| Failure::Refused("the node does not answer with a verdict; check --api".into()))?;
    let text = if as_json { answer.to_string() } else { human(allowed, &answer) };
    Ok(Done { text, yes: allowed })
}

fn human(allowed: bool, answer: &Value) -> String {
    let why = ["reason", "rule"].into_iter().find_map(|field| answer[field].as_str());
    let verdict = if allowed { "allowed" } else { "refused" };
    why.map_or_else(|| verdict.into(), |why| format!("{verdict}: {why}"))
}
