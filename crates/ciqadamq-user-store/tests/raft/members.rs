//! Nodes taken in and out, lost disks, and clusters that must not come about.

use std::path::Path;
use std::time::Duration;

use ciqadamq_core::{ClusterPart, MembersError, UserDirectory};
use ciqadamq_user_store::StartError;
use tokio::time::sleep;

use crate::support::{Cluster, create, eventually, listed, url};

#[tokio::test(flavor = "multi_thread")]
async fn one_node_grows_to_three_with_its_users() {
    let mut cluster = Cluster::new(&[1, 2, 3]);
    cluster.try_start(1, &[]).await.unwrap();
    for at in 0..40 {
        cluster.users(1).execute(create(&format!("n{at}"))).await.unwrap();
    }
    let before = listed(cluster.users(1));
    cluster.stop(1).await;

    // It goes on alone until others are taken in.
    cluster.start(1).await;
    cluster.ready(&[1]).await;
    cluster.start(2).await;
    cluster.start(3).await;
    eventually(&|| cluster.nodes[&3].reason(), || {
        cluster.nodes[&3].reason().contains("ciqadamq cluster add 3 mem://3")
    })
    .await;
    assert!(!cluster.nodes[&2].health.is_ready());
    // The nodes' credential goes nowhere but where the configuration says.
    for (stray, at) in [(2, "mem://3"), (4, "mem://4")] {
        let error = cluster.users(1).add_member(stray, at).await.unwrap_err();
        assert!(matches!(&error, MembersError::Refused(text) if text.contains("configur")), "{error}");
    }
    cluster.users(1).add_member(2, &url(2)).await.unwrap();
    cluster.ready(&[2]).await;
    // Any member takes the order.
    cluster.users(2).add_member(3, &url(3)).await.unwrap();
    cluster.ready(&[3]).await;
    assert_eq!(cluster.users(3).raft().voters, [1, 2, 3]);
    assert_eq!(cluster.equal().await, before);
    cluster.users(3).execute(create("later")).await.unwrap();

    // The first one is not needed any more.
    cluster.stop(1).await;
    cluster.users(2).execute(create("without")).await.unwrap();
    assert_eq!(cluster.equal().await.len(), 42);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_right_after_a_start_waits_for_the_election() {
    let mut cluster = Cluster::new(&[1, 2]);
    cluster.try_start(1, &[]).await.unwrap();
    cluster.stop(1).await;
    cluster.start(2).await;
    cluster.start(1).await;
    cluster.users(1).add_member(2, &url(2)).await.unwrap();
    cluster.ready(&[1, 2]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lost_its_disk_does_not_vote_until_it_was_taken_out_and_in() {
    let mut cluster = Cluster::of_three().await;
    for at in 0..20 {
        cluster.users(1).execute(create(&format!("n{at}"))).await.unwrap();
    }
    let before = cluster.equal().await;
    cluster.stop(3).await;
    std::fs::remove_dir_all(cluster.path(3)).unwrap();
    cluster.start(3).await;
    eventually(&|| cluster.nodes[&3].reason(), || cluster.nodes[&3].reason().contains("ciqadamq cluster remove 3"))
        .await;

    // With another one down there is no quorum: the empty one does not count.
    let other = if cluster.leader(1).await == 1 { 2 } else { 1 };
    let left = 3 - other;
    cluster.stop(other).await;
    cluster.users(left).execute(create("nobody")).await.unwrap_err();
    cluster.start(other).await;
    cluster.ready(&[1, 2]).await;
    let error = cluster.users(1).add_member(3, &url(3)).await.unwrap_err();
    assert!(matches!(&error, MembersError::Refused(text) if text.contains("cluster remove 3")), "{error}");
    cluster.users(1).remove_member(3).await.unwrap();
    cluster.users(1).add_member(3, &url(3)).await.unwrap();
    cluster.ready(&[3]).await;
    assert_eq!(cluster.equal().await, before);
    cluster.stop(other).await;
    cluster.users(3).execute(create("again")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_founder_without_its_disk_does_not_begin_anew() {
    let mut cluster = Cluster::of_three().await;
    cluster.users(1).execute(create("a")).await.unwrap();
    for node in [1, 2, 3] {
        cluster.stop(node).await;
    }
    std::fs::remove_dir_all(cluster.path(1)).unwrap();
    cluster.start(1).await;
    sleep(Duration::from_millis(500)).await;
    assert!(cluster.nodes[&1].reason().contains("waiting for all nodes"), "{}", cluster.nodes[&1].reason());
    cluster.start(2).await;
    cluster.start(3).await;
    cluster.ready(&[2, 3]).await;
    eventually(&|| cluster.nodes[&1].reason(), || cluster.nodes[&1].reason().contains("lost its data")).await;
    assert!(cluster.users(1).execute(create("b")).await.is_err());
    assert_eq!(listed(cluster.users(2)).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_with_users_of_their_own_do_not_serve_side_by_side() {
    let mut cluster = Cluster::new(&[1, 2]);
    for node in [1, 2] {
        cluster.try_start(node, &[]).await.unwrap();
        cluster.users(node).execute(create(&format!("of-{node}"))).await.unwrap();
        cluster.stop(node).await;
    }
    for node in [1, 2] {
        cluster.start(node).await;
    }
    for node in [1, 2] {
        let told = || cluster.nodes[&node].reason().contains("user directory of its own");
        eventually(&|| cluster.nodes[&node].reason(), told).await;
        assert!(cluster.users(node).get("of-1").is_err() && cluster.users(node).execute(create("x")).await.is_err());
    }
    cluster.net.isolate(9);
    let error = cluster.users(1).add_member(2, &url(2)).await.unwrap_err();
    assert!(matches!(&error, MembersError::Refused(text) if text.contains("would be lost")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_taken_out_while_it_was_down_does_not_serve() {
    let mut cluster = Cluster::of_three().await;
    cluster.users(1).execute(create("a")).await.unwrap();
    cluster.stop(3).await;
    cluster.users(1).remove_member(3).await.unwrap();
    cluster.users(2).execute(create("b")).await.unwrap();
    cluster.start(3).await;
    eventually(&|| cluster.nodes[&3].reason(), || cluster.nodes[&3].reason().contains("was taken out")).await;
    assert!(cluster.users(3).get("a").is_err());
    // And it does not disturb the others.
    cluster.users(1).execute(create("c")).await.unwrap();
    let error = cluster.users(1).remove_member(3).await.unwrap_err();
    assert!(matches!(error, MembersError::Refused(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_a_cluster_does_not_start_alone() {
    let mut cluster = Cluster::of_three().await;
    cluster.stop(2).await;
    let error = cluster.try_start(2, &[]).await.unwrap_err();
    assert!(matches!(&error, StartError::Clustered(nodes) if *nodes == [1, 2, 3]), "{error}");
    cluster.start(2).await;
    cluster.ready(&[2]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_another_nodes_directory_is_told_from_a_damaged_one() {
    let mut cluster = Cluster::of_three().await;
    cluster.users(1).execute(create("a")).await.unwrap();
    cluster.stop(2).await;
    cluster.stop(3).await;
    std::fs::remove_dir_all(cluster.path(3)).unwrap();
    // Onto a member, and onto a node that was never one.
    for node in [3, 4] {
        copy(&cluster.path(2), &cluster.path(node));
        let error = cluster.try_start(node, &[1, 2, 3, 4]).await.unwrap_err();
        assert!(matches!(&error, StartError::Copied { of: 2, node: on, .. } if *on == node), "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("ciqadamq cluster add {node}")) && !text.contains("damaged"), "{text}");
    }
    cluster.start(2).await;
    cluster.ready(&[1, 2]).await;
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}
