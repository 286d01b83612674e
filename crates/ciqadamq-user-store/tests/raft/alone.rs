//! A node alone: the same log, with one voter.

use std::time::{Duration, Instant};

use ciqadamq_core::{ClusterPart, ExecuteError, Rejection, Revision, UserDirectory};
use ciqadamq_user_store::{StoreConfig, UserStore};

use crate::support::{Cluster, create, delete, listed};

#[tokio::test(flavor = "multi_thread")]
async fn users_from_before_there_was_a_log_are_kept_and_their_history_goes_on() {
    let mut cluster = Cluster::new(&[]);
    let store = UserStore::open(StoreConfig::at(cluster.path(0))).unwrap();
    for at in 0..20 {
        store.execute(create(&format!("n{at}"))).await.unwrap();
    }
    store.execute(delete("n3")).await.unwrap();
    let before = store.revision();
    drop(store);

    let began = Instant::now();
    cluster.try_start(0, &[]).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(cluster.users(0).revision(), before);
    assert_eq!(listed(cluster.users(0)).len(), 19);
    let next = cluster.users(0).execute(create("n3")).await.unwrap();
    assert_eq!(next.revision, Revision(before.0 + 1));
    let error = cluster.users(0).execute(create("n3")).await.unwrap_err();
    assert!(matches!(error, ExecuteError::Rejected(Rejection::Exists)));
    // The log alone makes changes from now on.
    assert!(matches!(cluster.users(0).store().execute(create("x")).await, Err(ExecuteError::Unavailable(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_may_get_another_number() {
    let mut cluster = Cluster::new(&[]);
    cluster.try_start(0, &[]).await.unwrap();
    cluster.users(0).execute(create("a")).await.unwrap();
    cluster.stop(0).await;
    std::fs::rename(cluster.path(0).parent().unwrap(), cluster.path(7).parent().unwrap()).unwrap();
    for _ in 0..2 {
        cluster.try_start(7, &[]).await.unwrap();
        assert_eq!(cluster.users(7).raft().voters, [7]);
        assert!(cluster.users(7).get("a").unwrap().is_some());
        cluster.users(7).execute(create(&format!("b{}", cluster.users(7).revision()))).await.unwrap();
        cluster.stop(7).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_log_and_many_restarts_lose_nothing() {
    let mut cluster = Cluster::new(&[]);
    cluster.snapshot_every = 10;
    for round in 0..6u64 {
        cluster.try_start(0, &[]).await.unwrap();
        assert_eq!(listed(cluster.users(0)).len() as u64, round * 25);
        for at in 0..25 {
            cluster.users(0).execute(create(&format!("r{round}n{at}"))).await.unwrap();
        }
        cluster.stop(0).await;
    }
}

/// For a figure: `cargo test --release -p ciqadamq-user-store --test raft -- --ignored --exact alone::throughput --nocapture`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn throughput() {
    let mut cluster = Cluster::new(&[]);
    cluster.try_start(0, &[]).await.unwrap();
    for parallel in [1, 16, 256] {
        let (began, total) = (Instant::now(), parallel * 100);
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..parallel {
            let users = cluster.users(0).clone();
            tasks.spawn(async move {
                for at in 0..100 {
                    users.execute(create(&format!("p{parallel}t{task}n{at}"))).await.unwrap();
                }
            });
        }
        tasks.join_all().await;
        println!("{parallel} at a time: {:.0} changes/s", f64::from(total) / began.elapsed().as_secs_f64());
    }
}
