//! Whatever node a client is on.

use std::time::Duration;

use ciqadamq_tests::mqtt::reason;
use ciqadamq_tests::{Client, Connect, Link, Version, eventually};

use super::site::Site;

#[test]
fn a_user_made_on_one_node_logs_in_on_every_other_and_is_gone_from_all_when_deleted() {
    let Some(site) = Site::enter() else { return };
    let user = site.user("ua", false);
    let mut clients = Vec::new();
    for (n, node) in site.nodes.iter().enumerate() {
        for (name, link) in [("tcp", Link::Tcp), ("ws", Link::ws())] {
            clients.push(node.door.client(&user, link, &format!("{}-{name}{n}", user.userid)));
        }
        let wrong = Connect::new(Version::V5, Link::Tcp, "x").login(&user.username, "guess");
        assert_eq!(Client::connect(&wrong, node.door.tcp).refused(), reason::BAD_CREDENTIALS);
    }
    site.nodes[1].rest.delete_user(&user.username);
    for client in &mut clients {
        // The reason is told as well as it can be, the end is certain.
        client.expect_closed();
    }
    for node in &site.nodes {
        let again = Connect::new(Version::V5, Link::Tcp, "again").login(&user.username, &user.password);
        assert!(!Client::connect(&again, node.door.tcp).is_accepted());
    }
}

#[test]
fn what_a_backend_publishes_on_one_node_reaches_every_device_and_back() {
    let Some(site) = Site::enter() else { return };
    let (user, root) = (site.user("ua", false), site.user("backend", true));
    let topic = format!("chat/{}/m/all", user.userid);
    let doors = site.nodes.iter().map(|node| node.door).chain(site.front.map(|front| front.door));
    let mut devices = Vec::new();
    for (n, door) in doors.enumerate() {
        for (name, link) in [("tcp", Link::Tcp), ("ws", Link::ws())] {
            let mut device = door.client(&user, link, &format!("{}-{name}{n}", user.userid));
            device.subscribe(&[&topic]);
            devices.push(device);
        }
    }
    let mut backend = site.nodes[2].door.client(&root, Link::Tcp, &root.userid);
    backend.subscribe(&["chatsync"]);
    // A subscription is known on the other nodes a moment after its SUBACK.
    for device in &mut devices {
        eventually("the subscription on the publisher's node", || {
            backend.publish_ok(&topic, "ready", 1);
            device.message_within(Duration::from_millis(200)).ok()
        });
    }
    for i in 0..50 {
        backend.publish_ok(&topic, &i.to_string(), 1);
    }
    for device in &mut devices {
        let before = device.until(&topic, "0");
        assert!(before.iter().all(|message| message.text() == "ready"), "{before:?}");
        for i in 1..50 {
            device.expect(&topic, &i.to_string());
        }
    }
    for (i, device) in devices.iter_mut().enumerate() {
        let said = format!("{} {i}", user.userid);
        device.publish_ok("chatsync", &said, 1);
        // Others may write to this topic meanwhile.
        backend.until("chatsync", &said);
        assert!(!device.may_subscribe("chat/#"));
    }
}

#[test]
fn a_session_moves_with_its_queue_and_stays_its_owners() {
    let Some(site) = Site::enter() else { return };
    let (user, other, root) = (site.user("ua", false), site.user("ub", false), site.user("backend", true));
    let topic = format!("chat/{}/x", user.userid);
    let client_id = format!("{}-phone", user.userid);
    let own = user.connect(Version::V5, &client_id).persistent(600);
    let (mut phone, _) = Client::connect(&own, site.nodes[0].door.tcp).accepted();
    phone.subscribe(&[&topic]);
    phone.disconnect();
    site.nodes[1].rest.wait_offline(&client_id);
    let mut backend = site.nodes[2].door.client(&root, Link::Tcp, &root.userid);
    for i in 0..100 {
        backend.publish_ok(&topic, &i.to_string(), 1);
    }
    for node in &site.nodes {
        let code = Client::connect(&other.connect(Version::V5, &client_id), node.door.tcp).refused();
        assert_eq!(code, reason::NOT_AUTHORIZED);
    }
    let (mut phone, connack) = Client::connect(&own, site.nodes[1].door.tcp).accepted();
    assert!(connack.session_present);
    for i in 0..100 {
        phone.expect(&topic, &i.to_string());
    }
    // While it is online too.
    let (mut successor, connack) = Client::connect(&own, site.nodes[2].door.tcp).accepted();
    assert!(connack.session_present);
    phone.expect_closed();
    backend.publish_ok(&topic, "still subscribed", 1);
    successor.expect(&topic, "still subscribed");
}

#[test]
fn behind_haproxy_clients_are_known_by_another_address_than_its_own() {
    let Some(site) = Site::enter() else { return };
    let Some(front) = site.front() else { return };
    let user = site.user("ua", false);
    for (name, link) in [("tcp", Link::Tcp), ("ws", Link::ws())] {
        let client_id = format!("{}-{name}", user.userid);
        let _client = front.door.client(&user, link, &client_id);
        let session = site.nodes[0].rest.session(&client_id).unwrap();
        let address = session["address"].as_str().unwrap().to_owned();
        assert!(!address.starts_with(&format!("{}:", front.ip)), "{client_id} is known by {address}");
    }
}
