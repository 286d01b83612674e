//! The cluster as text: what `ciqadamq cluster status` prints.

use serde_json::Value;

/// The node that answered, in its own view.
pub(super) fn this_node(view: &Value) -> &Value {
    let nodes = view["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    nodes.iter().find(|node| node["id"] == view["node"]).unwrap_or(&Value::Null)
}

/// A table of the nodes, then what they replicate.
pub(super) fn shown(view: &Value) -> String {
    let nodes = view["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    let mut lines = table(view, nodes);
    for (name, raft) in this_node(view)["rafts"].as_object().into_iter().flatten() {
        lines.push(String::new());
        lines.extend(raft_lines(name, raft, nodes));
    }
    lines.join("\n")
}

/// A line for each node, and below it what is not as it should be.
fn table(view: &Value, nodes: &[Value]) -> Vec<String> {
    let rows = nodes.iter().map(|node| {
        let mark = if node["id"] == view["node"] { " (asked)" } else { "" };
        let up = node["uptime_secs"].as_u64().map(uptime);
        [
            format!("{}{mark}", node["id"]),
            known(&node["role"]),
            verdict(node).to_owned(),
            known(&node["users"]["count"]),
            known(&node["users"]["revision"]),
            up.unwrap_or_else(|| "-".into()),
            known(&node["version"]),
        ]
    });
    let head = ["NODE", "ROLE", "STATE", "USERS", "CHANGE", "UP", "VERSION"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    let widths: Vec<usize> = (0..7).map(|at| rows.iter().map(|row| row[at].len()).max().unwrap_or(0)).collect();
    let line = |row: &[String; 7]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut lines = vec![line(&rows[0])];
    for (row, node) in rows[1..].iter().zip(nodes) {
        lines.push(line(row));
        lines.extend(troubles(node).into_iter().map(|trouble| format!("  {trouble}")));
    }
    lines
}

fn verdict(node: &Value) -> &'static str {
    match (node["reachable"].as_bool(), node["ready"].as_bool()) {
        (Some(false), _) => "NOT REACHABLE",
        (_, Some(true)) => "ready",
        (_, Some(false)) => "NOT READY",
        (_, None) => "UNKNOWN",
    }
}

/// What somebody may have to look at.
fn troubles(node: &Value) -> Vec<String> {
    let mut found: Vec<String> = node["error"].as_str().map(str::to_owned).into_iter().collect();
    let conditions = node["conditions"].as_object().into_iter().flatten();
    found.extend(
        conditions.filter(|(_, state)| **state != "met").map(|(name, state)| format!("{name}: {}", plain(state))),
    );
    if let Some(reason) = node["users"]["read_only"].as_str() {
        found.push(format!("takes no changes of users: {reason}"));
    }
    let plugins = node["plugins"].as_array().into_iter().flatten();
    let stopped: Vec<String> = plugins
        .filter(|plugin| plugin["active"] == false && plugin["version"].is_string())
        .map(|plugin| plain(&plugin["name"]))
        .collect();
    if !stopped.is_empty() {
        found.push(format!("stopped: {}", stopped.join(", ")));
    }
    found
}

/// Who leads and who votes as the asked node sees it; how far each node is, as it says itself.
fn raft_lines(name: &str, raft: &Value, nodes: &[Value]) -> Vec<String> {
    let leader = match &raft["leader"] {
        Value::Null => "nobody leads".to_owned(),
        node => format!("node {node} leads"),
    };
    let mut lines = vec![format!(
        "{name}: {leader}{}, voters {}, learners {}",
        said(", term ", &raft["term"]),
        list(&raft["voters"]),
        list(&raft["learners"])
    )];
    lines.extend(raft["problem"].as_str().map(|problem| format!("  {problem}")));
    for node in nodes {
        let own = &node["rafts"][name];
        if own.is_null() {
            continue;
        }
        let mut text = format!("  node {}: {}", node["id"], plain(&own["role"]));
        text += &said(", log ", &own["last_log_index"]);
        text += &said(", applied ", &own["applied_index"]);
        if own["leader"] != raft["leader"] {
            text += &format!(", follows {}", own["leader"].as_u64().map_or("nobody".into(), |id| format!("node {id}")));
            text += &said(" in term ", &own["term"]);
        }
        lines.push(text);
    }
    for peer in raft["peers"].as_array().into_iter().flatten() {
        let lag = peer["lag"].as_u64().filter(|lag| *lag > 0).map(|lag| format!("{lag} entries behind"));
        let silent = (peer["reachable"] == false).then(|| "did not answer the last call".to_owned());
        let parts: Vec<String> = lag.into_iter().chain(silent).collect();
        if !parts.is_empty() {
            lines.push(format!("  node {}: {}", peer["id"], parts.join(", ")));
        }
    }
    lines
}

fn uptime(secs: u64) -> String {
    match secs {
        0..=119 => format!("{secs}s"),
        120..=7199 => format!("{}m", secs / 60),
        7200..=172_799 => format!("{}h", secs / 3600),
        _ => format!("{}d", secs / 86_400),
    }
}

/// A cell of the table.
fn known(value: &Value) -> String {
    if value.is_null() { "-".into() } else { plain(value) }
}

/// A part of a line, left out if the value is not known.
fn said(before: &str, value: &Value) -> String {
    if value.is_null() { String::new() } else { format!("{before}{}", plain(value)) }
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
    use serde_json::json;

    use super::*;

    fn node(id: u64, role: &str, ready: bool, index: u64) -> Value {
        json!({
            "id": id, "url": format!("http://n{id}:8090"), "reachable": true, "error": null, "role": role,
            "version": "2.0.0", "uptime_secs": 300, "ready": ready,
            "conditions": {"listeners": "met", "users": if ready { "met" } else { "catching up" }},
            "plugins": [{"name": "on", "version": "1", "active": true}, {"name": "never started", "version": null, "active": false}],
            "users": {"count": 3, "revision": index, "read_only": null},
            "rafts": {"users": {
                "role": role, "leader": 1, "term": 2, "last_log_index": index, "applied_index": index, "problem": null,
                "voters": [1, 2, 3], "learners": [], "peers": [],
            }},
        })
    }

    #[test]
    fn the_status_shows_what_an_operator_has_to_act_on() {
        let mut asked = node(1, "leader", true, 12);
        asked["rafts"]["users"]["peers"] =
            json!([{"id": 2, "reachable": true, "lag": 0}, {"id": 3, "reachable": false, "lag": 4}]);
        asked["rafts"]["routes"] = json!({"role": "follower", "leader": null, "term": null, "voters": [1], "learners": [],
            "problem": "no leader: a quorum of the nodes does not answer", "peers": []});
        let mut behind = node(2, "follower", false, 9);
        behind["users"]["read_only"] = json!("no member of the cluster leads now");
        behind["rafts"]["users"]["leader"] = json!(3);
        behind["plugins"][0]["active"] = json!(false);
        let dead = json!({"id": 3, "url": "http://n3:8090", "reachable": false, "error": "not reachable: refused"});
        let view = json!({"node": 1, "nodes": [asked, behind, dead]});
        let text = shown(&view);
        let wanted = "\
NODE       ROLE      STATE          USERS  CHANGE  UP  VERSION
1 (asked)  leader    ready          3      12      5m  2.0.0
2          follower  NOT READY      3      9       5m  2.0.0
  users: catching up
  takes no changes of users: no member of the cluster leads now
  stopped: on
3          -         NOT REACHABLE  -      -       -   -
  not reachable: refused

routes: nobody leads, voters 1, learners none
  no leader: a quorum of the nodes does not answer
  node 1: follower

users: node 1 leads, term 2, voters 1, 2, 3, learners none
  node 1: leader, log 12, applied 12
  node 2: follower, log 9, applied 9, follows node 3 in term 2
  node 3: 4 entries behind, did not answer the last call";
        assert_eq!(text, wanted, "\n{text}");
    }
}
