//! What three healthy nodes do.

use ciqadamq_core::{ClusterPart, ExecuteError, RaftRole, Rejection, UserDirectory};
use tokio::task::JoinSet;

use crate::support::{Cluster, create, delete};

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledged_change_is_seen_on_every_node_at_once() {
    let cluster = Cluster::of_three().await;
    for at in 0..200u64 {
        let (by, name) = (at % 3 + 1, format!("n{at}"));
        cluster.users(by).execute(create(&name)).await.unwrap();
        for node in [1, 2, 3] {
            assert!(cluster.users(node).get(&name).unwrap().is_some(), "{name}, made on {by}, is missing on {node}");
        }
        if at % 4 == 0 {
            cluster.users(by % 3 + 1).execute(delete(&name)).await.unwrap();
            for node in [1, 2, 3] {
                assert!(cluster.users(node).get(&name).unwrap().is_none(), "{name} is still there on {node}");
            }
        }
    }
    assert_eq!(cluster.equal().await.len(), 150);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_creations_of_one_name_on_all_nodes_one_wins() {
    let cluster = Cluster::of_three().await;
    for name in ["a", "b", "c"] {
        let mut tasks = JoinSet::new();
        for at in 0..50 {
            let users = cluster.users(at % 3 + 1).clone();
            tasks.spawn(async move { users.execute(create(name)).await });
        }
        let results = tasks.join_all().await;
        let won = results.iter().filter(|result| result.is_ok()).count();
        let lost = results.iter().filter(|r| matches!(r, Err(ExecuteError::Rejected(Rejection::Exists)))).count();
        assert_eq!((won, lost), (1, 49), "{results:?}");
    }
    assert_eq!(cluster.equal().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_changes_share_few_entries() {
    let cluster = Cluster::of_three().await;
    let before = cluster.users(1).raft().last_log_index.unwrap();
    let mut tasks = JoinSet::new();
    for at in 0..900u64 {
        let users = cluster.users(at % 3 + 1).clone();
        tasks.spawn(async move { users.execute(create(&format!("n{at}"))).await.map(drop) });
    }
    assert!(tasks.join_all().await.into_iter().all(|result| result.is_ok()));
    assert_eq!(cluster.equal().await.len(), 900);
    let entries = cluster.users(1).raft().last_log_index.unwrap() - before;
    assert!(entries < 300, "{entries} entries for 900 changes");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_shows_the_same_leader_and_members() {
    let cluster = Cluster::of_three().await;
    let leader = cluster.leader(1).await;
    cluster.users(1).execute(create("a")).await.unwrap();
    for (id, node) in &cluster.nodes {
        let view = node.users.raft();
        assert_eq!((view.leader, view.voters.as_slice(), view.problem), (Some(leader), &[1, 2, 3][..], None));
        assert_eq!(view.role, if *id == leader { RaftRole::Leader } else { RaftRole::Follower });
        assert_eq!(view.peers.len(), 2);
        assert_eq!(view.peers.iter().all(|peer| peer.lag.is_some()), *id == leader);
        assert_eq!(node.users.status().read_only, None);
    }
}
