//! What an idle connection costs, counted by the allocator: the clients and the engine here are bare sockets of the
//! standard library, which allocate nothing.
#![allow(clippy::unwrap_used, missing_docs)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ciqadamq_gate::{Gate, GateConfig, GateListener, ProxyProtocol, Transport};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is left to the system's allocator; the counter does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CONNECTIONS: usize = 300;
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
/// CONNECT under a mask of zeros, as a WebSocket frame.
const CONNECT: &[u8] = b"\x82\x92\0\0\0\0\x10\x10\0\x04MQTT\x04\x02\0\x3c\0\x04test";

#[test]
fn idle_websocket_connection_costs_little_even_after_traffic() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let _context = runtime.enter();
    let engine = TcpListener::bind("127.0.0.1:0").unwrap();
    let listener = GateListener {
        name: "ws",
        addr: "127.0.0.1:0".parse().unwrap(),
        transport: Transport::WebSocket,
        proxy_protocol: ProxyProtocol::Off,
        tls: None,
    };
    let gate = Gate::bind(GateConfig::new(vec![listener]), &prometheus::Registry::new()).unwrap();
    let addr = gate.local_addrs()[0].1;
    let _gate = gate.serve(engine.local_addr().unwrap());

    let mut kept: Vec<(TcpStream, TcpStream)> = Vec::with_capacity(CONNECTIONS + 10);
    let big = vec![0x55; 200_000];
    let mut connect = || {
        let mut client = TcpStream::connect(addr).unwrap();
        client.write_all(REQUEST).unwrap();
        let mut answer = [0; 1024];
        let n = client.read(&mut answer).unwrap();
        assert!(answer[..n].ends_with(b"\r\n\r\n"));
        client.write_all(CONNECT).unwrap();
        let (mut server, _) = engine.accept().unwrap();
        server.read_exact(&mut [0; 28 + 18]).unwrap();
        // A burst that does not fit any buffer, so that the gate has to keep some of it for a while.
        std::thread::scope(|scope| {
            scope.spawn(|| server.write_all(&big).unwrap());
            let mut left = big.len();
            while left > 0 {
                let mut head = [0; 4];
                client.read_exact(&mut head[..2]).unwrap();
                let mut len = usize::from(head[1]);
                if len == 126 {
                    client.read_exact(&mut head[2..]).unwrap();
                    len = usize::from(u16::from_be_bytes([head[2], head[3]]));
                }
                left -= len;
                while len > 0 {
                    let take = len.min(answer.len());
                    client.read_exact(&mut answer[..take]).unwrap();
                    len -= take;
                }
            }
        });
        kept.push((client, server));
    };
    // The first ones fill the threads' and the runtime's own pools.
    for _ in 0..10 {
        connect();
    }
    let before = LIVE.load(Relaxed);
    for _ in 0..CONNECTIONS {
        connect();
    }
    let per_connection = || LIVE.load(Relaxed).saturating_sub(before) / CONNECTIONS;
    // The last connection's task may not be idle yet.
    let begin = Instant::now();
    while per_connection() > 4096 && begin.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("{} bytes per idle connection", per_connection());
    assert!(per_connection() <= 4096, "{} bytes per idle connection", per_connection());
}
