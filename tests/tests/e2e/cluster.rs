//! Several nodes are one broker to their clients.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use ciqadamq_tests::mqtt::{Publish, reason};
use ciqadamq_tests::{Account, BrokerOptions, Client, Cluster, Connect, Link, Version, WAIT, Watcher, eventually};
use serde_json::json;

fn watcher(cluster: &Cluster, node: u8) -> Watcher {
    let account = cluster[node].superuser("watcher");
    Watcher::new(cluster[node].client(&account, Version::V5, "watcher"))
}

/// Waits until all that was subscribed before is known on the publisher's node, which it is a moment after its SUBACK. The
/// cluster has one order: when a later subscription is known, so are those before.
fn wait_known(cluster: &Cluster, account: &Account, publisher: &mut Client) {
    let mut probe = cluster[1].client(account, Version::V5, "probe");
    probe.subscribe(&["fanout/probe"]);
    eventually("a subscription on the publisher's node", || {
        publisher.publish_ok("fanout/probe", "", 0);
        probe.message_within(Duration::from_millis(200)).ok()
    });
}

#[test]
fn a_user_made_on_one_node_logs_in_on_another_in_the_next_call() {
    let cluster = Cluster::start_default();
    let enter = |user: u8, from: u8, to: u8| {
        let account = cluster[from].user(&format!("u{user}-{from}-{to}"));
        let answer = cluster[to].connect(&account.connect(Version::V5, &account.userid));
        assert!(answer.is_accepted(), "{account:?} made on node {from} is refused on node {to}: {answer:?}");
    };
    // From 1 to 3, and every other way, side by side: a thousand in all.
    let ways = [(1, 3), (3, 1), (2, 3), (1, 2), (3, 2)];
    thread::scope(|scope| {
        for (from, to) in ways {
            scope.spawn(move || (0..200).for_each(|user| enter(user, from, to)));
        }
    });
}

