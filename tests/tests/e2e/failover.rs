//! Nodes die, stop and come back.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ciqadamq_tests::mqtt::{Event, Packet};
use ciqadamq_tests::{Account, Client, Cluster, Version, eventually};

/// A node that is not the leader of the routing cluster, and not `but`.
fn follower(cluster: &Cluster, but: u8) -> u8 {
    let leader = cluster.routes_leader(1).unwrap();
    cluster.ids().find(|n| *n != leader && *n != but).unwrap()
}

/// Takes one node away while clients connect to the others all the time; none may be refused.
fn connects_go_on_without(take_away: fn(&mut Cluster, u8)) {
    let mut cluster = Cluster::start_default();
    let ua = cluster[1].user("ua");
    let leader = cluster.routes_leader(1).unwrap();
    let others: Vec<_> = cluster.ids().filter(|n| *n != leader).map(|n| (n, cluster[n].tcp)).collect();
    let stop = AtomicBool::new(false);
    let (refused, slowest, count) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for (node, addr) in &others {
            for worker in 0..2 {
                let (stop, refused, slowest, count, ua) = (&stop, &refused, &slowest, &count, &ua);
                scope.spawn(move || {
                    for i in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let connect = ua.connect(Version::V5, &format!("n{node}w{worker}i{i}"));
                        let since = Instant::now();
                        let answer = Client::connect(&connect, *addr);
                        slowest.fetch_max(since.elapsed().as_millis() as u64, Ordering::Relaxed);
                        count.fetch_add(1, Ordering::Relaxed);
                        match answer.is_accepted() {
                            true => answer.accepted().0.disconnect(),
                            false => {
                                refused.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        thread::sleep(Duration::from_millis(5));
                    }
                });
            }
        }
        thread::sleep(Duration::from_millis(300));
        take_away(&mut cluster, leader);
        eventually("another leader", || {
            let seen: Vec<_> = others.iter().map(|(node, _)| cluster.routes_leader(*node)).collect();
            seen.iter().all(|l| l.is_some() && *l != Some(leader)).then_some(())
        });
        let before = count.load(Ordering::Relaxed);
        eventually("clients still come in", || (count.load(Ordering::Relaxed) > before + 50).then_some(()));
        stop.store(true, Ordering::Relaxed);
    });
    let (refused, slowest) = (refused.into_inner(), slowest.into_inner());
    println!("{} connects, slowest {slowest} ms", count.into_inner());
    assert_eq!(refused, 0, "CONNECTs were refused");
    assert!(slowest < 6_000, "a CONNECT took {slowest} ms");
    if !cluster[leader].runs() {
        cluster[leader].spawn();
    }
    cluster.resume_if_stopped(leader);
    cluster.wait_ready();
}

#[test]
fn no_connect_is_refused_when_the_leader_is_killed() {
    connects_go_on_without(|cluster, leader| cluster.kill(leader));
}

#[test]
fn no_connect_is_refused_when_the_leader_is_stopped() {
    connects_go_on_without(|cluster, leader| cluster.stop(leader));
}

/// Takes a node away; its sessions are its own, and are in nobody's way for long.
fn sessions_are_taken_over_from(take_away: fn(&mut Cluster, u8)) {
    let mut cluster = Cluster::start_default();
    let ua = cluster[1].user("ua");
    let root = cluster[1].superuser("root");
    let victim = follower(&cluster, 0);
    let (here, there) = (follower(&cluster, victim), cluster.routes_leader(1).unwrap());
    let own = ua.connect(Version::V5, "phone").persistent(600);
    let other = ua.connect(Version::V5, "tablet").persistent(600);
    let mut kept = Vec::new();
    for connect in [&own, &other] {
        let (mut client, _) = cluster[victim].connect(connect).accepted();
        client.subscribe(&["chat/ua/#"]);
        kept.push(client);
    }
    let gone_at = Instant::now();
    take_away(&mut cluster, victim);
    let since = Instant::now();
    let (mut phone, connack) = cluster[here].connect(&own).accepted();
    let at_once = since.elapsed();
    assert!(!connack.session_present, "its session was in the memory of the node that is away");
    phone.subscribe(&["chat/ua/#"]);
    let mut publisher = cluster[there].client(&root, Version::V5, "backend");
    eventually("its route on the publisher's node", || {
        publisher.publish_ok("chat/ua/x", "hello", 1);
        phone.message_within(Duration::from_millis(200)).ok()
    });
    let since = Instant::now();
    let (tablet, _) = cluster[here].connect(&other).accepted();
    let known = since.elapsed();
    drop(tablet);

    eventually("the dead node's routes are gone", || {
        let gone: f64 = [here, there]
            .iter()
            .map(|n| cluster[*n].rest.metric("ciqadamq_cluster_dead_routes_removed_total", &[]))
            .sum();
        (gone >= 1.0).then_some(())
    });
    let routes = gone_at.elapsed();
    println!("taken over after {at_once:?}, after {known:?} once it is known, routes gone after {routes:?}");
    assert!(at_once < Duration::from_secs(2), "{at_once:?}");
    assert!(known < Duration::from_millis(100), "{known:?}");
    assert!(routes < Duration::from_secs(10), "{routes:?}");
    if !cluster[victim].runs() {
        cluster[victim].spawn();
    }
    cluster.resume_if_stopped(victim);
    cluster.wait_ready();
}

