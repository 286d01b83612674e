//! How a cluster begins, and how a node learns that it has caught up. One task, for as long as the process runs.
//!
//! **Forming.** Only the founder forms a cluster, only with all configured nodes, and only when each of them says that it
//! has no users yet. So no two nodes ever form one, a founder that lost its disk does not begin anew beside the others,
//! and a node that comes late is taken in by an operator.
//!
//! **Catching up.** A node lets nobody log in before it has applied everything that was acknowledged up to a moment after
//! its start. The leader says up to where that is, after a quorum has confirmed that it leads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ciqadamq_core::{NodeId, Reachability};
use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use super::node::{Node, is_leader};
use super::service::{hello, read_index};
use super::types::{Call, Hello, Member, ReadIndexError, Reply};

/// Time for a node to say who it is.
const HELLO: Duration = Duration::from_secs(1);
/// Time for the leader to ask its quorum, and to apply what is missing, before both are tried again.
const READ_INDEX: Duration = Duration::from_secs(2);
const APPLY: Duration = Duration::from_secs(5);
/// How long a leader with a quorum is looked for by who wants to know the latest. Longer than an election.
const LEADER_WAIT: Duration = Duration::from_secs(5);
/// Pause between tries, and between looks at a running cluster.
const TRY_EVERY: Duration = Duration::from_millis(200);
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often a node that serves asks whether it knows everything, while it hears of a leader. It is a call for each member.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Runs for ever.
pub(crate) async fn run(node: Arc<Node>) {
    loop {
        let mut said = None;
        node.take_missed();
        while let Err(reason) = catch_up(&node).await {
            if said.as_ref() != Some(&reason) {
                tracing::info!(%reason, "users: not ready");
                said = Some(reason.clone());
            }
            node.set_caught_up(Err(reason));
            sleep(TRY_EVERY).await;
        }
        announce(&node).await;
        node.set_caught_up(Ok(()));
        if let Some(reason) = node.take_missed() {
            // While it caught up.
            node.set_caught_up(Err(reason));
            continue;
        }
        tracing::info!(members = ?node.members().keys().collect::<Vec<_>>(), "users: caught up");
        let reason = keep_looking(&node).await;
        tracing::error!(%reason, "users: this node serves no logins any more");
        node.set_caught_up(Err(reason));
        sleep(LOOK_EVERY).await;
    }
}

async fn catch_up(node: &Node) -> Result<(), String> {
    node.raft()?;
    if node.members().is_empty() {
        return form(node).await;
    }
    if let Some(reason) = not_the_only_one(node).await {
        return Err(reason);
    }
    apply_all(node).await
}

/// Waits until this node has applied all that was acknowledged before.
async fn apply_all(node: &Node) -> Result<(), String> {
    let index = read_index_from_leader(node).await.map_err(|error| match error {
        ReadIndexError::NotMember => not_a_member(node),
        ReadIndexError::NoQuorum => "a quorum of the members cannot be reached".into(),
        ReadIndexError::NotLeader => "no member of the cluster leads now; a quorum of them must be up".into(),
    })?;
    apply_up_to(node, index).await
}

async fn apply_up_to(node: &Node, index: u64) -> Result<(), String> {
    let mut applied = node.progress.applied();
    let waited = timeout(APPLY, applied.wait_for(|last| last.is_some_and(|last| last.index >= index))).await;
    match waited {
        Ok(Ok(_)) => Ok(()),
        _ => {
            let at = node.progress.applied().borrow().map_or(0, |last| last.index);
            Err(format!("catching up: entry {at} of {index} is applied"))
        }
    }
}

/// The same, with some patience for a new leader.
pub(crate) async fn up_to_date(node: &Node) -> Result<(), String> {
    let until = Instant::now() + LEADER_WAIT;
    loop {
        match apply_all(node).await {
            Err(_) if Instant::now() < until => sleep(TRY_EVERY).await,
            outcome => return outcome,
        }
    }
}

async fn read_index_from_leader(node: &Node) -> Result<u64, ReadIndexError> {
    let metrics = node.metrics().ok_or(ReadIndexError::NotLeader)?;
    if is_leader(&metrics) {
        // It is a member as long as it leads.
        return read_index(node, (node.id(), node.incarnation())).await.map_err(|_| ReadIndexError::NoQuorum);
    }
    // Whoever was taken out does not hear of the leader any more: the others know.
    let mut asked = node.other_members();
    if let Some(leader) = metrics.current_leader {
        asked.retain(|id, _| *id == leader);
    }
    let answers = join_all(asked.into_iter().map(|(id, member)| async move {
        let reply = node.network.call(id, Some(member.incarnation), Call::ReadIndex, READ_INDEX).await;
        match reply {
            Ok(Reply::ReadIndex(result)) => Some(result),
            _ => None,
        }
    }));
    let mut worst = ReadIndexError::NotLeader;
    for answer in answers.await.into_iter().flatten() {
        match answer {
            Ok(index) => return Ok(index),
            Err(ReadIndexError::NotMember) => return Err(ReadIndexError::NotMember),
            Err(ReadIndexError::NoQuorum) => worst = ReadIndexError::NoQuorum,
            Err(ReadIndexError::NotLeader) => {}
        }
    }
    Err(worst)
}

