//! From a change to its outcome.
//!
//! What waits is taken as one batch, proposed to the leader, and answered with what it did here. A batch that may or may
//! not have got into the log is followed until this node has seen either it, or an entry of a later reign: then it never
//! will have an effect, and is proposed again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ciqadamq_core::{Applied, Command, ExecuteError, NodeId, PeerError, Reachability};
use futures::future::join_all;
use openraft::RaftMetrics;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::node::Node;
use super::service;
use super::types::{Batch, BatchId, Call, Member, Outcome, ProposeError, Reached, Reign, Reply};

/// Changes that may wait; one more is refused as busy.
const QUEUE: usize = 1024;
/// Most changes in one entry, and about how many bytes: 32 entries go in one call between nodes.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 128 * 1024;
/// Batches under way at once.
const AT_ONCE: usize = 4;
/// How long a leader with a quorum is looked for before a change is refused. Longer than an election.
const LEADER_WAIT: Duration = Duration::from_secs(5);
/// How long an outcome is waited for. Shorter than the time limit of a request.
const OUTCOME_WAIT: Duration = Duration::from_secs(10);
/// How long the other members are waited for once a change is made. A member that can be reached and takes longer is
/// taken for one that cannot.
pub(crate) const VISIBLE_WAIT: Duration = Duration::from_secs(1);
/// When the leader is asked for a batch that it did not answer, and how long it may take to say.
const ASK_AFTER: Duration = Duration::from_millis(200);
const ASK_WAIT: Duration = Duration::from_secs(1);
/// A member that has not answered for so long is not waited for.
const GONE_AFTER: Duration = Duration::from_secs(2);
/// Pause before another try.
const PAUSE: Duration = Duration::from_millis(50);

type Answer = oneshot::Sender<Result<Applied, ExecuteError>>;

/// A change and who asked for it.
pub(crate) struct Proposal {
    command: Command,
    answer: Answer,
}

/// The way in.
pub(crate) struct Proposer {
    queue: mpsc::Sender<Proposal>,
}

impl Proposer {
    /// Starts working; ends when it is dropped.
    pub(crate) fn start(node: Arc<Node>) -> Self {
        let (queue, proposals) = mpsc::channel(QUEUE);
        tokio::spawn(work(node, proposals));
        Self { queue }
    }

    /// Proposes a change and waits for its outcome.
    pub(crate) async fn propose(&self, command: Command) -> Result<Applied, ExecuteError> {
        let (answer, outcome) = oneshot::channel();
        self.queue.try_send(Proposal { command, answer }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => ExecuteError::Busy,
            mpsc::error::TrySendError::Closed(_) => ExecuteError::Unavailable("the broker is going down".into()),
        })?;
        outcome.await.unwrap_or_else(|_| Err(ExecuteError::Unconfirmed("it broke off".into())))
    }
}

async fn work(node: Arc<Node>, mut proposals: mpsc::Receiver<Proposal>) {
    let slots = Arc::new(Semaphore::new(AT_ONCE));
    // Not to be confused with those of another process that had this node's number.
    let ids = Arc::new(Ids { proposer: rand::random(), count: AtomicU64::new(0) });
    loop {
        // First the place, then the batch: while all places are taken, it grows.
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        let Some(first) = proposals.recv().await else { return };
        let mut bytes = size(&first.command);
        let mut batch = vec![first];
        while batch.len() < BATCH && bytes < BATCH_BYTES {
            let Ok(next) = proposals.try_recv() else { break };
            bytes += size(&next.command);
            batch.push(next);
        }
        let (node, ids) = (node.clone(), ids.clone());
        tokio::spawn(async move {
            let (commands, answers): (Vec<_>, Vec<_>) = batch.into_iter().map(|p| (p.command, p.answer)).unzip();
            let made = Attempt { node: &node, ids: &ids, until: Instant::now() + OUTCOME_WAIT }.make(commands).await;
            // The next batch need not wait for this one to be seen everywhere.
            drop(slot);
            match made {
                Ok((index, results)) => {
                    everywhere(&node, index).await;
                    for (answer, result) in answers.into_iter().zip(results) {
                        // Whoever asked may be gone; the change stands.
                        let _ = answer.send(result.map(|revision| Applied { revision }).map_err(Into::into));
                    }
                }
                Err(error) => {
                    for answer in answers {
                        let _ = answer.send(Err(error.clone()));
                    }
                }
            }
        });
    }
}

