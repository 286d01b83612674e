//! `ciqadamq cluster`.

use reqwest::Method;
use serde_json::json;

use super::api::Api;
use super::status::{shown, this_node};
use super::{Done, Failure};
use crate::cli::ClusterCommand;

const MEMBERS: &str = "/api/v1/cluster/members";

pub(super) async fn run(api: &Api, command: &ClusterCommand, as_json: bool) -> Result<Done, Failure> {
    match command {
        ClusterCommand::Status => {
            let view = api.call(Method::GET, "/api/v1/cluster", None).await?;
            let this = this_node(&view);
            let text = if as_json { view.to_string() } else { shown(&view) };
            Ok(Done { text, yes: this["users"]["read_only"].is_null() && this["ready"] == true })
        }
        ClusterCommand::Add { id, url } => {
            let answer = api.call(Method::POST, MEMBERS, Some(&json!({ "id": id, "url": url }))).await?;
            Ok(if as_json { answer.to_string() } else { format!("node {id} is a member and votes") }.into())
        }
        ClusterCommand::Remove { id } => {
            let answer = api.call(Method::DELETE, &format!("{MEMBERS}/{id}"), None).await?;
            Ok(if as_json { answer.to_string() } else { format!("node {id} is no member any more") }.into())
        }
    }
}
