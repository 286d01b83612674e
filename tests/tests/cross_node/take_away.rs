//! A node dies under load and comes back, without an operator.

use std::thread;

use ciqadamq_tests::{Link, eventually};

use super::load::{Counts, StopAtEnd};
use super::site::Site;

const DEVICES: usize = 9;

#[test]
fn a_node_killed_and_back_under_load_costs_its_clients_a_reconnect() {
    let Some(site) = Site::enter() else { return };
    let leader = site.routes_leader();
    let victim = (2..=site.nodes.len()).find(|node| *node != leader).unwrap();
    killed_and_back(&site, victim);
}

#[test]
fn the_leader_killed_and_back_under_load_costs_its_clients_a_reconnect() {
    let Some(site) = Site::enter() else { return };
    killed_and_back(&site, site.routes_leader());
}

/// All come by HAProxy, if there is one, else by the door of a node that lives.
fn killed_and_back(site: &Site, victim: usize) {
    let (user, root) = (site.user("ua", false), site.user("backend", true));
    let counts = Counts::default();
    let living = site.nodes.iter().enumerate().find(|(n, _)| n + 1 != victim).map(|(_, node)| node).unwrap();
    let to = site.front.map_or(living.door, |front| front.door).tcp;
    thread::scope(|scope| {
        let stop = StopAtEnd(&counts);
        counts.run(scope, (&user, &root), DEVICES, to);
        let all_get = |what: &str| {
            eventually(what, || (living.online(&user).len() == DEVICES).then_some(()));
            let (before, published) = (counts.read(|c| &c.got), counts.read(|c| &c.published));
            eventually(what, || {
                let got = counts.read(|c| &c.got) >= before + 20 * DEVICES as u32;
                (got && counts.read(|c| &c.published) >= published + 20).then_some(())
            });
        };
        all_get("devices get messages");
        let before = living.online(&user);
        if site.front.is_some() {
            assert!(before.contains(&victim), "HAProxy sent nobody to node {victim}: {before:?}");
        }
        site.kill(victim);
        eventually("the clients of the dead node are elsewhere", || {
            let now = living.online(&user);
            (now.len() == DEVICES && !now.contains(&victim)).then_some(())
        });
        all_get("devices get messages without the node");
        site.start(victim);
        site.wait_ready();
        all_get("devices get messages with the node back");
        if let Some(front) = site.front {
            eventually("clients come to the node that is back", || {
                let _client = front.door.client(&user, Link::Tcp, &format!("{}-late", user.userid));
                living.online(&user).contains(&victim).then_some(())
            });
        } else {
            site.nodes[victim - 1].door.client(&user, Link::ws(), &format!("{}-late", user.userid)).disconnect();
        }
        drop(stop);
    });
    println!(
        "node {victim}: {} messages acknowledged, {} delivered, nobody without a connection for longer than {} ms",
        counts.read(|c| &c.published),
        counts.read(|c| &c.got),
        counts.away_ms.into_inner(),
    );
    assert_eq!(counts.refused.into_inner(), 0, "somebody was refused");
}
