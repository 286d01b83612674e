//! WebSocket as browsers, libraries and curious strangers do it.

use ciqadamq_gate::{GateConfig, Transport};
use futures::{SinkExt, StreamExt};
use tokio::io::AsyncWriteExt;
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Bytes, Message};

use super::support::{
    CONNACK, CONNECT, frame, http, listener, read, read_close, read_frame, read_to_end, site, site_with, soon,
    upgrade_request,
};

#[tokio::test]
async fn a_library_client_gets_through_on_any_path_and_sees_its_subprotocol() {
    let site = site(Transport::WebSocket, false).await;
    let mut request = format!("ws://{}/some/path?and=query", site.addr("door")).into_client_request().unwrap();
    request.headers_mut().insert("Sec-WebSocket-Protocol", "foo, mqttv3.1, mqtt".parse().unwrap());
    let (mut client, answer) = soon(connect_async(request)).await.unwrap();
    assert_eq!(answer.headers()["sec-websocket-protocol"], "mqttv3.1");

    client.send(Message::binary(CONNECT)).await.unwrap();
    let mut engine = site.engine.accept_client().await;
    engine.stream.write_all(CONNACK).await.unwrap();
    assert_eq!(soon(client.next()).await.unwrap().unwrap(), Message::binary(CONNACK));

    client.send(Message::Ping(Bytes::from_static(b"here?"))).await.unwrap();
    assert_eq!(soon(client.next()).await.unwrap().unwrap(), Message::Pong(Bytes::from_static(b"here?")));

    client.close(None).await.unwrap();
    assert_eq!(read_to_end(&mut engine.stream).await, b"");
    drop(engine);
    assert!(soon(client.next()).await.unwrap().unwrap().is_close());
    assert!(soon(client.next()).await.is_none());
    site.wait_for_open(0.0).await;
}

#[tokio::test]
async fn client_without_subprotocol_is_accepted_without_one() {
    let site = site(Transport::WebSocket, false).await;
    let url = format!("ws://{}/", site.addr("door"));
    // tungstenite fails if a subprotocol is answered that it did not ask for.
    let (mut client, answer) = soon(connect_async(url)).await.unwrap();
    assert!(!answer.headers().contains_key("sec-websocket-protocol"));
    client.send(Message::binary(CONNECT)).await.unwrap();
    site.engine.accept_client().await;
}

#[tokio::test]
async fn foreign_subprotocol_and_plain_http_get_an_answer_and_an_orderly_end() {
    let site = site(Transport::WebSocket, false).await;
    for (request, status) in [
        (upgrade_request("Sec-WebSocket-Protocol: chat\r\n"), "HTTP/1.1 400 "),
        ("GET / HTTP/1.1\r\nHost: gate\r\n\r\n".into(), "HTTP/1.1 426 "),
        // The body is more than the gate reads before it answers: the answer must survive it.
        (format!("POST / HTTP/1.1\r\nContent-Length: 9999\r\n\r\n{}", "x".repeat(9999)), "HTTP/1.1 426 "),
    ] {
        let mut client = site.connect().await;
        let answer = http(&mut client, &request).await;
        assert!(answer.starts_with(status), "{answer}");
        assert!(!read_to_end(&mut client).await.is_empty(), "a text says why");
    }
    site.wait_for_failures("subprotocol", 1.0).await;
    site.wait_for_failures("not_upgrade", 2.0).await;
    assert!(site.engine.is_unbothered().await);
}

#[tokio::test]
async fn pings_before_connect_are_answered_and_never_reach_the_engine() {
    let site = site(Transport::WebSocket, false).await;
    let mut client = site.websocket().await;
    client.write_all(&frame(0x89, b"")).await.unwrap();
    assert_eq!(read_frame(&mut client).await, (0x8a, vec![]));
    client.write_all(&frame(0x89, b"\x10\x02xx")).await.unwrap();
    assert_eq!(read_frame(&mut client).await, (0x8a, b"\x10\x02xx".to_vec()));
    assert!(site.engine.is_unbothered().await);
    client.write_all(&frame(0x8a, b"pong nobody asked for")).await.unwrap();
    client.write_all(&frame(0x82, CONNECT)).await.unwrap();
    let mut engine = site.engine.accept_client().await;
    for payload in [&b""[..], b"with payload"] {
        client.write_all(&frame(0x89, payload)).await.unwrap();
        assert_eq!(read_frame(&mut client).await, (0x8a, payload.to_vec()));
    }
    client.write_all(&frame(0x82, b"\xc0\0")).await.unwrap();
    assert_eq!(read(&mut engine.stream, 2).await, b"\xc0\0");
}