#[test]
fn a_session_whose_node_was_killed_is_taken_over_and_its_routes_go() {
    sessions_are_taken_over_from(|cluster, victim| cluster.kill(victim));
}

#[test]
fn a_session_whose_node_is_stopped_is_taken_over_and_its_routes_go() {
    sessions_are_taken_over_from(|cluster, victim| cluster.stop(victim));
}

#[test]
fn what_became_of_users_while_a_node_was_down_holds_there_from_its_first_login_on() {
    let mut cluster = Cluster::start_default();
    let away = 3;
    let (gone, stays) = (cluster[1].user("ua"), cluster[1].user("ub"));
    let (mut device, _) = cluster[away].connect(&gone.connect(Version::V5, "phone").persistent(600)).accepted();
    device.subscribe(&["chat/ua/#"]);
    cluster.kill(away);
    cluster[1].rest.delete_user(&gone.username);
    let new = cluster[2].user("uc");
    cluster[away].spawn();
    let is_back = AtomicBool::new(false);
    let addr = cluster[away].tcp;
    let tries = thread::scope(|scope| {
        let trying = scope.spawn(|| {
            let mut tries = 0;
            while !is_back.load(Ordering::Relaxed) {
                let connect = gone.connect(Version::V5, "phone").persistent(600);
                let Ok(mut client) = Client::open(&connect, addr) else {
                    thread::sleep(Duration::from_millis(10));
                    continue;
                };
                client.send(&connect.encode());
                // The node may not take clients yet.
                let answer = client.next(Duration::from_millis(500));
                assert!(!matches!(answer, Event::Packet(Packet::Connack { code: 0, .. })), "a deleted user got in");
                tries += 1;
            }
            tries
        });
        cluster.wait_ready();
        let refused = |account: &Account| !cluster[away].connect(&account.connect(Version::V5, "now")).is_accepted();
        assert!(refused(&gone) && !refused(&new) && !refused(&stays));
        is_back.store(true, Ordering::Relaxed);
        trying.join().unwrap()
    });
    assert!(tries > 0);
    cluster[1].rest.wait_gone("phone");
}

/// As `docs/operating/cluster.md` has it.
#[test]
fn a_node_whose_disk_is_lost_is_replaced() {
    let mut cluster = Cluster::start_default();
    let ua = cluster[1].user("ua");
    let lost = 3;
    cluster.kill(lost);
    fs::remove_dir_all(cluster[lost].dir().join("data")).unwrap();
    cluster[lost].spawn();
    cluster.wait_why(lost, "this node was a member and has lost its data");
    assert!(cluster[1].is_ready() && cluster[2].is_ready());
    let url = format!("http://{}", cluster[lost].rest.addr);
    cluster.order(1, &["cluster", "remove", "3"]);
    cluster.order(2, &["cluster", "add", "3", &url]);
    cluster.wait_ready();
    assert!(cluster[lost].connect(&ua.connect(Version::V5, "phone")).is_accepted());
    // It votes again: one of the others is not needed.
    cluster.kill(1);
    let new = cluster[lost].user("new");
    assert!(cluster[2].connect(&new.connect(Version::V5, "new")).is_accepted());
}

#[test]
fn a_killed_leader_that_restarts_at_once_joins_the_others() {
    let mut cluster = Cluster::start_default();
    let leader = cluster.routes_leader(1).unwrap();
    cluster.kill(leader);
    cluster[leader].spawn();
    cluster.wait_ready();
    let seen: Vec<_> = cluster.ids().map(|n| cluster.routes_leader(n)).collect();
    assert!(seen[0].is_some() && seen.iter().all(|l| *l == seen[0]), "{seen:?}");
}