fn size(command: &Command) -> usize {
    // Names and hash; the rest is small.
    let hash = match command {
        Command::Create { password, .. } | Command::Put { password, .. } | Command::Rehash { password, .. } => {
            password.0.len()
        }
        Command::Update { patch, .. } => patch.password.as_ref().map_or(0, |password| password.0.len()),
        Command::Delete { .. } => 0,
    };
    hash + command.username().as_str().len() + 96
}

struct Ids {
    proposer: u64,
    count: AtomicU64,
}

/// One batch until its outcome.
struct Attempt<'a> {
    node: &'a Arc<Node>,
    ids: &'a Ids,
    until: Instant,
}

type Made = (u64, Vec<Result<ciqadamq_core::Revision, ciqadamq_core::Rejection>>);

impl Attempt<'_> {
    async fn make(&self, commands: Vec<Command>) -> Result<Made, ExecuteError> {
        let mut looking_until = Instant::now() + LEADER_WAIT;
        let mut why = "no member of the cluster leads now".to_owned();
        loop {
            let Some(reign) = self.reign(looking_until).await else {
                let problem = self.node.problem();
                return Err(ExecuteError::Unavailable(problem.unwrap_or(why)));
            };
            let id = BatchId { proposer: self.ids.proposer, count: self.ids.count.fetch_add(1, Ordering::Relaxed) };
            let hears = self.node.progress.expect(id);
            let mut followed = std::pin::pin!(self.follow(reign, hears, self.node.progress.jumps()));
            // A leader that does not answer may have been replaced long before the call to it ends.
            let sent = tokio::select! {
                biased;
                settled = &mut followed => settled,
                sent = self.send(reign, Batch { id, reign, commands: commands.clone() }) => match sent {
                    Sent::Perhaps => tokio::select! {
                        biased;
                        settled = &mut followed => settled,
                        never = self.never_came(reign, id) => never,
                    },
                    sent => sent,
                },
            };
            self.node.progress.forget(&id);
            match sent {
                Sent::Made(index, Outcome::Done(results)) if results.len() == commands.len() => {
                    return Ok((index, results));
                }
                // There is another leader: it gets as long as the first.
                Sent::Made(_, _) | Sent::Reigned => {
                    why = "the leader changed".into();
                    looking_until = self.until.min(Instant::now() + LEADER_WAIT);
                }
                Sent::Not(reason) => why = reason,
                Sent::Never(reason) => return Err(ExecuteError::Unavailable(reason)),
                Sent::Perhaps => {
                    return Err(ExecuteError::Unconfirmed(
                        "it is not known whether a quorum of the members has it".into(),
                    ));
                }
            }
            if Instant::now() >= looking_until {
                return Err(ExecuteError::Unavailable(why));
            }
            sleep(PAUSE).await;
        }
    }

    /// Who leads now, as far as this node knows.
    async fn reign(&self, until: Instant) -> Option<Reign> {
        loop {
            let Ok(raft) = self.node.raft() else {
                if timeout_at(until, sleep(PAUSE)).await.is_err() {
                    return None;
                }
                continue;
            };
            let mut metrics = raft.metrics();
            let known = metrics.wait_for(|m| reign_of(m).is_some() || m.running_state.is_err());
            let known = async { known.await.ok().and_then(|m| reign_of(&m).filter(|_| m.running_state.is_ok())) };
            match timeout_at(until, known).await {
                Ok(Some(reign)) => return Some(reign),
                Err(_) => return None,
                // It has just broken off.
                Ok(None) => sleep(PAUSE).await,
            }
        }
    }

    async fn send(&self, reign: Reign, batch: Batch) -> Sent {
        let proposed = if reign.leader == self.node.id() {
            let proposed = timeout_at(self.until, service::propose(self.node, batch)).await;
            proposed.unwrap_or(Err(ProposeError::Unknown))
        } else {
            let Some(leader) = self.node.member(reign.leader) else {
                return Sent::Not(format!("node {} leads and is no member", reign.leader));
            };
            let patience = self.until.saturating_duration_since(Instant::now());
            let call = Call::Propose(batch);
            match self.node.network.call(reign.leader, Some(leader.incarnation), call, patience).await {
                Ok(Reply::Propose(result)) => result,
                Ok(_) => Err(ProposeError::Unknown),
                Err(error) if error.nothing_was_done() => {
                    return Sent::Not(format!("node {}, which leads: {error}", reign.leader));
                }
                Err(_) => Err(ProposeError::Unknown),
            }
        };
        match proposed {
            Ok((index, outcome)) => Sent::Made(index, outcome),
            Err(ProposeError::NotLeader) => Sent::Not("the leader changed".into()),
            Err(ProposeError::NoQuorum) => Sent::Not("a quorum of the members cannot be reached".into()),
            Err(ProposeError::CannotWrite(reason)) => Sent::Never(reason),
            Err(ProposeError::Unknown) => Sent::Perhaps,
        }
    }

    /// Asks the leader for a batch whose answer did not come, until it says that it never got it. Does not end otherwise.
    async fn never_came(&self, reign: Reign, id: BatchId) -> Sent {
        loop {
            sleep(ASK_AFTER).await;
            let seen = match self.node.member(reign.leader) {
                _ if reign.leader == self.node.id() => !self.node.proposed.lock().ban(reign, id),
                Some(leader) => {
                    let call = Call::Seen(reign, id);
                    let reply = self.node.network.call(reign.leader, Some(leader.incarnation), call, ASK_WAIT).await;
                    !matches!(reply, Ok(Reply::Seen(false)))
                }
                None => true,
            };
            if !seen {
                return Sent::Not("the way to the leader is disturbed".into());
            }
        }
    }

    /// Watches what is applied here until it is clear what became of a batch.
    async fn follow(&self, reign: Reign, mut hears: oneshot::Receiver<(u64, Outcome)>, jumps: u64) -> Sent {
        let mut applied = self.node.progress.applied();
        let seen = timeout_at(self.until, async {
            tokio::select! {
                biased;
                heard = &mut hears => heard.ok(),
                _ = applied.wait_for(|last| last.is_some_and(|last| Reign::of(&last) > reign)) => None,
            }
        });
        match seen.await {
            Ok(Some((index, outcome))) => Sent::Made(index, outcome),
            Ok(None) => match hears.try_recv() {
                Ok((index, outcome)) => Sent::Made(index, outcome),
                // Entries were skipped, and it may have been among them.
                Err(_) if self.node.progress.jumps() != jumps => Sent::Perhaps,
                Err(_) => Sent::Reigned,
            },
            Err(_) => Sent::Perhaps,
        }
    }
}