#[tokio::test]
async fn packets_split_over_frames_and_frames_of_many_packets_come_through() {
    let site = site(Transport::WebSocket, false).await;
    let mut client = site.websocket().await;
    // CONNECT: two messages, the second in three fragments with a ping in between, sent byte by byte.
    let mut bytes = frame(0x82, &CONNECT[..3]);
    bytes.extend(frame(0x02, &CONNECT[3..5]));
    bytes.extend(frame(0x89, b"?"));
    bytes.extend(frame(0x00, b""));
    bytes.extend(frame(0x80, &CONNECT[5..]));
    for byte in bytes {
        client.write_all(&[byte]).await.unwrap();
    }
    assert_eq!(read_frame(&mut client).await, (0x8a, b"?".to_vec()));
    let mut engine = site.engine.accept_client().await;
    client.write_all(&frame(0x82, &b"\xc0\0".repeat(100))).await.unwrap();
    assert_eq!(read(&mut engine.stream, 200).await, b"\xc0\0".repeat(100));
}

#[tokio::test]
async fn connect_with_packets_behind_it_in_one_frame_arrives_whole() {
    let site = site(Transport::WebSocket, false).await;
    let mut client = site.websocket().await;
    let mut bytes = frame(0x82, &[CONNECT, b"\xc0\0\xe0\0"].concat());
    bytes.extend(frame(0x88, b""));
    client.write_all(&bytes).await.unwrap();
    let mut engine = site.engine.accept_client().await;
    assert_eq!(read_to_end(&mut engine.stream).await, b"\xc0\0\xe0\0");
    drop(engine);
    assert_eq!(read_frame(&mut client).await, (0x88, vec![]));
    assert_eq!(read_to_end(&mut client).await, b"");
}

#[tokio::test]
async fn text_frame_is_refused_before_and_after_connect() {
    let site = site(Transport::WebSocket, false).await;
    let mut client = site.websocket().await;
    client.write_all(&frame(0x81, b"hello")).await.unwrap();
    assert_eq!(read_close(&mut client).await, 1003);
    site.wait_for_failures("websocket", 1.0).await;
    assert!(site.engine.is_unbothered().await);

    let mut client = site.websocket().await;
    client.write_all(&frame(0x82, CONNECT)).await.unwrap();
    let mut engine = site.engine.accept_client().await;
    client.write_all(&[frame(0x82, b"\xc0\0"), frame(0x81, b"hello")].concat()).await.unwrap();
    assert_eq!(read_to_end(&mut engine.stream).await, b"\xc0\0", "what came before it arrives");
    drop(engine);
    assert_eq!(read_close(&mut client).await, 1003);
}

#[tokio::test]
async fn broken_framing_and_oversized_messages_are_closed_with_their_code() {
    let mut config = GateConfig::new(vec![listener("door", Transport::WebSocket, false)]);
    config.max_packet_size = 100_000;
    let site = site_with(config).await;
    let lie = [&b"\x82\xff"[..], &u64::MAX.to_be_bytes(), b"mask"].concat();
    let too_big = frame(0x82, &[0xc0; 100_006]);
    for (bytes, code) in [(&b"\x82\x01\0"[..], 1002), (&frame(0xf2, b"x"), 1002), (&lie, 1009), (&too_big, 1009)] {
        let mut client = site.websocket().await;
        client.write_all(&frame(0x82, CONNECT)).await.unwrap();
        let engine = site.engine.accept_client().await;
        client.write_all(bytes).await.unwrap();
        assert_eq!(read_frame(&mut client).await.1[..2], u16::to_be_bytes(code));
        drop(engine);
    }
}

#[tokio::test]
async fn close_frame_is_answered_with_its_code_also_before_connect() {
    let site = site(Transport::WebSocket, false).await;
    let mut client = site.websocket().await;
    client.write_all(&frame(0x88, &4001u16.to_be_bytes())).await.unwrap();
    assert_eq!(read_close(&mut client).await, 4001);
    site.wait_for_failures("closed", 1.0).await;
}

#[tokio::test]
async fn what_the_engine_sends_comes_in_binary_messages() {
    let site = site(Transport::WebSocket, false).await;
    let mut client = site.websocket().await;
    client.write_all(&frame(0x82, CONNECT)).await.unwrap();
    let mut engine = site.engine.accept_client().await;
    for len in [1, 125, 126, 1000, 16_384, 60_000] {
        let sent: Vec<u8> = (0..len).map(|i| i as u8).collect();
        engine.stream.write_all(&sent).await.unwrap();
        let mut received = Vec::new();
        while received.len() < len {
            let (first, payload) = read_frame(&mut client).await;
            assert_eq!(first, 0x82);
            received.extend(payload);
        }
        assert_eq!(received, sent);
    }
}

#[tokio::test]
async fn client_that_pings_and_never_reads_is_no_longer_read() {
    let site = site(Transport::WebSocket, false).await;
    let mut client = site.websocket().await;
    client.write_all(&frame(0x82, CONNECT)).await.unwrap();
    let _engine = site.engine.accept_client().await;
    let pings = frame(0x89, &[7; 125]).repeat(1000);
    // Far more than the gate and the kernels' buffers hold: at some point nothing is taken any more.
    let flood = async {
        for _ in 0..1000 {
            client.write_all(&pings).await.unwrap();
        }
    };
    let stalled = tokio::time::timeout(std::time::Duration::from_secs(1), flood).await.is_err();
    assert!(stalled, "over 100 MB of pings were taken without a pong being read");
}
