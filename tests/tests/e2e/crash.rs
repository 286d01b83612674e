//! The broker is killed at random moments under load; a checker knows every acknowledgement.
//!
//! Publishers send numbered messages at QoS 1 and 2 and play every exchange to its end, over as many connections as it takes.
//! Subscribers with persistent sessions, one that is always there and one that comes and goes, take down what they get, as
//! clients that keep their own side of an exchange. In the end: what was acknowledged was delivered, in order; QoS 2 once.
//!
//! `CIQADAMQ_CRASHES` and `CIQADAMQ_SEED` choose how many crashes, and which. A hundred:
//! `cargo nextest run --workspace --run-ignored only -E "test(in_a_hundred_crashes)" --no-capture`.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ciqadamq_tests::mqtt::{Answer, Event, Packet, Publish, kind, packet, publish};
use ciqadamq_tests::{Account, Broker, BrokerOptions, Client, Cluster, Connect, Version, eventually};

/// Longest time in which anything has to happen while the broker is up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Nodes call each other again at least once a second.
const LINKS: Duration = Duration::from_millis(1_500);

/// A client that does not give up.
struct Stubborn {
    connect: Connect,
    addr: SocketAddr,
    client: Option<Client>,
}

impl Stubborn {
    fn new(account: &Account, client_id: &str, addr: SocketAddr) -> Self {
        let version = Version::COMMON[client_id.len() % 2];
        Self { connect: account.connect(version, client_id).persistent(600), addr, client: None }
    }

    /// The client, connected; `true` if it has just been.
    fn client(&mut self) -> (&mut Client, bool) {
        let began = Instant::now();
        let is_new = self.client.is_none();
        while self.client.is_none() {
            assert!(began.elapsed() < PATIENCE, "no connection for {PATIENCE:?}");
            match Client::open(&self.connect, self.addr) {
                Ok(mut client) => {
                    client.send(&self.connect.encode());
                    match client.connack() {
                        Answer::Accepted(client, _) => self.client = Some(*client),
                        // Killed in between, or still tidying up.
                        _ => thread::sleep(Duration::from_millis(10)),
                    }
                }
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
            if let Some(client) = &mut self.client {
                client.auto_ack = false;
            }
        }
        (self.client.as_mut().unwrap(), is_new)
    }

    fn lose(&mut self) {
        self.client = None;
    }
}

/// Between two messages of a publisher.
const PACE: Duration = Duration::from_millis(5);

/// Publishes 1, 2, 3, ... until it is told to stop; returns how many were acknowledged: all up to that.
fn publish_numbers(mut to: Stubborn, topic: &str, qos: u8, stop: &AtomicBool) -> u32 {
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        // No faster than a reader that is away most of the time can follow: what a queue has no room for is no fault.
        thread::sleep(PACE);
        let id = (n % 60_000 + 1) as u16;
        let (mut is_released, mut dup) = (false, false);
        loop {
            let (client, _) = to.client();
            if is_released {
                client.send(&packet(kind::PUBREL, 2, &id.to_be_bytes()));
            } else {
                client.send(&publish(client.version, &Publish { dup, ..Publish::new(topic, n.to_string(), qos) }, id));
                dup = true;
            }
            match client.next(PATIENCE) {
                Event::Packet(Packet::Ack { kind: kind::PUBACK | kind::PUBCOMP, id: of, code: 0 | 0x10, .. })
                    if of == id =>
                {
                    break;
                }
                Event::Packet(Packet::Ack { kind: kind::PUBREC, id: of, code: 0 | 0x10, .. }) if of == id => {
                    is_released = true;
                }
                Event::Closed => to.lose(),
                other => panic!("{topic} {n}: {other:?}"),
            }
        }
    }
    n
}

/// What a subscriber got, by topic.
#[derive(Default)]
struct Got {
    once: Vec<u32>,
    at_least_once: Vec<u32>,
    ends: usize,
}

struct Reader {
    client: Stubborn,
    /// Packet Identifiers of QoS 2 messages that were taken and not released: kept as a client keeps its session
    taken: HashSet<u16>,
    got: Got,
}

