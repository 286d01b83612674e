//! What becomes of changes when nodes stop, come back, or cannot hear each other.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ciqadamq_core::{ClusterPart, ExecuteError, UserDirectory};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::{Cluster, create, delete, eventually, listed};

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_nothing_is_changed_now_or_later_and_reads_go_on() {
    let mut cluster = Cluster::of_three().await;
    cluster.users(1).execute(create("before")).await.unwrap();
    let leader = cluster.leader(1).await;
    let followers: Vec<_> = [1, 2, 3].into_iter().filter(|id| *id != leader).collect();
    for follower in &followers {
        cluster.stop(*follower).await;
    }
    // At once, while the leader still believes in its quorum.
    let error = cluster.users(leader).execute(create("nobody")).await.unwrap_err();
    assert!(matches!(error, ExecuteError::Unavailable(_)), "{error:?}");
    assert!(cluster.users(leader).get("before").unwrap().is_some());
    assert!(cluster.users(leader).get("nobody").unwrap().is_none());
    for follower in &followers {
        cluster.start(*follower).await;
    }
    cluster.ready(&[1, 2, 3]).await;
    cluster.users(followers[0]).execute(create("after")).await.unwrap();
    let names: Vec<_> = cluster.equal().await.iter().map(|user| user.username.to_string()).collect();
    assert_eq!(names, ["after", "before"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_away_lets_nobody_in_before_it_knows_what_it_missed() {
    let mut cluster = Cluster::of_three().await;
    for name in ["stays", "goes"] {
        cluster.users(3).execute(create(name)).await.unwrap();
    }
    cluster.stop(3).await;
    cluster.users(1).execute(delete("goes")).await.unwrap();
    cluster.users(2).execute(create("comes")).await.unwrap();
    cluster.net.isolate(3);
    cluster.start(3).await;
    for _ in 0..30 {
        let error = cluster.users(3).get("goes").unwrap_err();
        assert!(error.reason.contains("caught up"), "{error}");
        assert!(!cluster.nodes[&3].health.is_ready());
        sleep(Duration::from_millis(20)).await;
    }
    cluster.net.heal();
    eventually(&|| "its first answer".into(), || match cluster.users(3).get("goes") {
        Ok(user) => {
            assert!(user.is_none(), "it let a deleted user in");
            true
        }
        Err(_) => false,
    })
    .await;
    assert!(cluster.users(3).get("comes").unwrap().is_some() && cluster.users(3).get("stays").unwrap().is_some());
    cluster.ready(&[3]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_started_again_has_to_be_elected_again() {
    let mut cluster = Cluster::of_three().await;
    for round in 0..3 {
        let leader = cluster.leader(1).await;
        let term = cluster.users(leader).raft().term;
        cluster.users(leader).execute(create(&format!("n{round}"))).await.unwrap();
        cluster.stop(leader).await;
        cluster.start(leader).await;
        cluster.ready(&[1, 2, 3]).await;
        assert!(cluster.users(leader).raft().term > term, "it goes on in term {term:?}");
    }
    assert_eq!(cluster.equal().await.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_for_the_latest_is_not_told_of_a_moment_ago() {
    let cluster = Cluster::of_three().await;
    cluster.users(1).execute(create("goes")).await.unwrap();
    let away = cluster.leader(1).await % 3 + 1;
    for _ in 0..3 {
        cluster.net.isolate(away);
        let other = away % 3 + 1;
        cluster.users(other).execute(delete("goes")).await.unwrap();
        assert!(cluster.users(away).get("goes").unwrap().is_some(), "it goes on with what it knows");
        cluster.net.heal();
        cluster.users(away).up_to_date().await.unwrap();
        assert!(cluster.users(away).get("goes").unwrap().is_none());
        cluster.users(away).execute(create("goes")).await.unwrap();
    }
    for other in [away % 3 + 1, (away + 1) % 3 + 1] {
        cluster.net.isolate(other);
    }
    assert!(cluster.users(away).up_to_date().await.is_err(), "without a quorum nobody knows");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_cut_off_changes_nothing_and_the_others_go_on() {
    let cluster = Cluster::of_three().await;
    cluster.users(1).execute(create("before")).await.unwrap();
    let old = cluster.leader(1).await;
    let other = old % 3 + 1;
    cluster.net.isolate(old);
    let (at_old, at_other) =
        tokio::join!(cluster.users(old).execute(create("old")), cluster.users(other).execute(create("new")));
    assert!(matches!(at_old, Err(ExecuteError::Unavailable(_) | ExecuteError::Unconfirmed(_))), "{at_old:?}");
    at_other.unwrap();
    assert!(cluster.users(old).get("before").unwrap().is_some(), "logins go on there");
    cluster.net.heal();
    let names: Vec<_> = cluster.equal().await.iter().map(|user| user.username.to_string()).collect();
    assert_eq!(names, ["before", "new"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_whose_answer_got_lost_is_still_a_creation() {
    let cluster = Cluster::of_three().await;
    let leader = cluster.leader(1).await;
    let follower = leader % 3 + 1;
    cluster.net.lose_answers(follower, leader);
    for at in 0..10 {
        cluster.users(follower).execute(create(&format!("n{at}"))).await.unwrap();
    }
    assert!(cluster.net.lost.load(Ordering::Relaxed) >= 10, "no answer was lost");
    cluster.net.heal();
    assert_eq!(cluster.equal().await.len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_that_never_reached_the_leader_is_proposed_again() {
    let cluster = Cluster::of_three().await;
    let leader = cluster.leader(1).await;
    let follower = leader % 3 + 1;
    for at in 0..5 {
        cluster.net.lose_call(follower, leader);
        cluster.users(follower).execute(create(&format!("n{at}"))).await.unwrap();
    }
    assert_eq!(cluster.net.lost.load(Ordering::Relaxed), 5);
    assert_eq!(cluster.equal().await.len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_leaders_that_come_and_go() {
    let mut cluster = Cluster::of_three().await;
    let over = Arc::new(AtomicBool::new(false));
    let (made, doubtful) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(Mutex::new(BTreeSet::new())));
    for round in 0..3 {
        let leader = cluster.leader(1).await;
        let mut writers = JoinSet::new();
        over.store(false, Ordering::Relaxed);
        for (id, node) in &cluster.nodes {
            for task in 0..4 {
                let (users, over) = (node.users.clone(), over.clone());
                let (made, doubtful, id) = (made.clone(), doubtful.clone(), *id);
                writers.spawn(async move {
                    for at in 0.. {
                        if over.load(Ordering::Relaxed) {
                            return;
                        }
                        let name = format!("r{round}n{id}t{task}a{at}");
                        match users.execute(create(&name)).await {
                            Ok(_) => drop(made.lock().insert(name)),
                            Err(ExecuteError::Unconfirmed(_)) => drop(doubtful.lock().insert(name)),
                            Err(ExecuteError::Unavailable(_)) => sleep(Duration::from_millis(20)).await,
                            Err(other) => panic!("{name}: {other}"),
                        }
                    }
                });
            }
        }
        let written = made.lock().len();
        eventually(&|| "writes".into(), || made.lock().len() > written + 100).await;
        if round == 1 {
            cluster.net.isolate(leader);
        } else {
            cluster.stop(leader).await;
        }
        let survivor = leader % 3 + 1;
        let goes_on = || cluster.users(survivor).raft().leader.is_some_and(|new| new != leader);
        eventually(&|| "a new leader".into(), goes_on).await;
        let written = made.lock().len();
        eventually(&|| "writes go on".into(), || made.lock().len() > written + 50).await;
        over.store(true, Ordering::Relaxed);
        writers.join_all().await;
        cluster.net.heal();
        if round != 1 {
            cluster.start(leader).await;
        }
        cluster.ready(&[1, 2, 3]).await;
    }
    let there: BTreeSet<String> = cluster.equal().await.iter().map(|user| user.username.to_string()).collect();
    let (made, doubtful) = (made.lock(), doubtful.lock());
    let missing: Vec<_> = made.difference(&there).collect();
    assert!(missing.is_empty(), "acknowledged and lost: {missing:?}");
    let surplus: Vec<_> = there.iter().filter(|name| !made.contains(*name) && !doubtful.contains(*name)).collect();
    assert!(surplus.is_empty(), "refused and made all the same: {surplus:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_far_behind_gets_a_snapshot_and_tells_what_changed() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    cluster.snapshot_every = 20;
    for node in [1, 2, 3] {
        cluster.start(node).await;
    }
    cluster.ready(&[1, 2, 3]).await;
    cluster.users(1).execute(create("goes")).await.unwrap();
    cluster.stop(3).await;
    cluster.users(1).execute(delete("goes")).await.unwrap();
    for at in 0..120 {
        cluster.users(1).execute(create(&format!("n{at:03}"))).await.unwrap();
    }
    cluster.start(3).await;
    cluster.ready(&[3]).await;
    assert_eq!(listed(cluster.users(3)).len(), 120);
    assert!(cluster.users(3).get("goes").unwrap().is_none());
    // It goes on from there, also through a restart.
    cluster.users(3).execute(create("later")).await.unwrap();
    cluster.stop(3).await;
    cluster.start(3).await;
    cluster.ready(&[3]).await;
    assert_eq!(cluster.equal().await.len(), 121);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_was_stopped_as_a_whole_comes_back_with_everything() {
    let mut cluster = Cluster::of_three().await;
    for at in 0..30 {
        cluster.users(at % 3 + 1).execute(create(&format!("n{at}"))).await.unwrap();
    }
    let before = cluster.equal().await;
    for node in [1, 2, 3] {
        cluster.stop(node).await;
    }
    cluster.start(2).await;
    cluster.start(3).await;
    cluster.ready(&[2, 3]).await;
    cluster.start(1).await;
    cluster.ready(&[1]).await;
    assert_eq!(cluster.equal().await, before);
}
