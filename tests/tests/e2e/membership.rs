//! Who is a member, and so has a vote on the routes; what a node that is none does; and gaps that last.

use std::fs;
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use ciqadamq_tests::mqtt::Publish;
use ciqadamq_tests::{BrokerOptions, Cluster, Outcome, Version, eventually};
use serde_json::{Value, json};

/// Waits until these nodes agree on who votes on the routes.
#[track_caller]
fn wait_voters(cluster: &Cluster, nodes: &[u8], voters: &[u8]) {
    let voters = json!(voters);
    eventually("the voters of the routes", || {
        nodes.iter().all(|node| shown_voters(cluster, *node) == voters).then_some(())
    });
}

/// Who votes on the routes, as a node says itself.
fn shown_voters(cluster: &Cluster, node: u8) -> Value {
    let view = cluster[node].rest.get("/api/v1/cluster").json();
    let nodes = view["nodes"].as_array().unwrap();
    let this = nodes.iter().find(|shown| shown["id"] == json!(node)).unwrap();
    this["rafts"]["routes"]["voters"].clone()
}

/// Someone gets in on a node and subscribes, which both take a majority of the voters.
#[track_caller]
fn serves(cluster: &Cluster, node: u8) {
    let user = cluster[node].user(&format!("at{node}"));
    cluster[node].client(&user, Version::V5, &format!("at{node}")).subscribe(&[&format!("chat/at{node}/#")]);
    cluster[node].rest.delete_user(&user.username);
}

#[test]
fn a_node_that_was_taken_out_while_it_was_down_has_no_vote_on_the_routes() {
    let mut cluster = Cluster::start(4, |_| BrokerOptions::new());
    wait_voters(&cluster, &[1, 2, 3, 4], &[1, 2, 3, 4]);
    let users = &cluster[1].rest.get("/api/v1/cluster").json()["nodes"][0]["rafts"];
    assert!(users["users"]["term"].is_u64() && users["routes"].get("term").is_none(), "{users}");
    assert_eq!(cluster[4].sigterm().code, Some(0));
    wait_voters(&cluster, &[1, 2, 3], &[1, 2, 3, 4]);
    cluster.order(1, &["cluster", "remove", "4"]);
    wait_voters(&cluster, &[1, 2, 3], &[1, 2, 3]);
    // Two of three are enough, which two of four were not.
    let away = cluster.routes_leader(1).unwrap();
    cluster.kill(away);
    for node in (1..=3).filter(|node| *node != away) {
        serves(&cluster, node);
    }
    cluster[away].spawn();
    cluster[away].wait_ready().unwrap();
    wait_voters(&cluster, &[1, 2, 3], &[1, 2, 3]);
}

#[test]
fn a_node_that_leads_the_routes_and_is_taken_out_leaves_them_in_order() {
    let mut cluster = Cluster::start(4, |_| BrokerOptions::new());
    let leader = cluster.routes_leader(1).unwrap();
    let rest: Vec<u8> = cluster.ids().filter(|node| *node != leader).collect();
    cluster.order(rest[0], &["cluster", "remove", &leader.to_string()]);
    wait_voters(&cluster, &rest, &rest);
    for node in &rest {
        eventually("they have another leader", || cluster.routes_leader(*node).filter(|new| *new != leader));
        serves(&cluster, *node);
    }
    // It starts anew, by itself, and takes no part.
    cluster.wait_why(leader, "this node takes part as soon as it is a member");
    cluster.wait_why(leader, "this node was taken out of the cluster");
    wait_voters(&cluster, &rest, &rest);
    assert!(cluster[leader].runs());
}

