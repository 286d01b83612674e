//! WebSocket as browsers and odd clients speak it.

use ciqadamq_tests::mqtt::{Event, Packet, kind, opcode, packet, subscribe};
use ciqadamq_tests::{Account, Broker, Client, Connect, Link, Version, WAIT};

fn ws(path: &str, protocol: Option<&str>) -> Link {
    Link::Ws { path: path.into(), protocol: protocol.map(str::to_owned) }
}

fn connect(account: &Account, version: Version, link: Link) -> Connect {
    Connect::new(version, link, "browser").login(&account.username, &account.password)
}

#[track_caller]
fn works(client: &mut Client) {
    client.subscribe(&["chat/ua/#"]);
    assert!(client.ping());
}

#[test]
fn any_path_will_do() {
    let broker = Broker::start_default();
    let ua = broker.user("ua");
    for path in ["/", "/mqtt", "/any/thing", "/mqtt?token=x&y=1", "/%20/ä"] {
        let (mut client, _) = broker.connect(&connect(&ua, Version::V311, ws(path, Some("mqtt")))).accepted();
        works(&mut client);
    }
}

#[test]
fn the_subprotocol_may_be_named_listed_or_left_out() {
    let broker = Broker::start_default();
    let ua = broker.user("ua");
    for (offered, chosen) in [
        (Some("mqtt"), vec![Some("mqtt")]),
        (Some("mqttv3.1"), vec![Some("mqttv3.1")]),
        (Some("mqtt, mqttv3.1"), vec![Some("mqtt"), Some("mqttv3.1")]),
        (Some("mqttv3.1,mqtt"), vec![Some("mqtt"), Some("mqttv3.1")]),
        (Some("chat, mqtt"), vec![Some("mqtt")]),
        (None, vec![None]),
    ] {
        for version in [Version::V31, Version::V311, Version::V5] {
            let (mut client, _) = broker.connect(&connect(&ua, version, ws("/mqtt", offered))).accepted();
            let got = client.stream.subprotocol();
            assert!(chosen.contains(&got), "{offered:?}: {got:?}");
            works(&mut client);
        }
    }
}

#[test]
fn packets_and_frames_need_not_coincide() {
    let broker = Broker::start_default();
    let ua = broker.user("ua");
    for version in Version::COMMON {
        let connect = connect(&ua, version, Link::ws());
        // One packet in fragments of one message, with a control frame in between.
        let bytes = connect.encode();
        let mut client = Client::open(&connect, broker.ws).unwrap();
        client.stream.send_frame(opcode::BINARY, false, &bytes[..3]).unwrap();
        client.stream.send_frame(opcode::PING, true, b"between").unwrap();
        client.stream.send_frame(opcode::CONTINUATION, false, &bytes[3..10]).unwrap();
        client.stream.send_frame(opcode::CONTINUATION, true, &bytes[10..]).unwrap();
        let (mut client, _) = client.connack().accepted();
        assert_eq!(client.stream.control_frame().map(|frame| frame.payload), Some(b"between".to_vec()));
        works(&mut client);

        // One packet over several messages, byte by byte.
        let mut client = Client::open(&connect, broker.ws).unwrap();
        for byte in &bytes {
            client.stream.send_frame(opcode::BINARY, true, &[*byte]).unwrap();
        }
        let (mut client, _) = client.connack().accepted();
        works(&mut client);

        // Several packets in one message, with an empty message behind.
        let mut client = Client::open(&connect, broker.ws).unwrap();
        let several = [bytes, subscribe(version, 1, &[("chat/ua/#", 1)]), packet(kind::PINGREQ, 0, &[])].concat();
        client.stream.send_frame(opcode::BINARY, true, &several).unwrap();
        client.stream.send_frame(opcode::BINARY, true, &[]).unwrap();
        let (mut client, _) = client.connack().accepted();
        assert!(matches!(client.next(WAIT), Event::Packet(Packet::Suback { id: 1, .. })));
        assert_eq!(client.next(WAIT), Event::Packet(Packet::Pingresp));
        works(&mut client);
    }
}

