//! Nodes taken in and out. Any member takes the order and hands it to the leader.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ciqadamq_core::{MembersError, NodeId};
use openraft::ChangeMembers;
use openraft::error::ClientWriteError;
use tokio::time::{Instant, sleep, timeout};

use super::node::{Node, is_leader};
use super::types::{Call, ChangeError, Incarnation, Member, Raft, RaftError, Reply};

/// Time for the new node to say who it is.
const HELLO: Duration = Duration::from_secs(2);
/// How long a new node may take to catch up before the order is answered; repeating it goes on from there.
const CATCH_UP: Duration = Duration::from_secs(10);
/// How long a change of the members may take to be agreed on.
const AGREE: Duration = Duration::from_secs(5);
/// For a leader to be elected, when none leads.
const LEADER_WAIT: Duration = Duration::from_secs(5);
/// For the whole, when another node leads. Shorter than the time limit of a request.
const FORWARDED: Duration = Duration::from_secs(18);
/// Entries behind the leader at which a node counts as caught up.
const CLOSE: u64 = 16;

pub(crate) async fn add(node: &Arc<Node>, id: NodeId, url: &str) -> Result<(), MembersError> {
    let until = Instant::now() + FORWARDED;
    match leader(node).await? {
        None => add_as_leader(node, id, url).await.map_err(Into::into),
        Some(leader) => forward(node, leader, Call::AddMember(id, url.to_owned()), until).await,
    }
}

pub(crate) async fn remove(node: &Arc<Node>, id: NodeId) -> Result<(), MembersError> {
    let until = Instant::now() + FORWARDED;
    match leader(node).await? {
        None => remove_as_leader(node, id).await.map_err(Into::into),
        Some(leader) => forward(node, leader, Call::RemoveMember(id), until).await,
    }
}

/// The node that leads; `None`: this one. Waits for an election that goes on: one follows every start.
async fn leader(node: &Node) -> Result<Option<NodeId>, MembersError> {
    let raft = node.raft().map_err(MembersError::Unavailable)?;
    let mut metrics = raft.metrics();
    let known = metrics.wait_for(|metrics| metrics.current_leader.is_some());
    let leader = match timeout(LEADER_WAIT, known).await {
        Ok(Ok(metrics)) => metrics.current_leader,
        Ok(Err(_)) | Err(_) => None,
    };
    let leader = leader.ok_or_else(|| {
        MembersError::Unavailable("no member of the cluster leads now; a quorum of them must be up".into())
    })?;
    Ok(Some(leader).filter(|leader| *leader != node.id()))
}

async fn forward(node: &Node, leader: NodeId, call: Call, until: Instant) -> Result<(), MembersError> {
    let incarnation = node.member(leader).map(|member| member.incarnation);
    let left = until.saturating_duration_since(Instant::now());
    match node.network.call(leader, incarnation, call, left).await {
        Ok(Reply::Members(result)) => result.map_err(Into::into),
        Ok(_) => Err(MembersError::Unavailable(format!("node {leader} answers something else"))),
        Err(error) => Err(MembersError::Unavailable(format!(
            "node {leader}, which leads: {error}; look at `ciqadamq cluster status` before trying again"
        ))),
    }
}

impl From<ChangeError> for MembersError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Refused(text) => Self::Refused(text),
            ChangeError::Unavailable(text) => Self::Unavailable(text),
        }
    }
}

fn refused<T>(text: String) -> Result<T, ChangeError> {
    Err(ChangeError::Refused(text))
}

pub(crate) async fn add_as_leader(node: &Node, id: NodeId, url: &str) -> Result<(), ChangeError> {
    // One at a time; a second one is told, not queued.
    let Ok(_one) = node.changing.try_lock() else {
        return Err(ChangeError::Unavailable("the members are being changed already; try again".into()));
    };
    may_be_called(node, id, url)?;
    let hello = match node.network.call_at(url, Call::Hello, HELLO).await {
        Ok(Reply::Hello(hello)) => hello,
        Ok(_) => return refused(format!("at {url} answers something else than a node")),
        Err(error) => return Err(ChangeError::Unavailable(format!("the node at {url}: {error}"))),
    };
    if hello.node != id {
        return refused(format!("at {url} answers node {}, not node {id}; check cluster.node_id there", hello.node));
    }
    let known = node.member(id);
    match &known {
        Some(member) if member.incarnation == hello.incarnation => {}
        Some(_) => {
            return refused(format!(
                "node {id} is a member with another data directory; take it out first: ciqadamq cluster remove {id}"
            ));
        }
        None if !hello.members.is_empty() => {
            return refused(format!(
                "node {id} has a user directory of its own, which would be lost; move its data directory aside, start it \
                 again, and repeat this"
            ));
        }
        None => {}
    }
    let raft = node.raft().map_err(ChangeError::Unavailable)?;
    if known.is_none() {
        let member = Member { url: url.to_owned(), incarnation: hello.incarnation };
        let change = ChangeMembers::AddNodes(BTreeMap::from([(id, member)]));
        agreed(raft.change_membership(change, true)).await?;
    }
    catch_up(&raft, id, hello.incarnation).await?;
    if raft.metrics().borrow().membership_config.voter_ids().any(|voter| voter == id) {
        return Ok(());
    }
    agreed(raft.change_membership(ChangeMembers::AddVoterIds(BTreeSet::from([id])), true)).await
}