#[test]
fn two_of_three_killed_and_started_again_serve_without_an_operator() {
    let mut cluster = Cluster::start_default();
    let (root, ua) = (cluster[1].superuser("root"), cluster[1].user("ua"));
    let users: Vec<Account> = (0..20).map(|n| cluster[1 + n % 3].user(&format!("u{n}"))).collect();
    let leader = cluster.routes_leader(1).unwrap();
    let survivor = follower(&cluster, 0);
    let dead: Vec<u8> = cluster.ids().filter(|n| *n != survivor).collect();
    assert!(dead.contains(&leader));
    for node in &dead {
        cluster.kill(*node);
    }
    let since = Instant::now();
    for node in &dead {
        cluster[*node].spawn();
    }
    eventually("the survivor notices", || (!cluster[survivor].is_ready()).then_some(()));
    cluster.wait_ready();
    println!("serves again after {:?}", since.elapsed());
    assert!(since.elapsed() < Duration::from_secs(30), "{:?}", since.elapsed());
    for (number, user) in users.iter().enumerate() {
        let node = 1 + number as u8 % 3;
        assert!(cluster[node].connect(&user.connect(Version::V5, &user.userid)).is_accepted(), "{user:?}, node {node}");
    }
    let seen: Vec<_> = cluster.ids().map(|n| cluster.routes_leader(n)).collect();
    assert!(seen[0].is_some() && seen.iter().all(|l| *l == seen[0]), "split: {seen:?}");
    let mut device = cluster[1].client(&ua, Version::V5, "device");
    device.subscribe(&["chat/ua/#"]);
    cluster[2].client(&root, Version::V5, "backend").publish_ok("chat/ua/x", "hello", 1);
    device.expect("chat/ua/x", "hello");
}

#[test]
fn a_node_that_was_stopped_for_a_while_serves_its_clients_again() {
    let mut cluster = Cluster::start_default();
    let (root, ua) = (cluster[1].superuser("root"), cluster[1].user("ua"));
    let victim = follower(&cluster, 0);
    let other = follower(&cluster, victim);
    let mut device = cluster[victim].client(&ua, Version::V5, "device");
    device.subscribe(&["chat/ua/#"]);
    cluster.stop(victim);
    eventually("the stopped node's routes are gone", || {
        let removed = cluster.ids().filter(|n| *n != victim);
        let removed: f64 =
            removed.map(|n| cluster[n].rest.metric("ciqadamq_cluster_dead_routes_removed_total", &[])).sum();
        (removed >= 1.0).then_some(())
    });
    cluster.resume(victim);
    cluster.wait_ready();
    let mut publisher = cluster[other].client(&root, Version::V5, "backend");
    eventually("its route is back", || {
        publisher.publish_ok("chat/ua/x", "hello", 1);
        device.message_within(Duration::from_millis(300)).ok()
    });
}

#[test]
fn a_node_that_is_cut_off_lets_nobody_in_and_follows_when_it_is_back() {
    let mut cluster = Cluster::start_default();
    if !cluster.can_cut() {
        eprintln!("skipped: needs root and iptables");
        return;
    }
    let (root, ua) = (cluster[1].superuser("root"), cluster[1].user("ua"));
    let cut = cluster.routes_leader(1).unwrap();
    let other = follower(&cluster, cut);
    let mut device = cluster[cut].client(&ua, Version::V5, "device");
    device.subscribe(&["chat/ua/#"]);
    cluster.cut_off(cut);
    eventually("the others elect a leader", || cluster.routes_leader(other).filter(|l| *l != cut));
    assert!(!cluster[cut].connect(&ua.connect(Version::V5, "late")).is_accepted(), "a minority lets nobody in");
    assert!(device.ping(), "who is connected stays");
    let (mut late, _) = cluster[other].connect(&ua.connect(Version::V5, "late")).accepted();
    late.subscribe(&["chat/ua/#"]);
    cluster.mend(cut);
    cluster.wait_ready();
    let mut publisher = cluster[other].client(&root, Version::V5, "backend");
    publisher.publish_ok("chat/ua/x", "hello", 1);
    late.expect("chat/ua/x", "hello");
    // It may have had to start anew.
    let mut device = cluster[cut].client(&ua, Version::V5, "device2");
    device.subscribe(&["chat/ua/#"]);
    eventually("its subscription on the publisher's node", || {
        publisher.publish_ok("chat/ua/x", "again", 1);
        device.message_within(Duration::from_millis(200)).ok().filter(|message| message.text() == "again")
    });
}