/// Whether another configured node has users of its own, though this one believes to be the only member.
async fn not_the_only_one(node: &Node) -> Option<String> {
    if !node.config.is_clustered() || node.members().len() > 1 {
        return None;
    }
    let mine = (node.id(), node.incarnation());
    let other = greet(node)
        .await
        .into_values()
        .flatten()
        .find(|hello| !hello.members.is_empty() && !hello.members.contains(&mine))?;
    Some(format!(
        "node {} has a user directory of its own; decide which one to keep, move the data directory of the other node \
         aside, and take it in (ciqadamq cluster add)",
        other.node
    ))
}

/// Asks all other configured nodes who they are; `None` for those that do not answer.
async fn greet(node: &Node) -> BTreeMap<NodeId, Option<Hello>> {
    let others = node.config.nodes.keys().copied().filter(|id| *id != node.id());
    let greeted = others.map(|id| async move {
        match node.network.call(id, None, Call::Hello, HELLO).await {
            Ok(Reply::Hello(hello)) => (id, Some(hello)),
            _ => (id, None),
        }
    });
    join_all(greeted).await.into_iter().collect()
}

async fn form(node: &Node) -> Result<(), String> {
    let greeted = greet(node).await;
    let me = node.id();
    for hello in greeted.values().flatten() {
        match hello.members.iter().find(|(id, _)| *id == me) {
            Some((_, incarnation)) if *incarnation == node.incarnation() => {
                return Err("waiting for the leader's first call".into());
            }
            Some(_) => {
                return Err(format!(
                    "this node was a member and has lost its data; take it out and in again, on another node: \
                     ciqadamq cluster remove {me}, then ciqadamq cluster add {me} {}",
                    node.config.nodes.get(&me).map_or("URL", String::as_str)
                ));
            }
            None if !hello.members.is_empty() => return Err(not_a_member(node)),
            None => {}
        }
    }
    let missing: Vec<NodeId> = greeted.iter().filter(|(_, hello)| hello.is_none()).map(|(id, _)| *id).collect();
    if !missing.is_empty() {
        return Err(format!("waiting for all nodes to form the cluster; not reached: {missing:?}"));
    }
    if let Some((id, hello)) = greeted.iter().find_map(|(id, h)| h.as_ref().filter(|h| h.node != *id).map(|h| (id, h)))
    {
        return Err(format!("at the address of node {id} answers node {}; correct cluster.node_api_addrs", hello.node));
    }
    if me != node.config.founder {
        return Err(format!("waiting for node {} to form the cluster", node.config.founder));
    }
    let greeted = greeted.into_values().flatten().chain([hello(node)]);
    let members: BTreeMap<NodeId, Member> = greeted
        .map(|hello| {
            let url = node.config.nodes.get(&hello.node).cloned().unwrap_or_default();
            (hello.node, Member { url, incarnation: hello.incarnation })
        })
        .collect();
    tracing::info!(members = ?members.keys().collect::<Vec<_>>(), "users: forming the cluster");
    node.raft()?.initialize(members).await.map_err(|e| format!("the cluster is not formed: {e}"))?;
    Err("electing a leader".into())
}

fn not_a_member(node: &Node) -> String {
    let me = node.id();
    let url = node.config.nodes.get(&me).map_or("URL", String::as_str);
    match node.members().is_empty() {
        true => format!("this node is no member yet; take it in, on another node: ciqadamq cluster add {me} {url}"),
        false => format!(
            "this node was taken out of the cluster; to take it in again, move its data directory aside, start it, and \
             on another node: ciqadamq cluster add {me} {url}"
        ),
    }
}

/// Tells the others that this node is back, so that they wait for it again when a user changes.
async fn announce(node: &Node) {
    let told = node.other_members().into_iter().map(|(id, member)| async move {
        // Whoever does not hear it finds out by itself.
        let _ = node.network.call(id, Some(member.incarnation), Call::Announce, HELLO).await;
    });
    join_all(told).await;
}

/// Calls members that were not reached, so that their return is noticed; ends with why this node must not serve.
async fn keep_looking(node: &Node) -> String {
    let mut asked = Instant::now();
    loop {
        sleep(LOOK_EVERY).await;
        if let Some(reason) = node.take_missed() {
            return reason;
        }
        // Whoever was taken out, or does not get what the others agree on, is not told.
        let is_leaderless = node.metrics().is_none_or(|metrics| metrics.current_leader.is_none());
        if is_leaderless || asked.elapsed() >= ASK_EVERY {
            asked = Instant::now();
            if let Some(reason) = is_behind(node).await {
                return reason;
            }
        }
        let unreached = node
            .other_members()
            .into_iter()
            .filter(|(id, _)| matches!(node.network.peers.reachability(*id), Reachability::Unreachable { .. }));
        let called = unreached.map(|(id, member)| async move {
            // What it says is noted where calls are made.
            let _ = node.network.call(id, Some(member.incarnation), Call::Hello, HELLO).await;
        });
        join_all(called).await;
        if !node.members().contains_key(&node.id()) {
            return not_a_member(node);
        }
        if let Some(reason) = not_the_only_one(node).await {
            return reason;
        }
    }
}

/// Why this node must not go on with what it knows, if a quorum says that there is more, or that it is none of them. Without a
/// quorum nobody changes anything.
async fn is_behind(node: &Node) -> Option<String> {
    match read_index_from_leader(node).await {
        Ok(index) => apply_up_to(node, index).await.err(),
        Err(ReadIndexError::NotMember) => Some(not_a_member(node)),
        Err(ReadIndexError::NoQuorum | ReadIndexError::NotLeader) => None,
    }
}