#[test]
fn a_node_that_is_no_member_yet_has_no_vote_on_the_routes() {
    let mut cluster = Cluster::prepare(3, |_| BrokerOptions::new());
    let config = cluster[1].config();
    let of_a_cluster = fs::read_to_string(&config).unwrap();
    fs::write(&config, of_a_cluster.replace("enabled = true", "enabled = false")).unwrap();
    cluster[1].spawn();
    cluster[1].wait_ready().unwrap();
    assert_eq!(cluster[1].sigterm().code, Some(0));
    fs::write(&config, of_a_cluster).unwrap();
    for node in cluster.ids() {
        cluster[node].spawn();
    }
    for node in [2, 3] {
        cluster.wait_why(node, "this node is no member yet; take it in");
        cluster.wait_why(node, "routes: this node takes part as soon as it is a member");
    }
    // The only member goes on alone.
    cluster[1].wait_ready().unwrap();
    wait_voters(&cluster, &[1], &[1]);
    serves(&cluster, 1);
    for (node, voters) in [(2, &[1, 2][..]), (3, &[1, 2, 3][..])] {
        cluster.order(1, &["cluster", "add", &node.to_string(), &format!("http://{}", cluster[node].rest.addr)]);
        cluster[node].wait_ready().unwrap();
        wait_voters(&cluster, voters, voters);
    }
    cluster.wait_ready();
}

#[test]
fn a_port_of_a_cluster_that_is_used_already_is_named_and_the_node_ends() {
    for key in ["grpc_laddr", "raft_laddr"] {
        let mut cluster = Cluster::prepare(2, |_| BrokerOptions::new());
        let config = fs::read_to_string(cluster[1].config()).unwrap();
        let line = config.lines().find_map(|line| line.strip_prefix(&format!("{key} = "))).unwrap();
        let _used = TcpListener::bind(line.trim_matches('"')).unwrap();
        cluster[1].spawn();
        let exit = cluster[1].wait();
        assert_eq!(exit.code, Some(1), "{}", cluster[1].log());
        let log = cluster[1].log();
        assert!(log.contains(&format!("cluster.{key}: ")) && log.contains("cannot be opened"), "{log}");
        assert!(!log.contains("restarting"), "{log}");
    }
}

/// The others tell of a node that is away: the raft's own word for every message to it is left out.
#[test]
fn a_node_that_is_gone_costs_the_others_a_line_and_not_a_line_each_heartbeat() {
    let mut cluster = Cluster::start_default();
    let leader = cluster.routes_leader(1).unwrap();
    let away = leader % 3 + 1;
    let before = cluster[leader].log().len();
    cluster.kill(away);
    eventually("it is held for dead", || cluster[leader].log()[before..].contains("held for dead").then_some(()));
    thread::sleep(Duration::from_secs(5));
    let log = cluster[leader].log()[before..].to_owned();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("WARN")).collect();
    assert!(warnings.len() < 10, "{} warnings:\n{}", warnings.len(), warnings.join("\n"));
}

/// Held for dead for so long that what was for it is given up, while it noticed nothing itself.
#[test]
#[ignore = "takes more than a minute"]
fn a_node_that_stood_still_for_a_minute_has_what_was_retained_meanwhile() {
    let mut cluster = Cluster::start_default();
    let (root, ua) = (cluster[1].superuser("root"), cluster[1].user("ua"));
    let leader = cluster.routes_leader(1).unwrap();
    let still = leader % 3 + 1;
    let mut publisher = cluster[leader].client(&root, Version::V5, "backend");
    let mut retain = |topic: &str| {
        let publish = Publish { retain: true, ..Publish::new(topic, topic, 1) };
        assert_eq!(publisher.publish(&publish), Outcome::Acked(0), "{topic}");
    };
    let has = |cluster: &Cluster, topic: &str| {
        let mut device = cluster[still].client(&ua, Version::V5, "device");
        device.subscribe(&[topic]);
        device.message_within(Duration::from_millis(300)).is_ok()
    };
    retain("chat/ua/before");
    eventually("what is retained before", || has(&cluster, "chat/ua/before").then_some(()));
    let said = cluster[leader].log().len();
    cluster.stop(still);
    // What is sent before waits in the socket.
    eventually("it is held for dead", || cluster[leader].log()[said..].contains("held for dead").then_some(()));
    retain("chat/ua/meanwhile");
    let dropped = |cluster: &Cluster| cluster[leader].rest.metric("ciqadamq_cluster_forward_dropped_total", &[]);
    let before = dropped(&cluster);
    thread::sleep(Duration::from_secs(55));
    eventually("what was for it is given up", || (dropped(&cluster) > before).then_some(()));
    cluster.resume(still);
    cluster.wait_ready();
    // The next one has a number that tells of a gap.
    retain("chat/ua/after");
    for topic in ["chat/ua/after", "chat/ua/meanwhile"] {
        eventually("what is retained meanwhile", || has(&cluster, topic).then_some(()));
    }
    assert!(!cluster[still].log().contains("restarting"), "it began anew, which shows nothing");
}

