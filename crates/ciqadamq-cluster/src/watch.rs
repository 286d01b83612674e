//! Whether the routing cluster works here, and when only a restart of the process helps.
//!
//! `rmqtt-cluster-raft` cannot be restarted inside a process, and a voter that lost its memory cannot come back into a
//! cluster without a leader. So a node that is left over when a quorum is gone **for good** ends in order and starts again
//! as one that waits: then the nodes form anew, see [`crate::formation`]. What says "for good" is that another node waits:
//! its process is a new one and remembers nothing. A quorum that is only out of reach is waited for.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ciqadamq_core::NodeId;

use crate::formation::majority;
use crate::liveness::View;
use crate::wire::Phase;

/// How long a trouble must last before the process is restarted. An election takes less than a second, up to five
/// on a machine that stalls.
const LASTING: Duration = Duration::from_secs(5);
/// The same where another cluster has a leader: nothing is gained by waiting, but a glance may be a mistake.
const CUT_OFF_LASTING: Duration = Duration::from_secs(8);

/// What the cluster is like, as seen from here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// There is a leader, and a majority follows it.
    Works {
        /// who
        leader: NodeId,
    },
    /// It does not work, and may again by itself.
    Waits(String),
    /// Only a new process helps.
    Restart(String),
}

/// Watches over time.
#[derive(Debug, Default)]
pub struct Watch {
    trouble: Option<(Trouble, Instant)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Trouble {
    /// no leader, while another node waits for one
    QuorumLost,
    /// no leader here, while others have one
    CutOff(NodeId),
    /// others follow another leader, and this side is the smaller one
    Split(NodeId),
}

impl Watch {
    /// Looks once. `members` are all that may take part, `leader` is who leads as far as this node's raft knows, 0 for nobody.
    pub fn look(
        &mut self,
        members: &[NodeId],
        leader: NodeId,
        views: &BTreeMap<NodeId, View>,
        now: Instant,
    ) -> Verdict {
        let (trouble, why) = match trouble(members, leader, views) {
            Ok(()) => {
                self.trouble = None;
                return Verdict::Works { leader };
            }
            Err((trouble, why)) => (trouble, why),
        };
        let Some(trouble) = trouble else {
            self.trouble = None;
            return Verdict::Waits(why);
        };
        let lasting = match trouble {
            Trouble::CutOff(_) => CUT_OFF_LASTING,
            Trouble::QuorumLost | Trouble::Split(_) => LASTING,
        };
        let since = match &self.trouble {
            Some((before, since)) if *before == trouble => *since,
            _ => {
                self.trouble = Some((trouble, now));
                now
            }
        };
        if now.duration_since(since) >= lasting { Verdict::Restart(why) } else { Verdict::Waits(why) }
    }
}

fn trouble(
    members: &[NodeId],
    leader: NodeId,
    views: &BTreeMap<NodeId, View>,
) -> Result<(), (Option<Trouble>, String)> {
    let alive: Vec<_> = views.values().filter_map(View::alive).collect();
    // Who was taken out has a voice no longer, even if it goes on for a moment.
    let running = || alive.iter().filter(|state| state.phase == Phase::Running && members.contains(&state.node));
    let follow = |whom: NodeId| running().filter(|state| state.leader == whom).count();
    // One that leads and says so.
    let other = running()
        .map(|state| state.node)
        .find(|node| *node != leader && { running().any(|state| state.node == *node && state.leader == *node) });
    if leader == 0 {
        if let Some(other) = other {
            return Err((
                Some(Trouble::CutOff(other)),
                format!("node {other} leads a cluster that this node is not part of"),
            ));
        }
        if let Some(waiting) = alive.iter().find(|state| state.phase == Phase::Waiting) {
            let why = format!("no leader, and node {} lost its part of the cluster: the quorum is gone", waiting.node);
            return Err((Some(Trouble::QuorumLost), why));
        }
        return Err((None, "no leader: a quorum of the nodes does not answer".into()));
    }
    let here = 1 + follow(leader);
    if let Some(other) = other {
        let there = follow(other);
        // Of two halves of the same size the one with the smaller leader stays.
        if here < there || (here == there && leader > other) {
            let why =
                format!("two clusters: {there} nodes follow node {other}, {here} follow node {leader} with this one");
            return Err((Some(Trouble::Split(other)), why));
        }
    }
    let needed = majority(members);
    if here >= needed {
        return Ok(());
    }
    Err((None, format!("{here} of {} nodes take part, {needed} are needed", members.len())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::NodeState;

    const ALL: &[NodeId] = &[1, 2, 3];

    fn views(states: &[(NodeId, Phase, NodeId)]) -> BTreeMap<NodeId, View> {
        let said = |&(node, phase, leader)| {
            (
                node,
                View::said(NodeState {
                    node,
                    boot: 1,
                    phase,
                    leader,
                    unrouted: 0,
                    strays: false,
                    serves: false,
                    out: false,
                }),
            )
        };
        states.iter().map(said).collect()
    }

    fn lasting(leader: NodeId, states: &[(NodeId, Phase, NodeId)]) -> (Verdict, Verdict) {
        let (mut watch, start) = (Watch::default(), Instant::now());
        let first = watch.look(ALL, leader, &views(states), start);
        (first, watch.look(ALL, leader, &views(states), start + Duration::from_secs(60)))
    }

    #[test]
    fn a_majority_with_one_leader_works() {
        let (first, later) = lasting(2, &[(2, Phase::Running, 2), (3, Phase::Waiting, 0)]);
        assert_eq!((first, later), (Verdict::Works { leader: 2 }, Verdict::Works { leader: 2 }));
    }

    #[test]
    fn a_quorum_out_of_reach_is_waited_for_and_one_that_is_gone_is_not() {
        let (_, later) = lasting(0, &[]);
        assert!(matches!(later, Verdict::Waits(_)));
        let (first, later) = lasting(0, &[(2, Phase::Waiting, 0)]);
        assert!(matches!(first, Verdict::Waits(_)) && matches!(later, Verdict::Restart(_)));
    }

    #[test]
    fn an_election_is_no_reason_to_restart() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        let leaderless = views(&[(2, Phase::Running, 0), (3, Phase::Waiting, 0)]);
        let elected = views(&[(2, Phase::Running, 2), (3, Phase::Waiting, 0)]);
        assert!(matches!(watch.look(ALL, 0, &leaderless, start), Verdict::Waits(_)));
        assert!(matches!(watch.look(ALL, 2, &elected, start + Duration::from_secs(4)), Verdict::Works { .. }));
        assert!(matches!(watch.look(ALL, 0, &leaderless, start + Duration::from_secs(60)), Verdict::Waits(_)));
    }

    #[test]
    fn of_two_clusters_the_smaller_one_gives_way() {
        let two_against_one = [(2, Phase::Running, 2), (3, Phase::Running, 2)];
        assert!(matches!(lasting(1, &two_against_one).1, Verdict::Restart(_)));
        let one_against_two = [(2, Phase::Running, 1), (3, Phase::Running, 3)];
        assert!(matches!(lasting(1, &one_against_two).1, Verdict::Works { .. }));
    }

    #[test]
    fn a_node_whose_cluster_went_on_without_it_restarts() {
        assert!(matches!(lasting(0, &[(2, Phase::Running, 2), (3, Phase::Running, 2)]).1, Verdict::Restart(_)));
    }

    #[test]
    fn a_leader_alone_does_not_serve_unless_it_is_the_only_member() {
        assert!(matches!(lasting(1, &[(2, Phase::Waiting, 0)]).1, Verdict::Waits(_)));
        let alone = Watch::default().look(&[1], 1, &views(&[(2, Phase::Outside, 0)]), Instant::now());
        assert_eq!(alone, Verdict::Works { leader: 1 });
    }
}
