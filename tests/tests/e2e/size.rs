//! What is promised in numbers. Each test wants the machine for minutes, and a release build in `CIQADAMQ_BIN`:
//!
//! `cargo nextest run --workspace --run-ignored only -E 'test(/^size::/)' --no-capture -j1`
//!
//! `CIQADAMQ_SHARE` makes everything smaller, as in `0.1`, and the limits on memory with it.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ciqadamq_tests::mqtt::{Event, Packet, Publish, kind};
use ciqadamq_tests::{Account, Broker, BrokerOptions, Client, Version, WAIT};

/// Longer than any of these tests.
const LATER_SECS: u32 = 7_200;
/// Connections that fill a broker side by side.
const AT_ONCE: usize = 32;
/// The engine keeps the socket of a session that went offline, closed as it is, until the session goes on or the process ends. A
/// restart makes this test independent of the limit of open files.
const BEFORE_RESTART: usize = 10_000;
/// Messages of one connection on their way at once.
const ON_THE_WAY: usize = 200;

fn share(of: usize) -> usize {
    let share: f64 = std::env::var("CIQADAMQ_SHARE").ok().and_then(|share| share.parse().ok()).unwrap_or(1.0);
    (of as f64 * share) as usize
}

/// With as many messages as it takes; filled without an fsync for each.
fn options() -> BrokerOptions {
    BrokerOptions::new()
        .set("mqtt.session_expiry_secs", i64::from(LATER_SECS))
        .set("mqtt.message_expiry_secs", i64::from(LATER_SECS))
        .set("mqtt.durability", "interval")
        .set("limits.sessions_per_user", 0)
}

fn topic(session: usize) -> String {
    format!("chat/ua/{session}")
}

fn name(session: usize) -> String {
    format!("session{session}")
}

/// The work of `count` is done by a few threads, each by `f(number of the thread, its part)`.
fn shared_out(threads: usize, count: usize, f: impl Fn(usize, &mut dyn Iterator<Item = usize>) + Sync) {
    thread::scope(|scope| {
        for n in 0..threads {
            let f = &f;
            scope.spawn(move || f(n, &mut (n..count).step_by(threads)));
        }
    });
}

/// Makes offline sessions, each with a subscription of its own.
fn make_sessions(broker: &mut Broker, user: &Account, count: usize) {
    for first in (0..count).step_by(BEFORE_RESTART) {
        if first > 0 {
            broker.restart();
        }
        make_some(broker, user, first, BEFORE_RESTART.min(count - first));
    }
}

fn make_some(broker: &Broker, user: &Account, first: usize, count: usize) {
    shared_out(AT_ONCE, count, |_, part| {
        for session in part.map(|n| first + n) {
            let connect = user.connect(Version::COMMON[session % 2], &name(session)).persistent(LATER_SECS);
            let (mut client, _) = broker.connect(&connect).accepted();
            client.subscribe(&[&topic(session)]);
            client.disconnect();
        }
    });
}

/// Queues messages 0, 1, ... for each session.
fn fill(broker: &Broker, root: &Account, sessions: usize, messages: usize) {
    shared_out(4, sessions, |n, part| {
        let mut publisher = broker.client(root, Version::V5, &format!("publisher{n}"));
        let part: Vec<usize> = part.collect();
        let mut open = 0;
        for message in 0..messages {
            for session in &part {
                publisher.send_publish(&Publish::new(topic(*session), format!("{message:0100}"), 1));
                open += 1;
                while open >= ON_THE_WAY {
                    acknowledged(&mut publisher);
                    open -= 1;
                }
            }
        }
        (0..open).for_each(|_| acknowledged(&mut publisher));
    });
}

fn acknowledged(publisher: &mut Client) {
    match publisher.next(WAIT) {
        Event::Packet(Packet::Ack { kind: kind::PUBACK, code: 0, .. }) => {}
        other => panic!("in place of PUBACK: {other:?}"),
    }
}

/// Most memory that the broker has had.
fn peak_kb(broker: &Broker) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", broker.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

fn metric(broker: &Broker, name: &str) -> u64 {
    broker.rest.metric(&format!("ciqadamq_session_store_{name}"), &[]) as u64
}

/// What the log said last.
fn last_line<'a>(log: &'a str, with: &str) -> &'a str {
    log.lines().rev().find(|line| line.contains(with)).unwrap_or_default()
}