#[test]
#[ignore = "takes more than a minute"]
fn nodes_that_were_cut_from_each_other_for_more_than_a_minute_are_one_cluster_again() {
    let mut cluster = Cluster::start_default();
    if !cluster.can_cut() {
        eprintln!("skipped: needs root and iptables");
        return;
    }
    let (root, ua, gone) = (cluster[1].superuser("root"), cluster[1].user("ua"), cluster[1].user("gone"));
    let cut = cluster.routes_leader(1).unwrap();
    let other = cut % 3 + 1;
    let (mut phone, _) = cluster[cut].connect(&ua.connect(Version::V5, "phone").persistent(600)).accepted();
    phone.subscribe(&["chat/ua/x"]);
    cluster.cut_off(cut);
    eventually("the others elect a leader", || cluster.routes_leader(other).filter(|leader| *leader != cut));
    cluster[other].rest.delete_user(&gone.username);
    let mut publisher = cluster[other].client(&root, Version::V5, "backend");
    let retained = Publish { retain: true, ..Publish::new("chat/ua/meanwhile", "here", 1) };
    assert_eq!(publisher.publish(&retained), Outcome::Acked(0));
    thread::sleep(Duration::from_secs(65));
    assert!(phone.ping(), "who is connected stays");
    cluster.mend(cut);
    cluster.wait_ready();
    assert!(!cluster[cut].connect(&gone.connect(Version::V5, "gone")).is_accepted(), "a deleted user got in");
    let (mut phone, _) = cluster[cut].connect(&ua.connect(Version::V5, "phone").persistent(600)).accepted();
    phone.subscribe(&["chat/ua/x", "chat/ua/meanwhile"]);
    assert_eq!(phone.until("chat/ua/meanwhile", "here"), []);
    eventually("its subscription on the publisher's node", || {
        publisher.publish_ok("chat/ua/x", "hello", 1);
        phone.message_within(Duration::from_millis(300)).ok()
    });
    let leaders: Vec<_> = cluster.ids().map(|node| cluster.routes_leader(node)).collect();
    assert!(leaders[0].is_some() && leaders.iter().all(|leader| *leader == leaders[0]), "split: {leaders:?}");
}

/// As `docs/operating/cluster.md` has it.
#[test]
fn a_client_that_comes_to_another_node_while_its_own_is_down_begins_anew_and_goes_on_with_that() {
    let mut cluster = Cluster::start_default();
    let (root, ua) = (cluster[1].superuser("root"), cluster[1].user("ua"));
    let own = ua.connect(Version::V5, "phone").persistent(600);
    let (mut phone, _) = cluster[3].connect(&own).accepted();
    phone.subscribe(&["chat/ua/old"]);
    cluster.kill(3);
    let (mut phone, connack) = cluster[1].connect(&own).accepted();
    assert!(!connack.session_present, "it has the session of a node that is down");
    phone.subscribe(&["chat/ua/new"]);
    let mut publisher = cluster[1].client(&root, Version::V5, "backend");
    publisher.publish_ok("chat/ua/old", "lost", 1);
    publisher.publish_ok("chat/ua/new", "kept", 1);
    phone.expect("chat/ua/new", "kept");
    cluster[3].spawn();
    cluster.wait_ready();
    let (mut phone, connack) = cluster[3].connect(&own).accepted();
    assert!(connack.session_present);
    publisher.publish_ok("chat/ua/old", "lost", 1);
    publisher.publish_ok("chat/ua/new", "here again", 1);
    phone.expect("chat/ua/new", "here again");
}