/// Its routes were removed while it was away, and nobody leads who could take them again: the nodes tell each other.
#[test]
fn a_node_that_is_back_gets_its_messages_even_while_nobody_leads() {
    let mut cluster = Cluster::start_default();
    let (ua, root) = (cluster[1].user("ua"), cluster[1].superuser("root"));
    let leader = cluster.routes_leader(1).unwrap();
    let away = follower(&cluster, 0);
    let other = follower(&cluster, away);
    let mut device = cluster[away].client(&ua, Version::V5, "device");
    device.subscribe(&["chat/ua/#"]);
    let mut here = cluster[away].client(&root, Version::V5, "publisher-here");
    let mut there = cluster[other].client(&root, Version::V5, "publisher-there");
    let removed = |cluster: &Cluster| -> f64 {
        let count = |n| cluster[n].rest.metric("ciqadamq_cluster_dead_routes_removed_total", &[]);
        [leader, other].into_iter().map(count).sum()
    };
    cluster.stop(away);
    eventually("its routes are removed", || (removed(&cluster) >= 1.0).then_some(()));
    cluster.stop(leader);
    cluster.resume(away);
    let unrouted = |cluster: &Cluster| cluster[away].rest.metric("ciqadamq_cluster_unrouted", &[]);
    eventually("it sees that its route is missing", || (unrouted(&cluster) >= 1.0).then_some(()));
    for publisher in [&mut here, &mut there] {
        eventually("a message arrives", || {
            publisher.publish_ok("chat/ua/x", "first", 1);
            device.message_within(Duration::from_millis(200)).ok()
        });
    }
    assert!(unrouted(&cluster) >= 1.0, "the routing cluster was quicker; nothing is shown");
    // Whatever becomes of the route meanwhile, nothing is lost from here on, and nothing comes twice.
    while device.message_within(Duration::from_millis(300)).is_ok() {}
    cluster.resume(leader);
    let mut count = 0;
    eventually("the route is there again", || {
        for publisher in [&mut here, &mut there] {
            let text = count.to_string();
            publisher.publish_ok("chat/ua/x", &text, 1);
            device.expect("chat/ua/x", &text);
            count += 1;
        }
        (unrouted(&cluster) == 0.0).then_some(())
    });
    cluster.wait_ready();
}

#[test]
fn a_user_deleted_while_a_node_stood_still_does_not_get_in_there_when_it_goes_on() {
    let mut cluster = Cluster::start_default();
    for (round, still) in [(0, Duration::from_secs(3)), (1, Duration::from_secs(8))] {
        let gone = cluster[1].user(&format!("gone{round}"));
        let connect = gone.connect(Version::V5, "phone");
        // Its password is known there.
        cluster[3].connect(&connect).accepted().0.disconnect();
        cluster.stop(3);
        thread::sleep(still);
        cluster[1].rest.delete_user(&gone.username);
        let stays = cluster[1].user(&format!("stays{round}"));
        cluster.resume(3);
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(2) {
            assert!(!cluster[3].connect(&connect).is_accepted(), "in, {:?} after its node went on", since.elapsed());
        }
        let answer = cluster[3].connect(&stays.connect(Version::V5, "phone"));
        assert!(answer.is_accepted(), "who was created meanwhile gets in: {answer:?}");
        cluster.wait_ready();
    }
}

#[test]
fn a_node_that_was_taken_out_while_it_runs_lets_nobody_in() {
    let cluster = Cluster::start_default();
    let (ua, gone) = (cluster[1].user("ua"), cluster[1].user("gone"));
    cluster[3].connect(&gone.connect(Version::V5, "phone")).accepted().0.disconnect();
    cluster.order(1, &["cluster", "remove", "3"]);
    cluster.wait_why(3, "taken out of the cluster");
    cluster[1].rest.delete_user(&gone.username);
    for account in [&gone, &ua] {
        assert!(!cluster[3].connect(&account.connect(Version::V5, "phone")).is_accepted(), "{}", account.username);
    }
    assert!(cluster[1].connect(&ua.connect(Version::V5, "phone")).is_accepted());
}