#[test]
#[ignore = "takes minutes: 100,000 sessions with 10 messages each"]
fn a_hundred_thousand_offline_sessions_are_back_in_20_seconds_and_in_a_gigabyte() {
    let (sessions, messages) = (share(100_000), 10);
    let mut broker = Broker::start(options());
    let (root, ua) = (broker.superuser("root"), broker.user("ua"));
    println!("empty: {} MB", broker.resident_kb().unwrap() >> 10);
    let began = Instant::now();
    make_sessions(&mut broker, &ua, sessions);
    println!("{sessions} sessions made in {:?}", began.elapsed());
    let began = Instant::now();
    fill(&broker, &root, sessions, messages);
    println!("{} messages queued in {:?}", sessions * messages, began.elapsed());
    println!("before: {} MB at most, {} MB on disk", peak_kb(&broker) >> 10, metric(&broker, "disk_bytes") >> 20);
    for end in ["SIGKILL", "SIGTERM"] {
        if end == "SIGKILL" {
            broker.kill9();
        } else {
            broker.sigterm();
        }
        let began = Instant::now();
        broker.start_again();
        let took = began.elapsed();
        let (peak, resident) = (peak_kb(&broker), broker.resident_kb().unwrap());
        println!("after {end}: ready in {took:?}, {} MB resident, {} MB at most", resident >> 10, peak >> 10);
        println!(
            "{}\n{}",
            last_line(&broker.log(), "session store open"),
            last_line(&broker.log(), "sessions restored")
        );
        assert_eq!(metric(&broker, "sessions"), sessions as u64);
        assert_eq!(metric(&broker, "owed"), (sessions * messages) as u64);
        assert!(took < Duration::from_secs(20), "ready after {took:?}");
        assert!(peak < share(1 << 20).max(200_000) as u64, "{peak} kB");
    }
    // They are what they were.
    for session in (0..sessions).step_by((sessions / 20).max(1)) {
        let connect = ua.connect(Version::COMMON[session % 2], &name(session)).persistent(LATER_SECS);
        let (mut client, connack) = broker.connect(&connect).accepted();
        assert!(connack.session_present);
        for message in 0..messages {
            client.expect(&topic(session), &format!("{message:0100}"));
        }
    }
}

#[test]
#[ignore = "takes minutes: 10,000 offline clients with 100 messages each"]
fn what_expired_leaves_memory_and_disk_although_nobody_comes_back() {
    let (sessions, messages) = (share(10_000), 100);
    let limit = Duration::from_secs(share(200) as u64 + 40);
    let mut broker = Broker::start(options().set("mqtt.message_expiry_secs", limit.as_secs() as i64));
    let (root, ua) = (broker.superuser("root"), broker.user("ua"));
    make_sessions(&mut broker, &ua, sessions);
    let (memory_before, disk_before) = (broker.resident_kb().unwrap() >> 10, metric(&broker, "disk_bytes") >> 20);
    let began = Instant::now();
    fill(&broker, &root, sessions, messages);
    let left = limit.saturating_sub(began.elapsed());
    println!("{} messages queued in {:?}", sessions * messages, began.elapsed());
    assert!(left > Duration::from_secs(5), "this machine is too slow: they begin to expire in {left:?}");
    assert_eq!(metric(&broker, "owed"), (sessions * messages) as u64);
    let (memory_full, disk_full) = (broker.resident_kb().unwrap() >> 10, metric(&broker, "disk_bytes") >> 20);
    println!("memory {memory_before} MB, full {memory_full} MB; disk {disk_before} MB, full {disk_full} MB");
    // The last one, that is.
    thread::sleep(limit);
    let expired = Instant::now();
    let (mut memory, mut disk) = (memory_full, disk_full);
    // The log is kept as long as it is.
    let disk_floor = (disk_before + (disk_full - disk_before) / 3).max(150);
    // The engine's queues keep the room that they once had.
    while memory > memory_before + (memory_full - memory_before) / 2 || disk > disk_floor {
        assert!(expired.elapsed() < Duration::from_secs(120), "still {memory} MB of memory and {disk} MB of disk");
        thread::sleep(Duration::from_secs(1));
        (memory, disk) = (broker.resident_kb().unwrap() >> 10, metric(&broker, "disk_bytes") >> 20);
    }
    println!("after {:?}: memory {memory} MB, disk {disk} MB", expired.elapsed());
    assert_eq!(metric(&broker, "owed"), 0);
    assert_eq!(metric(&broker, "messages"), 0);
    assert_eq!(metric(&broker, "sessions"), sessions as u64);
}