impl Reader {
    /// Reads until `until`, or until it has seen the ends.
    fn read(&mut self, until: Option<Instant>) {
        while self.got.ends < 2 {
            let left = until.map_or(PATIENCE, |until| until.saturating_duration_since(Instant::now()));
            let (client, _) = self.client.client();
            match client.next(left) {
                Event::Packet(Packet::Publish(message)) => {
                    // Late ones that asked whether the subscription is known.
                    let Some(id) = message.packet_id else { continue };
                    let is_new = message.qos < 2 || self.taken.insert(id);
                    client.ack(if message.qos == 2 { kind::PUBREC } else { kind::PUBACK }, id);
                    if is_new {
                        let text = message.text();
                        let numbers = if message.qos == 2 { &mut self.got.once } else { &mut self.got.at_least_once };
                        match text.parse() {
                            Ok(n) => numbers.push(n),
                            Err(_) => self.got.ends += 1,
                        }
                    }
                }
                Event::Packet(Packet::Ack { kind: kind::PUBREL, id, .. }) => {
                    self.taken.remove(&id);
                    client.ack(kind::PUBCOMP, id);
                }
                Event::Closed => self.client.lose(),
                Event::Timeout if until.is_some() => return,
                other => panic!("{other:?}"),
            }
        }
    }
}

/// All came, in order; at QoS 2 each of them once.
fn check(who: &str, got: &Got, acknowledged: [u32; 2]) {
    let mut newest = 0;
    let mut gaps = Vec::new();
    for n in &got.at_least_once {
        if *n > newest + 1 {
            gaps.push((newest, *n));
        }
        newest = newest.max(*n);
    }
    assert!(gaps.is_empty(), "{who}: missing at QoS 1, between: {gaps:?}");
    assert_eq!(newest, acknowledged[0], "{who}: the last one at QoS 1");
    let repeated: Vec<u32> = got.once.windows(2).filter(|pair| pair[1] <= pair[0]).map(|pair| pair[1]).collect();
    assert!(repeated.is_empty(), "{who}: at QoS 2 came a second time: {repeated:?}");
    let all: Vec<u32> = (1..=acknowledged[1]).collect();
    let gap = got.once.iter().zip(&all).find(|(got, wanted)| got != wanted);
    assert!(
        got.once == all,
        "{who}: at QoS 2 of {} messages {} came, with the first gap at {gap:?}",
        all.len(),
        got.once.len()
    );
}

/// Where everybody connects.
struct Places {
    publishers: [SocketAddr; 2],
    readers: [SocketAddr; 2],
}

/// Random numbers that a seed repeats.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(crashes: u32) -> Self {
        let seed = std::env::var("CIQADAMQ_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = seed.unwrap_or_else(|| u64::from(std::process::id()) << 20 | u64::from(crashes));
        println!("seed {seed}");
        Self(seed | 1)
    }

    pub(crate) fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

const TOPICS: [&str; 2] = ["chat/ua/1", "chat/ua/2"];
const READY: &str = "chat/ua/ready";

/// A subscriber whose subscriptions are known where the publishers are.
fn reader(name: &str, [root, ua]: [&Account; 2], places: &Places, at: SocketAddr) -> Reader {
    let mut client = Stubborn::new(ua, name, at);
    let (connected, _) = client.client();
    assert_eq!(connected.try_subscribe(&[(TOPICS[0], 1), (TOPICS[1], 2), (READY, 0)]), [1, 2, 0]);
    for publisher in places.publishers {
        let connect = root.connect(Version::V5, "asks");
        let (mut asks, _) = Client::connect(&connect, publisher).accepted();
        eventually("the subscription on the publisher's node", || {
            asks.publish_ok(READY, "", 0);
            connected.message_within(Duration::from_millis(100)).ok()
        });
    }
    Reader { client, taken: HashSet::new(), got: Got::default() }
}

