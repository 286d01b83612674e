//! PROXY headers from load balancers, in both directions.

use std::net::SocketAddr;
use std::time::Duration;

use ciqadamq_gate::{GateConfig, GateListener, ProxyProtocol, Transport};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::support::{CONNECT, Site, frame, listener, read, read_to_end, site, site_with, upgrade};

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

fn v2(version_command: u8, family: u8, block: &[u8]) -> Vec<u8> {
    [SIGNATURE, &[version_command, family], &(block.len() as u16).to_be_bytes(), block].concat()
}

fn v2_ipv4() -> Vec<u8> {
    v2(0x21, 0x11, &[203, 0, 113, 9, 10, 0, 0, 1, 0x30, 0x39, 0x07, 0x5b])
}

/// Sends `header` and CONNECT in pieces of `step` bytes and returns the client's address that the engine is told.
async fn announced(site: &Site, header: &[u8], step: usize) -> (SocketAddr, TcpStream) {
    let mut client = site.connect().await;
    for piece in [header, CONNECT].concat().chunks(step) {
        client.write_all(piece).await.unwrap();
        tokio::task::yield_now().await;
    }
    (site.engine.accept_client().await.source, client)
}

#[tokio::test]
async fn headers_of_both_versions_name_the_client_however_they_are_cut() {
    let site = site(Transport::Tcp, true).await;
    let mut v6_block = Vec::new();
    v6_block.extend_from_slice(&"2001:db8::9".parse::<std::net::Ipv6Addr>().unwrap().octets());
    v6_block.extend_from_slice(&"2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets());
    v6_block.extend_from_slice(&[0x30, 0x39, 0x07, 0x5b]);
    let with_tlvs = v2(0x21, 0x21, &[&v6_block[..], &[0x04, 0x13, 0x88], &[0; 5000]].concat());
    for (header, expected) in [
        (b"PROXY TCP4 203.0.113.9 10.0.0.1 12345 1883\r\n".to_vec(), "203.0.113.9:12345"),
        (b"PROXY TCP6 2001:db8::9 2001:db8::1 12345 1883\r\n".to_vec(), "[2001:db8::9]:12345"),
        (v2_ipv4(), "203.0.113.9:12345"),
        (v2(0x21, 0x21, &v6_block), "[2001:db8::9]:12345"),
        (with_tlvs, "[2001:db8::9]:12345"),
    ] {
        for step in [1, 5, 16, header.len() + CONNECT.len()] {
            let (source, _client) = announced(&site, &header, step).await;
            assert_eq!(source, expected.parse().unwrap(), "{} in pieces of {step}", header.escape_ascii());
        }
    }
}

#[tokio::test]
async fn sender_that_speaks_for_itself_keeps_its_own_address() {
    let site = site(Transport::Tcp, true).await;
    for header in [
        b"PROXY UNKNOWN\r\n".to_vec(),
        b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n".to_vec(),
        v2(0x20, 0x00, b""),
        v2(0x20, 0x11, &[9; 12]),
        v2(0x21, 0x00, b""),
        v2(0x21, 0x31, &[b'/'; 216]),
    ] {
        let (source, client) = announced(&site, &header, 1000).await;
        assert_eq!(source, client.local_addr().unwrap(), "{}", header.escape_ascii());
    }
}

#[tokio::test]
async fn missing_or_malformed_header_closes_the_connection() {
    let site = site(Transport::Tcp, true).await;
    let headers = [
        CONNECT.to_vec(),
        b"PROXY".iter().copied().chain(*b"!").collect(),
        b"PROXY TCP4 1.2.3 1.2.3.4 1 2\r\n".to_vec(),
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\nxxxxx\r\n".to_vec(),
        [&b"PROXY TCP4 "[..], &[b'1'; 200]].concat(),
        v2(0x31, 0x11, &[0; 12]),
        v2(0x21, 0x11, &[0; 11]),
    ];
    let count = headers.len();
    for header in headers {
        let mut client = site.connect().await;
        client.write_all(&header).await.unwrap();
        assert_eq!(read_to_end(&mut client).await, b"", "{}", header.escape_ascii());
    }
    site.wait_for_failures("proxy_header", count as f64).await;
    assert!(site.engine.is_unbothered().await);
}

#[tokio::test]
async fn header_goes_before_the_websocket_upgrade() {
    let site = site(Transport::WebSocket, true).await;
    let mut client = site.connect().await;
    client.write_all(&v2_ipv4()).await.unwrap();
    upgrade(&mut client).await;
    client.write_all(&frame(0x82, CONNECT)).await.unwrap();
    let engine = site.engine.accept_client().await;
    assert_eq!(engine.source, "203.0.113.9:12345".parse().unwrap());
    assert_eq!(engine.header[20..24], [10, 0, 0, 1], "the destination is the one the client meant");
}

#[tokio::test]
async fn listener_without_proxy_protocol_takes_no_header() {
    let site = site(Transport::Tcp, false).await;
    let mut client = site.connect().await;
    client.write_all(&v2_ipv4()).await.unwrap();
    client.write_all(CONNECT).await.unwrap();
    assert_eq!(read_to_end(&mut client).await, b"");
    site.wait_for_failures("not_connect", 1.0).await;
}

/// A connection to `door` from an address of our choice.
#[cfg(target_os = "linux")]
async fn connect_from(site: &Site, source: &str) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(source.parse().unwrap(), 0)).unwrap();
    socket.connect(site.addr("door")).await.unwrap()
}