enum Sent {
    /// It is in the log, and did this.
    Made(u64, Outcome),
    /// It is not in the log and never will have an effect; try again.
    Not(String),
    /// The same, because its reign is over.
    Reigned,
    /// The same, and trying again will not help.
    Never(String),
    /// Nobody knows.
    Perhaps,
}

fn reign_of(metrics: &RaftMetrics<NodeId, Member>) -> Option<Reign> {
    let vote = metrics.vote;
    metrics.current_leader?;
    vote.is_committed().then(|| Reign::by(&vote))
}

/// Waits until every member that can be reached, this node included, has applied the entry.
async fn everywhere(node: &Node, index: u64) {
    let mut applied = node.progress.applied();
    let here = async {
        // Ends with the time at the latest.
        let _ = timeout(VISIBLE_WAIT, applied.wait_for(|last| last.is_some_and(|last| last.index >= index))).await;
    };
    let others = node.other_members().into_iter().map(|(other, member)| async move {
        // A call that failed may have been a short one to a busy node: only silence for a while counts.
        if matches!(node.network.peers.reachability(other), Reachability::Unreachable { since, .. } if since >= GONE_AFTER) {
            return;
        }
        let reached = timeout(VISIBLE_WAIT, async {
            loop {
                let call = Call::Reached(index);
                match node.network.call(other, Some(member.incarnation), call, VISIBLE_WAIT).await {
                    Ok(Reply::Reached(Reached::Yes | Reached::NotServing)) => return,
                    // Nobody listens there.
                    Err(PeerError::Unreachable(_)) => return,
                    _ => sleep(PAUSE).await,
                }
            }
        });
        if reached.await.is_err() {
            tracing::debug!(node = other, index, "a member has not shown a change in time");
        }
    });
    tokio::join!(here, join_all(others));
}