/// The nodes' credential opens the password hashes, and whoever may change members need not have it: it is sent only to
/// where the configuration says that a node is.
fn may_be_called(node: &Node, id: NodeId, url: &str) -> Result<(), ChangeError> {
    match node.config.nodes.get(&id) {
        Some(configured) if configured.trim_end_matches('/') == url.trim_end_matches('/') => Ok(()),
        Some(configured) => refused(format!(
            "node {id} is configured at {configured}; give that address, or correct cluster.node_api_addrs"
        )),
        None if !node.config.is_clustered() => {
            refused("this node is configured to be alone; set cluster.enabled and list all nodes".into())
        }
        None => refused(format!(
            "node {id} is not in the configuration of node {}; list it in [cluster] on all nodes, and restart them one by one",
            node.id()
        )),
    }
}

async fn catch_up(raft: &Raft, id: NodeId, incarnation: Incarnation) -> Result<(), ChangeError> {
    let until = Instant::now() + CATCH_UP;
    loop {
        let (last, matched) = {
            let metrics = raft.metrics();
            let metrics = metrics.borrow();
            let Some(replication) = &metrics.replication else {
                return Err(ChangeError::Unavailable("the leader changed; repeat this".into()));
            };
            let is_same = metrics
                .membership_config
                .membership()
                .get_node(&id)
                .is_some_and(|member| member.incarnation == incarnation);
            let matched = replication.get(&id).copied().flatten().map(|log_id| log_id.index);
            (metrics.last_log_index.unwrap_or(0), matched.filter(|_| is_same))
        };
        if matched.is_some_and(|matched| matched + CLOSE >= last) {
            return Ok(());
        }
        if Instant::now() >= until {
            let at = matched.map_or("nothing".into(), |matched| format!("entry {matched} of {last}"));
            return Err(ChangeError::Unavailable(format!(
                "node {id} is catching up, it has {at}; repeat this in a while"
            )));
        }
        sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) async fn remove_as_leader(node: &Node, id: NodeId) -> Result<(), ChangeError> {
    let Ok(_one) = node.changing.try_lock() else {
        return Err(ChangeError::Unavailable("the members are being changed already; try again".into()));
    };
    if node.member(id).is_none() {
        return refused(format!("node {id} is no member"));
    }
    let raft = node.raft().map_err(ChangeError::Unavailable)?;
    let voters: BTreeSet<NodeId> = raft.metrics().borrow().membership_config.voter_ids().collect();
    if voters.len() == 1 && voters.contains(&id) {
        return refused(format!("node {id} is the only member that votes; without it there would be no users"));
    }
    if !node.metrics().as_ref().is_some_and(is_leader) {
        return Err(ChangeError::Unavailable("the leader changed; try again".into()));
    }
    let ids = BTreeSet::from([id]);
    let change = if voters.contains(&id) { ChangeMembers::RemoveVoters(ids) } else { ChangeMembers::RemoveNodes(ids) };
    agreed(raft.change_membership(change, false)).await
}

/// Waits until a quorum has a change of the members, with a limit.
async fn agreed<T>(
    change: impl Future<Output = Result<T, RaftError<ClientWriteError<NodeId, Member>>>>,
) -> Result<(), ChangeError> {
    match timeout(AGREE, change).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(ChangeError::Unavailable(format!("the members could not be changed now: {error}"))),
        Err(_) => Err(ChangeError::Unavailable(
            "no quorum of the members has agreed in time; look at `ciqadamq cluster status` before trying again".into(),
        )),
    }
}