/// What a broker did in a while.
#[derive(Clone, Copy, Default)]
struct Rate {
    per_second: f64,
    /// of the processor: it depends little on what else the machine does
    micros_per_message: f64,
}

/// Processor time of a broker so far, in seconds.
fn processor(broker: &Broker) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", broker.pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // In hundredths, as Linux tells everybody.
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

/// What publishers that each wait for their acknowledgement get done.
fn throughput(broker: &Broker, root: &Account, publishers: usize, time: Duration) -> Rate {
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let threads = 2;
        for n in 0..threads {
            let (stop, done) = (&stop, &done);
            scope.spawn(move || {
                let mut clients: Vec<Client> = (0..publishers / threads)
                    .map(|c| broker.client(root, Version::V5, &format!("publisher{n}-{c}")))
                    .collect();
                let message = Publish::new("chat/ua/x", "m".repeat(100), 1);
                for client in &mut clients {
                    client.send_publish(&message);
                }
                while !stop.load(Ordering::Relaxed) {
                    for client in &mut clients {
                        acknowledged(client);
                        client.send_publish(&message);
                    }
                    done.fetch_add(clients.len(), Ordering::Relaxed);
                }
            });
        }
        // Not counted: until all are connected and under way.
        thread::sleep(Duration::from_secs(2));
        let (before, used, began) = (done.load(Ordering::Relaxed), processor(broker), Instant::now());
        thread::sleep(time);
        let (count, took) = ((done.load(Ordering::Relaxed) - before) as f64, began.elapsed().as_secs_f64());
        let micros_per_message = (processor(broker) - used) * 1e6 / count;
        stop.store(true, Ordering::Relaxed);
        Rate { per_second: count / took, micros_per_message }
    })
}

/// The throughput with the session store set to something, with one subscriber.
fn measure(key: &str, value: &str, is_persistent: bool) -> Rate {
    let options = BrokerOptions::new().set("mqtt.max_mqueue_len", 1_000);
    let options = if value == "false" { options.set(key, false) } else { options.set(key, value) };
    let broker = Broker::start(options);
    let (root, ua) = (broker.superuser("root"), broker.user("ua"));
    let connect = ua.connect(Version::V5, "reader");
    let connect = if is_persistent { connect.persistent(600) } else { connect };
    let (mut reader, _) = broker.connect(&connect).accepted();
    reader.subscribe(&["chat/ua/x"]);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                reader.message_within(Duration::from_millis(100)).ok();
            }
        });
        let rate = throughput(&broker, &root, 64, Duration::from_secs(4));
        stop.store(true, Ordering::Relaxed);
        rate
    })
}

/// Medians of the ratios of neighbours in time: of their throughput, and of what the processor gets done.
fn ratio(what: [&str; 2], measure: impl Fn(&str) -> Rate) -> [f64; 2] {
    let mut ratios = [Vec::new(), Vec::new()];
    for round in 0..5 {
        // In turn first.
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        let mut rates = [Rate::default(); 2];
        order.iter().for_each(|at| rates[*at] = measure(what[*at]));
        for (name, rate) in what.iter().zip(rates) {
            println!("{name}: {:.0}/s, {:.1} us of the processor a message", rate.per_second, rate.micros_per_message);
        }
        ratios[0].push(rates[0].per_second / rates[1].per_second);
        ratios[1].push(rates[1].micros_per_message / rates[0].micros_per_message);
    }
    let ratios = ratios.map(|mut ratios| {
        ratios.sort_by(f64::total_cmp);
        ratios[ratios.len() / 2]
    });
    println!("{} / {}: throughput {:.2}, of the processor {:.2}", what[0], what[1], ratios[0], ratios[1]);
    ratios
}

#[test]
#[ignore = "measures: takes a minute, and wants the machine for itself"]
fn fsync_costs_64_publishers_less_than_half_of_their_throughput() {
    let [throughput, _] = ratio(["fsync", "memory"], |durability| measure("mqtt.durability", durability, true));
    assert!(throughput >= 0.5, "{throughput:.2}");
}

#[test]
#[ignore = "measures: takes a minute"]
fn clean_sessions_cost_as_little_as_without_the_store() {
    let [_, processor] = ratio(["fsync", "false"], |value| {
        let key = if value == "false" { "mqtt.persist_messages" } else { "mqtt.durability" };
        measure(key, value, false)
    });
    // What one cannot tell from noise.
    assert!(processor >= 0.95, "{processor:.2}");
}