/// Publishes and reads while `crash` is called again and again; then checks.
fn crash_loop(crashes: u32, places: &Places, [root, ua]: [&Account; 2], mut crash: impl FnMut(&mut Random)) {
    let mut random = Random::new(crashes);
    let names = ["always", "sometimes"];
    let mut readers: Vec<Reader> =
        names.iter().zip(places.readers).map(|(name, at)| reader(name, [root, ua], places, at)).collect();
    let stop = AtomicBool::new(false);
    let acknowledged = thread::scope(|scope| {
        let publishers: Vec<_> = [1, 2]
            .map(|qos| {
                let at = usize::from(qos) - 1;
                let to = Stubborn::new(root, &format!("publisher{qos}"), places.publishers[at]);
                let stop = &stop;
                scope.spawn(move || publish_numbers(to, TOPICS[at], qos, stop))
            })
            .into();
        let [always, sometimes] = readers.as_mut_slice() else { unreachable!() };
        scope.spawn(|| always.read(None));
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                sometimes.read(Some(Instant::now() + Duration::from_millis(150)));
                sometimes.client.lose();
                thread::sleep(Duration::from_millis(300));
            }
            sometimes.read(None);
        });
        for _ in 0..crashes {
            thread::sleep(Duration::from_millis(50 + random.below(500)));
            crash(&mut random);
        }
        stop.store(true, Ordering::Relaxed);
        let acknowledged: Vec<u32> = publishers.into_iter().map(|publisher| publisher.join().unwrap()).collect();
        for ((at, topic), qos) in places.publishers.into_iter().zip(TOPICS).zip([1, 2]) {
            let (mut last, _) = Client::connect(&root.connect(Version::V5, "last"), at).accepted();
            last.publish_ok(topic, "end", qos);
        }
        [acknowledged[0], acknowledged[1]]
    });
    println!("{crashes} crashes, {acknowledged:?} messages acknowledged");
    for (reader, name) in readers.iter().zip(names) {
        check(name, &reader.got, acknowledged);
    }
}

fn one_node(crashes: u32, durability: &str) {
    let options = BrokerOptions::new().set("mqtt.durability", durability).set("mqtt.max_mqueue_len", 32_000);
    let mut broker = Broker::start(options);
    let (root, ua) = (broker.superuser("root"), broker.user("ua"));
    let places = Places { publishers: [broker.tcp; 2], readers: [broker.tcp; 2] };
    crash_loop(crashes, &places, [&root, &ua], |_| {
        broker.kill9();
        broker.start_again();
    });
}

/// Sessions stay on their nodes, and those come back before the others give them up.
fn three_nodes(crashes: u32) {
    let mut cluster = Cluster::start(3, |_| BrokerOptions::new().set("mqtt.max_mqueue_len", 32_000));
    let (root, ua) = (cluster[1].superuser("root"), cluster[1].user("ua"));
    let at = |node: u8| cluster[node].tcp;
    let places = Places { publishers: [at(1), at(3)], readers: [at(2), at(3)] };
    crash_loop(crashes, &places, [&root, &ua], |random| {
        let node = 1 + random.below(3) as u8;
        let began = Instant::now();
        cluster.kill(node);
        cluster[node].spawn();
        cluster.wait_ready();
        // Sessions whose node is away for longer are given up by the others: what is missing then is not a fault.
        println!("node {node} is back after {:?}", began.elapsed());
        // What was acknowledged while the node was dead is with the others, in memory, until they have called it again.
        thread::sleep(LINKS);
        // Where a message went that is missing at the end.
        for node in cluster.ids() {
            let metrics = cluster[node].rest.get("/metrics").text();
            let dropped = metrics.lines().filter(|line| {
                ["dropped_total", "stale_deliveries", "unrouted", "expired"].iter().any(|name| line.contains(name))
                    && !line.starts_with('#')
            });
            let dropped: Vec<_> = dropped.filter(|line| !line.ends_with(" 0")).collect();
            if !dropped.is_empty() {
                println!("node {node}: {dropped:?}");
            }
        }
    });
}

fn crashes(default: u32) -> u32 {
    std::env::var("CIQADAMQ_CRASHES").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[test]
fn nothing_acknowledged_is_lost_in_a_few_crashes() {
    one_node(crashes(5), "fsync");
}

#[test]
fn nothing_acknowledged_is_lost_in_a_few_crashes_of_the_process_with_interval_durability() {
    one_node(crashes(3), "interval");
}

#[test]
fn nothing_acknowledged_is_lost_in_a_few_crashes_of_three_nodes() {
    three_nodes(crashes(4));
}

#[test]
#[ignore = "takes minutes: a hundred crashes"]
fn nothing_acknowledged_is_lost_in_a_hundred_crashes() {
    one_node(crashes(100), "fsync");
}

#[test]
#[ignore = "takes minutes: a hundred crashes"]
fn nothing_acknowledged_is_lost_in_a_hundred_crashes_of_three_nodes() {
    three_nodes(crashes(100));
}
