//! `ciqadamq cluster`.

use reqwest::Method;
use serde_json::{Value, json};

use super::api::Api;
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

/// The node that answered, in its own view.
fn this_node(view: &Value) -> &Value {
    let nodes = view["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    nodes.iter().find(|node| node["id"] == view["node"]).unwrap_or(&Value::Null)
}

fn shown(view: &Value) -> String {
    let this = this_node(view);
    let mut lines =
        vec![format!("node {}: {}", plain(&this["id"]), if this["ready"] == true { "ready" } else { "NOT READY" })];
    for (name, condition) in this["conditions"].as_object().into_iter().flatten().filter(|(_, c)| **c != "met") {
        lines.push(format!("  {name}: {}", plain(condition)));
    }
    let users = &this["users"];
    lines.push(format!("users: {}, last change {}", plain(&users["count"]), plain(&users["revision"])));
    if let Some(reason) = users["read_only"].as_str() {
        lines.push(format!("  no changes are taken: {reason}"));
    }
    for (name, raft) in this["rafts"].as_object().into_iter().flatten() {
        lines.push(format!(
            "{name}: {}, leader {}, term {}, log {}, applied {}",
            plain(&raft["role"]),
            plain(&raft["leader"]),
            plain(&raft["term"]),
            plain(&raft["last_log_index"]),
            plain(&raft["applied_index"]),
        ));
        if let Some(problem) = raft["problem"].as_str() {
            lines.push(format!("  {problem}"));
        }
        lines.push(format!("  voters {}, learners {}", list(&raft["voters"]), list(&raft["learners"])));
        for peer in raft["peers"].as_array().into_iter().flatten() {
            let reach = match peer["reachable"].as_bool() {
                Some(true) => "reachable",
                Some(false) => "NOT REACHABLE",
                None => "not called yet",
            };
            let lag = peer["lag"].as_u64().map_or_else(String::new, |lag| format!(", {lag} entries behind"));
            lines.push(format!("  node {} at {}: {reach}{lag}", plain(&peer["id"]), plain(&peer["url"])));
        }
    }
    lines.join("\n")
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn list(ids: &Value) -> String {
    let ids: Vec<String> = ids.as_array().into_iter().flatten().map(ToString::to_string).collect();
    if ids.is_empty() { "none".into() } else { ids.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_shows_what_an_operator_has_to_act_on() {
        let view = json!({"node": 1, "nodes": [{
            "id": 1, "ready": false, "conditions": {"listeners": "met", "users": "catching up"},
            "users": {"count": 3, "revision": 9, "read_only": "no member of the cluster leads now"},
            "rafts": {"users": {
                "role": "leader", "leader": 1, "term": 2, "last_log_index": 12, "applied_index": 11, "problem": null,
                "voters": [1, 2], "learners": [],
                "peers": [{"id": 2, "url": "http://n2:8090", "reachable": false, "lag": 4}],
            }},
        }]});
        let text = shown(&view);
        for wanted in [
            "node 1: NOT READY\n  users: catching up",
            "users: 3, last change 9\n  no changes are taken: no member of the cluster leads now",
            "users: leader, leader 1, term 2, log 12, applied 11",
            "voters 1, 2, learners none",
            "node 2 at http://n2:8090: NOT REACHABLE, 4 entries behind",
        ] {
            assert!(text.contains(wanted), "{wanted}\nnot in\n{text}");
        }
    }
}