/// Elsewhere than on Linux there is one loopback address.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn header_is_required_from_the_proxies_networks_and_taken_from_nobody_else() {
    let networks = ProxyProtocol::Networks(vec!["127.0.3.0/24".parse().unwrap()]);
    let door = GateListener { proxy_protocol: networks, ..listener("door", Transport::Tcp, false) };
    let site = site_with(GateConfig::new(vec![door])).await;

    let mut proxy = connect_from(&site, "127.0.3.7").await;
    proxy.write_all(&[&v2_ipv4(), CONNECT].concat()).await.unwrap();
    assert_eq!(site.engine.accept_client().await.source, "203.0.113.9:12345".parse().unwrap());

    let mut direct = connect_from(&site, "127.0.4.7").await;
    direct.write_all(CONNECT).await.unwrap();
    assert_eq!(site.engine.accept_client().await.source, direct.local_addr().unwrap());

    let mut forger = connect_from(&site, "127.0.4.7").await;
    forger.write_all(&[&v2_ipv4(), CONNECT].concat()).await.unwrap();
    assert_eq!(read_to_end(&mut forger).await, b"");
    site.wait_for_failures("not_connect", 1.0).await;

    let mut headless = connect_from(&site, "127.0.3.7").await;
    headless.write_all(CONNECT).await.unwrap();
    assert_eq!(read_to_end(&mut headless).await, b"");
    site.wait_for_failures("proxy_header", 1.0).await;
    assert!(site.engine.is_unbothered().await);
}

#[tokio::test]
async fn silent_senders_stall_nobody_and_are_closed_in_time() {
    let mut config = GateConfig::new(vec![listener("door", Transport::Tcp, true)]);
    config.connect_timeout = Duration::from_millis(500);
    let site = site_with(config).await;
    let mut silent = site.connect().await;
    let mut half = site.connect().await;
    half.write_all(b"PROXY TCP4 1.").await.unwrap();
    // Neither has been closed when this one is through.
    let (_, _client) = announced(&site, &v2_ipv4(), 1000).await;
    assert_eq!(site.metric("ciqadamq_gate_connections", &[]), 3.0);
    assert_eq!(read_to_end(&mut silent).await, b"");
    assert_eq!(read_to_end(&mut half).await, b"");
    site.wait_for_failures("timeout", 2.0).await;
}

#[tokio::test]
async fn address_in_the_header_is_the_clients_and_leads_to_the_engines_socket() {
    let mut config = GateConfig::new(vec![listener("door", Transport::WebSocket, false)]);
    let dual: GateListener =
        GateListener { addr: "[::]:0".parse().unwrap(), ..listener("dual", Transport::Tcp, false) };
    config.listeners.push(dual);
    let site = site_with(config).await;

    let mut client = site.websocket().await;
    let addr = client.local_addr().unwrap();
    client.write_all(&frame(0x82, CONNECT)).await.unwrap();
    let mut engine = site.engine.accept_client().await;
    assert_eq!(engine.source, addr);
    assert_eq!(engine.header.len(), 28);
    assert_eq!(site.gate.engine_peer(addr), Some(engine.peer));
    drop(client);
    assert_eq!(read_to_end(&mut engine.stream).await, b"");
    drop(engine);
    site.wait_for_open(0.0).await;
    assert_eq!(site.gate.engine_peer(addr), None);

    // An IPv4 client of a dual-stack socket is an IPv4 client.
    let port = site.addr("dual").port();
    for (to, len) in [(format!("127.0.0.1:{port}"), 28), (format!("[::1]:{port}"), 52)] {
        let mut client = TcpStream::connect(to).await.unwrap();
        client.write_all(CONNECT).await.unwrap();
        let mut engine = site.engine.accept().await;
        assert_eq!(read(&mut engine.stream, CONNECT.len()).await, CONNECT);
        assert_eq!(engine.source, client.local_addr().unwrap());
        assert_eq!(engine.header.len(), len);
    }
}