#[test]
fn pings_are_answered_before_and_after_connect() {
    let broker = Broker::start_default();
    let ua = broker.user("ua");
    let connect = connect(&ua, Version::V5, Link::ws());
    let mut client = Client::open(&connect, broker.ws).unwrap();
    client.stream.send_frame(opcode::PING, true, b"").unwrap();
    client.stream.send_frame(opcode::PING, true, b"early").unwrap();
    client.send(&connect.encode());
    let (mut client, _) = client.connack().accepted();
    client.stream.send_frame(opcode::PING, true, b"").unwrap();
    client.stream.send_frame(opcode::PING, true, &[7; 125]).unwrap();
    client.stream.send_frame(opcode::PONG, true, b"nobody asked").unwrap();
    works(&mut client);
    let pongs: Vec<Vec<u8>> = std::iter::from_fn(|| client.stream.control_frame())
        .inspect(|frame| assert_eq!(frame.opcode, opcode::PONG))
        .map(|frame| frame.payload)
        .collect();
    // A server may answer only the latest of several pings.
    assert!(pongs.contains(&b"early".to_vec()) && pongs.contains(&vec![7; 125]), "{pongs:?}");
}

#[test]
fn a_close_frame_ends_the_connection_and_the_will_fires() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    let will = ciqadamq_tests::mqtt::Publish::new("updates", "closed", 1);
    let (mut client, _) = broker.connect(&connect(&ua, Version::V311, Link::ws()).will(will)).accepted();
    client.stream.send_frame(opcode::CLOSE, true, &1000_u16.to_be_bytes()).unwrap();
    client.expect_closed();
    watcher.expect("updates", "closed");
}

#[test]
fn what_is_no_mqtt_over_websocket_is_refused() {
    let broker = Broker::start_default();
    let ua = broker.user("ua");
    let connect = connect(&ua, Version::V311, Link::ws());
    // A text frame.
    let mut client = Client::open(&connect, broker.ws).unwrap();
    client.stream.send_frame(opcode::TEXT, true, &connect.encode()).unwrap();
    assert!(matches!(client.connack(), ciqadamq_tests::mqtt::Answer::Closed));
    // A text frame of a client that is in.
    let (mut client, _) = broker.connect(&connect).accepted();
    client.stream.send_frame(opcode::TEXT, true, b"hello").unwrap();
    client.expect_closed();
    // A frame that is not masked, and a reserved opcode.
    for raw in [vec![0x82, 0x02, 0xc0, 0x00], vec![0x83, 0x80, 1, 2, 3, 4]] {
        let (mut client, _) = broker.connect(&connect).accepted();
        client.stream.send_raw(&raw).unwrap();
        client.expect_closed();
    }
    // Plain HTTP, and plain MQTT on the WebSocket port.
    let response = ciqadamq_tests::request(broker.ws, "GET", "/mqtt", &[], None);
    assert!(response.is_ok_and(|response| (400..500).contains(&response.status)));
    let mut plain = Client::open(&Connect { link: Link::Tcp, ..connect.clone() }, broker.ws).unwrap();
    plain.stream.send_raw(&connect.encode()).unwrap();
    plain.stream.cut_write();
    let end = std::time::Instant::now() + WAIT;
    let mut answer = Vec::new();
    while plain.stream.fill(&mut answer, end).unwrap() == ciqadamq_tests::mqtt::Fill::Data {}
    assert!(answer.first() != Some(&0x20), "CONNACK to a client that did not upgrade");
    // Everybody else is fine.
    works(&mut broker.connect(&connect).accepted().0);
}

#[test]
fn a_large_message_passes_in_one_frame() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    let (mut client, _) = broker.connect(&connect(&ua, Version::V5, Link::ws())).accepted();
    client.subscribe(&["chat/ua/#"]);
    for size in [125, 126, 65_535, 65_536, 500_000] {
        let text = "x".repeat(size);
        client.publish_ok("chatsync", &text, 1);
        watcher.expect("chatsync", &text);
        watcher.publish("chat/ua/x", &text);
        client.expect("chat/ua/x", &text);
        watcher.seen();
    }
}