#[test]
fn of_fifty_creations_of_one_name_on_three_nodes_one_wins_and_its_password_works_everywhere() {
    let cluster = Cluster::start_default();
    let barrier = Barrier::new(50);
    let create = |number: usize| {
        let password = format!("password-{number}");
        let body = json!({"username": "contested", "userid": "ua", "password": password});
        barrier.wait();
        (cluster[1 + (number % 3) as u8].rest.post("/api/v1/users", &body).status, password)
    };
    let answers: Vec<(u16, String)> = thread::scope(|scope| {
        let asked: Vec<_> = (0..50).map(|number| scope.spawn(move || create(number))).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let count = |status| answers.iter().filter(|(s, _)| *s == status).count();
    assert_eq!((count(201), count(409)), (1, 49), "{answers:?}");
    let (_, winner) = answers.iter().find(|(status, _)| *status == 201).unwrap();
    let (_, loser) = answers.iter().find(|(status, _)| *status == 409).unwrap();
    for node in cluster.ids() {
        let enters = |password: &str| {
            let connect = Connect::new(Version::V5, Link::Tcp, format!("c{node}")).login("contested", password);
            cluster[node].connect(&connect).is_accepted()
        };
        assert!(enters(winner) && !enters(loser), "node {node}");
    }
}

/// As `docs/operating/cluster.md` has it.
#[test]
fn one_node_grows_to_three_with_its_users() {
    let mut cluster = Cluster::prepare(3, |_| BrokerOptions::new());
    let config = cluster[1].config();
    let of_a_cluster = fs::read_to_string(&config).unwrap();
    let alone = of_a_cluster.replace("enabled = true", "enabled = false");
    assert_ne!(alone, of_a_cluster);
    fs::write(&config, alone).unwrap();
    cluster[1].spawn();
    cluster[1].wait_ready().unwrap();
    let users: Vec<_> = (0..10).map(|n| cluster[1].user(&format!("u{n}"))).collect();
    assert_eq!(cluster[1].sigterm().code, Some(0));

    fs::write(&config, of_a_cluster).unwrap();
    for node in cluster.ids() {
        cluster[node].spawn();
    }
    for node in [2, 3] {
        cluster.wait_why(node, "this node is no member yet; take it in");
        let url = format!("http://{}", cluster[node].rest.addr);
        cluster.order(1, &["cluster", "add", &node.to_string(), &url]);
    }
    cluster.wait_ready();
    for (number, user) in users.iter().enumerate() {
        let node = 1 + number as u8 % 3;
        assert!(cluster[node].connect(&user.connect(Version::V5, &user.userid)).is_accepted(), "{user:?}, node {node}");
    }
    let new = cluster[3].user("new");
    assert!(cluster[2].connect(&new.connect(Version::V5, "new")).is_accepted());
}

/// As `docs/operating/cluster.md` has it.
#[test]
fn a_cluster_grows_by_a_node() {
    let mut cluster = Cluster::prepare(4, |_| BrokerOptions::new());
    let of_four: Vec<String> = cluster.ids().map(|n| fs::read_to_string(cluster[n].config()).unwrap()).collect();
    let of_three = |text: &str| -> String {
        let without = |line: &str| match line.split_once(", \"4@") {
            Some((three, _)) => format!("{three}]\n"),
            None => format!("{line}\n"),
        };
        text.lines().map(without).collect()
    };
    for node in 1..=3 {
        fs::write(cluster[node].config(), of_three(&of_four[usize::from(node) - 1])).unwrap();
        cluster[node].spawn();
    }
    for node in 1..=3 {
        cluster[node].wait_ready().unwrap();
    }
    let (root, ua) = (cluster[1].superuser("root"), cluster[1].user("ua"));
    // One after the other; the others serve meanwhile.
    for node in 1..=3 {
        fs::write(cluster[node].config(), &of_four[usize::from(node) - 1]).unwrap();
        assert_eq!(cluster[node].sigterm().code, Some(0));
        let other = node % 3 + 1;
        assert!(cluster[other].connect(&ua.connect(Version::V5, "meanwhile")).is_accepted(), "node {node} is away");
        cluster[node].start_again();
    }
    cluster[4].spawn();
    cluster.wait_why(4, "this node is no member yet; take it in");
    cluster.order(2, &["cluster", "add", "4", &format!("http://{}", cluster[4].rest.addr)]);
    cluster.wait_ready();
    let mut device = cluster[4].client(&ua, Version::V5, "device");
    device.subscribe(&["chat/ua/#"]);
    let mut publisher = cluster[1].client(&root, Version::V5, "backend");
    eventually("a message for the new node", || {
        publisher.publish_ok("chat/ua/x", "hello", 1);
        device.message_within(Duration::from_millis(200)).ok()
    });
}

#[test]
fn what_is_published_on_one_node_reaches_devices_on_all() {
    let cluster = Cluster::start_default();
    let (root, ua) = (cluster[1].superuser("root"), cluster[1].user("ua"));
    let mut publisher = cluster[2].client(&root, Version::V5, "backend");
    let mut devices = Vec::new();
    for node in cluster.ids() {
        for (name, link) in [("tcp", Link::Tcp), ("ws", Link::both()[1].clone())] {
            let connect = Connect::new(Version::V5, link, format!("{name}{node}")).login(&ua.username, &ua.password);
            let (mut device, _) = cluster[node].connect(&connect).accepted();
            device.subscribe(&["chat/ua/m/all"]);
            devices.push(device);
        }
    }
    // A subscription is known on the other nodes a moment after its SUBACK.
    for device in &mut devices {
        eventually("the subscription on the publisher's node", || {
            publisher.publish_ok("chat/ua/m/all", "ready", 1);
            device.message_within(Duration::from_millis(200)).ok()
        });
    }
    for i in 0..20 {
        publisher.publish_ok("chat/ua/m/all", &i.to_string(), 1);
    }
    for device in &mut devices {
        let before = device.until("chat/ua/m/all", "0");
        assert!(before.iter().all(|m| m.text() == "ready"), "{before:?}");
        for i in 1..20 {
            device.expect("chat/ua/m/all", &i.to_string());
        }
    }
}

#[test]
fn a_shared_subscription_with_members_on_two_nodes_gets_each_message_once() {
    let cluster = Cluster::start_default();
    let (root, ua) = (cluster[1].superuser("root"), cluster[1].user("ua"));
    let mut members = Vec::new();
    for node in [1, 2] {
        let mut member = cluster[node].client(&ua, Version::V5, &format!("member{node}"));
        member.subscribe(&["$share/g/chat/ua/#", "chat/ua/end", "fanout/ready"]);
        members.push(member);
    }
    let mut publisher = cluster[3].client(&root, Version::V5, "backend");
    // The last of the filters: when it is known on the publisher's node, all are.
    for member in &mut members {
        eventually("the subscriptions on the publisher's node", || {
            publisher.publish_ok("fanout/ready", "", 1);
            member.message_within(Duration::from_millis(200)).ok()
        });
    }
    for i in 0..50 {
        publisher.publish_ok("chat/ua/x", &i.to_string(), 1);
    }
    publisher.publish_ok("chat/ua/end", "end", 1);
    let mut got: Vec<u32> = Vec::new();
    for member in &mut members {
        // The last message reaches one of them twice: as a member and by itself.
        let before = member.until("chat/ua/end", "end");
        got.extend(before.iter().filter(|m| m.topic == "chat/ua/x").map(|m| m.text().parse::<u32>().unwrap()));
    }
    got.sort_unstable();
    assert_eq!(got, (0..50).collect::<Vec<_>>());
}

#[test]
fn a_session_moves_to_another_node_with_its_subscriptions_and_its_queue_in_order() {
    let cluster = Cluster::start_default();
    let (root, ua) = (cluster[1].superuser("root"), cluster[1].user("ua"));
    let mut publisher = cluster[3].client(&root, Version::V5, "backend");
    for version in Version::COMMON {
        let own = ua.connect(version, "phone").persistent(600);
        let (mut phone, _) = cluster[1].connect(&own).accepted();
        phone.subscribe(&["chat/ua/#"]);
        wait_known(&cluster, &ua, &mut publisher);
        phone.disconnect();
        cluster[1].rest.wait_offline("phone");
        for i in 0..200 {
            publisher.publish_ok("chat/ua/x", &i.to_string(), 1);
        }
        let (mut phone, connack) = cluster[2].connect(&own).accepted();
        assert!(connack.session_present, "{version:?}");
        for i in 0..200 {
            phone.expect("chat/ua/x", &i.to_string());
        }
        publisher.publish_ok("chat/ua/x", "still subscribed", 1);
        phone.expect("chat/ua/x", "still subscribed");
        phone.disconnect();
        assert_eq!(cluster[3].rest.delete("/api/v1/sessions/phone").status, 204);
        cluster[2].rest.wait_gone("phone");
    }
}

#[test]
fn nothing_is_lost_while_an_online_session_moves_to_and_fro() {
    let cluster = Cluster::start_default();
    let (root, ua) = (cluster[1].superuser("root"), cluster[1].user("ua"));
    let mut publisher = cluster[3].client(&root, Version::V5, "backend");
    let own = ua.connect(Version::V5, "phone").persistent(600);
    let (mut phone, _) = cluster[1].connect(&own).accepted();
    phone.subscribe(&["chat/ua/x"]);
    wait_known(&cluster, &ua, &mut publisher);
    let publishing = thread::spawn(move || {
        for i in 0..400 {
            publisher.publish_ok("chat/ua/x", &i.to_string(), 1);
        }
        publisher
    });
    let mut got = BTreeSet::new();
    for round in 0..6 {
        for _ in 0..20 {
            got.insert(phone.message().text().parse::<u32>().unwrap());
        }
        let (successor, connack) = cluster[[2, 1, 3][round % 3]].connect(&own).accepted();
        assert!(connack.session_present);
        phone = successor;
    }
    let _publisher = publishing.join().unwrap();
    while got.len() < 400 {
        match phone.message_within(WAIT) {
            Ok(message) => got.insert(message.text().parse().unwrap()),
            Err(event) => panic!("{event:?}; missing: {:?}", (0..400).filter(|n| !got.contains(n)).collect::<Vec<_>>()),
        };
    }
}

#[test]
fn a_client_id_on_another_node_is_nobody_elses() {
    let cluster = Cluster::start_default();
    let mut watcher = watcher(&cluster, 3);
    let (ua, ub) = (cluster[1].user("ua"), cluster[1].user("ub"));
    for version in Version::COMMON {
        let own = ua.connect(version, "dev1").persistent(600);
        let (mut phone, _) = cluster[1].connect(&own).accepted();
        phone.subscribe(&["chat/ua/#"]);
        wait_known(&cluster, &ua, watcher.client());
        let attack = |clean: bool| {
            for node in [2, 3] {
                for other in Version::COMMON {
                    let mut connect = ub.connect(other, "dev1");
                    connect.clean = clean;
                    let code = cluster[node].connect(&connect).refused();
                    assert_eq!(code, other.pick(reason::NOT_AUTHORIZED, reason::V3_NOT_AUTHORIZED));
                }
            }
        };
        attack(true);
        attack(false);
        assert!(phone.ping(), "an online session is not disturbed");
        phone.disconnect();
        cluster[2].rest.wait_offline("dev1");
        for i in 0..3 {
            watcher.publish("chat/ua/x", &i.to_string());
        }
        attack(true);
        attack(false);
        let (mut phone, connack) = cluster[2].connect(&own).accepted();
        assert!(connack.session_present, "{version:?}");
        for i in 0..3 {
            phone.expect("chat/ua/x", &i.to_string());
        }
        assert_eq!(cluster[3].rest.delete("/api/v1/sessions/dev1").status, 204);
        cluster[2].rest.wait_gone("dev1");
    }
}

#[test]
fn two_users_who_want_one_client_id_at_the_same_moment_on_two_nodes_never_share_a_session() {
    let cluster = Cluster::start_default();
    let root = cluster[1].superuser("root");
    let (ua, ub) = (cluster[1].user("ua"), cluster[1].user("ub"));
    let mut publisher = cluster[3].client(&root, Version::V5, "backend");
    let mut both_in = 0;
    for round in 0..60 {
        let client_id = format!("dev{round}");
        let barrier = Barrier::new(2);
        let enter = |account: &ciqadamq_tests::Account, node: u8| {
            let connect = account.connect(Version::V5, &client_id).persistent(60);
            barrier.wait();
            let answer = cluster[node].connect(&connect);
            answer.is_accepted().then(|| {
                let (mut client, connack) = answer.accepted();
                assert!(!connack.session_present, "round {round}: somebody else's session");
                client.subscribe(&[&format!("chat/{}/#", account.userid)]);
                client
            })
        };
        let (a, b) = thread::scope(|scope| {
            let a = scope.spawn(|| enter(&ua, 1));
            let b = scope.spawn(|| enter(&ub, 2));
            (a.join().unwrap(), b.join().unwrap())
        });
        both_in += u32::from(a.is_some() && b.is_some());
        for (mine, mut client) in [("ua", a), ("ub", b)].into_iter().filter_map(|(m, c)| Some((m, c?))) {
            for to in ["ua", "ub"] {
                publisher.publish_ok(&format!("chat/{to}/x"), to, 1);
            }
            // Its subscription takes effect on the publisher's node a moment after it was acknowledged.
            let end = format!("chat/{mine}/end");
            let mut got = Vec::new();
            eventually("the end", || {
                publisher.publish_ok(&end, "end", 1);
                while let Ok(message) = client.message_within(Duration::from_millis(200)) {
                    if message.topic == end {
                        return Some(());
                    }
                    got.push(message);
                }
                None
            });
            assert!(got.iter().all(|m| m.text() == mine), "round {round}: {mine} got {got:?}");
        }
    }
    assert_eq!(both_in, 0, "one client id had two sessions");
}

#[test]
fn a_deleted_user_is_gone_from_every_node() {
    let cluster = Cluster::start_default();
    let ua = cluster[1].user("ua");
    let mut online = Vec::new();
    for (node, link) in [(1, Link::Tcp), (2, Link::both()[1].clone())] {
        let connect = Connect::new(Version::V5, link, format!("online{node}")).login(&ua.username, &ua.password);
        online.push(cluster[node].connect(&connect).accepted().0);
    }
    let (mut offline, _) = cluster[3].connect(&ua.connect(Version::V5, "offline").persistent(600)).accepted();
    offline.subscribe(&["chat/ua/#"]);
    offline.disconnect();
    cluster[1].rest.wait_offline("offline");
    cluster[2].rest.delete_user(&ua.username);
    for client in &mut online {
        assert_eq!(client.expect_closed(), Some(0x98));
    }
    for node in cluster.ids() {
        assert!(!cluster[node].connect(&ua.connect(Version::V5, "again")).is_accepted(), "node {node}");
        cluster[node].rest.wait_gone("offline");
    }
    // A user of the same name inherits nothing.
    let ua = cluster[3].user("ua");
    let (_, connack) = cluster[3].connect(&ua.connect(Version::V5, "offline").persistent(600)).accepted();
    assert!(!connack.session_present);
}

#[test]
fn retained_messages_are_on_every_node() {
    let cluster = Cluster::start_default();
    let (root, ua) = (cluster[1].superuser("root"), cluster[1].user("ua"));
    let mut publisher = cluster[2].client(&root, Version::V5, "backend");
    let mut retained = Publish::new("chat/ua/state", "here", 1);
    retained.retain = true;
    publisher.publish(&retained);
    for node in cluster.ids() {
        let got = eventually("the retained message", || {
            let mut device = cluster[node].client(&ua, Version::V5, &format!("device{node}"));
            device.subscribe(&["chat/ua/state"]);
            device.message_within(Duration::from_millis(500)).ok()
        });
        assert_eq!((got.text(), got.retain), ("here".into(), true), "node {node}");
    }
}

#[test]
fn sessions_of_all_nodes_are_listed_and_ended_from_any() {
    let cluster = Cluster::start_default();
    let ua = cluster[1].user("ua");
    let mut clients: Vec<_> =
        cluster.ids().map(|node| cluster[node].client(&ua, Version::V5, &format!("c{node}"))).collect();
    for node in cluster.ids() {
        let listed = cluster[node].rest.get("/api/v1/sessions?userid=ua").json();
        let ids: Vec<_> = listed["sessions"].as_array().unwrap().iter().map(|s| s["clientid"].clone()).collect();
        assert_eq!(ids, ["c1", "c2", "c3"], "node {node}");
    }
    assert_eq!(cluster[1].rest.delete("/api/v1/sessions/c3").status, 204);
    assert_eq!(clients[2].expect_closed(), Some(0x98));
    assert!(clients[0].ping() && clients[1].ping());
}
