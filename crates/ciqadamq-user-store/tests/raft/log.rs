//! What is refused at the start, because a member that forgot something must not count.

use std::fs;

use ciqadamq_core::UserDirectory;
use ciqadamq_user_store::{OpenError, StartError};

use crate::support::{Cluster, create};

async fn filled() -> Cluster {
    let mut cluster = Cluster::new(&[]);
    cluster.try_start(0, &[]).await.unwrap();
    for at in 0..30 {
        cluster.users(0).execute(create(&format!("n{at}"))).await.unwrap();
    }
    cluster.stop(0).await;
    cluster
}

async fn refused(cluster: &mut Cluster, wanted: &str) {
    for _ in 0..2 {
        match cluster.try_start(0, &[]).await {
            Err(StartError::Open(error @ OpenError::Corrupt { .. })) => {
                assert!(error.to_string().contains(wanted), "{error}");
            }
            other => panic!("{wanted}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn users_without_their_log_are_refused() {
    let mut cluster = filled().await;
    fs::remove_dir_all(cluster.path(0).join("raft")).unwrap();
    refused(&mut cluster, "replicated log is missing").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_another_node_is_refused() {
    let (mut cluster, other) = (filled().await, filled().await);
    fs::remove_dir_all(cluster.path(0).join("raft")).unwrap();
    fs::rename(other.path(0).join("raft"), cluster.path(0).join("raft")).unwrap();
    refused(&mut cluster, "not the one").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_lost_its_end_is_refused() {
    let mut cluster = filled().await;
    let path = cluster.path(0).join("raft");
    for entry in fs::read_dir(&path).unwrap().map(Result::unwrap) {
        if entry.file_name().to_string_lossy().starts_with("snap.") {
            fs::remove_file(entry.path()).unwrap();
        }
    }
    let db = fs::OpenOptions::new().write(true).open(path.join("db")).unwrap();
    db.set_len(db.metadata().unwrap().len() / 2).unwrap();
    refused(&mut cluster, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn users_older_than_their_log_are_refused() {
    let mut cluster = Cluster::new(&[]);
    cluster.snapshot_every = 10;
    cluster.try_start(0, &[]).await.unwrap();
    cluster.users(0).execute(create("a")).await.unwrap();
    cluster.stop(0).await;
    let (path, old) = (cluster.path(0), cluster.dir.path().join("old"));
    fs::create_dir(&old).unwrap();
    for entry in fs::read_dir(&path).unwrap().map(Result::unwrap).filter(|e| e.file_type().unwrap().is_file()) {
        fs::copy(entry.path(), old.join(entry.file_name())).unwrap();
    }
    cluster.try_start(0, &[]).await.unwrap();
    for at in 0..60 {
        cluster.users(0).execute(create(&format!("n{at}"))).await.unwrap();
    }
    cluster.stop(0).await;
    for entry in fs::read_dir(&path).unwrap().map(Result::unwrap).filter(|e| e.file_type().unwrap().is_file()) {
        fs::remove_file(entry.path()).unwrap();
    }
    for entry in fs::read_dir(&old).unwrap().map(Result::unwrap) {
        fs::rename(entry.path(), path.join(entry.file_name())).unwrap();
    }
    refused(&mut cluster, "").await;
}
