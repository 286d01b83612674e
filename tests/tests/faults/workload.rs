//! Users that are created, changed and deleted, messages across nodes, devices that come and go.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ciqadamq_tests::mqtt::{Event, Packet, Publish, kind};
use ciqadamq_tests::{Account, Client, Cluster, Connect, Rest, Version, request};
use serde_json::{Value, json};

use crate::ledger::{Acked, Epoch, Ledger};
use crate::random::Random;

/// How long a client waits for an answer before it takes the connection for dead.
const ANSWER: Duration = Duration::from_secs(12);
/// Users that each worker owns.
const USERS: u64 = 8;
/// People with devices.
const PEOPLE: [&str; 2] = ["ua", "ub"];

#[derive(Default)]
struct Counts {
    changes: AtomicU64,
    refused: AtomicU64,
    connects: AtomicU64,
    messages: AtomicU64,
    received: AtomicU64,
}

struct Shared {
    stop: AtomicBool,
    counts: Counts,
    ledger: Arc<Ledger>,
    rest: Vec<Rest>,
    tcp: Vec<SocketAddr>,
}

impl Shared {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Runs until it is stopped.
pub struct Workload {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What one thread does until the end.
type Work = Box<dyn FnOnce(&Shared, Random) + Send>;

impl Workload {
    pub fn start(cluster: &Cluster, ledger: &Arc<Ledger>, random: &mut Random) -> Self {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            counts: Counts::default(),
            ledger: ledger.clone(),
            rest: cluster.ids().map(|n| cluster[n].rest.clone()).collect(),
            tcp: cluster.ids().map(|n| cluster[n].tcp).collect(),
        });
        let backend = cluster[1].superuser("backend");
        let people = PEOPLE.map(|id| cluster[1].user(id));
        let mut threads = Vec::new();
        let mut run = |work: Work| {
            let (shared, random) = (shared.clone(), random.fork());
            threads.push(thread::spawn(move || work(&shared, random)));
        };
        for worker in 0..2 {
            run(Box::new(move |shared, random| change_users(shared, random, worker)));
        }
        run(Box::new(contest_names));
        for node in 1..=3 {
            let backend = backend.clone();
            run(Box::new(move |shared, random| publish(shared, random, &backend, node)));
            for person in people.clone() {
                run(Box::new(move |shared, random| receive(shared, random, &person, node)));
            }
        }
        for person in people.clone() {
            run(Box::new(move |shared, random| roam(shared, random, &person)));
        }
        Self { shared, threads }
    }

    /// Ends all of it; what was done.
    pub fn stop(self) -> String {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        let Counts { changes, refused, connects, messages, received } = &self.shared.counts;
        format!(
            "{changes:?} user changes ({refused:?} without an acknowledgement), {connects:?} connects, {messages:?} messages \
             published, {received:?} received"
        )
    }
}

/// Status of a request; `None` if nothing came back: it may have been done.
fn ask(rest: &Rest, method: &str, path: &str, body: Option<&Value>) -> Option<u16> {
    let bearer = format!("Bearer {}", rest.token);
    let body = body.map(|body| body.to_string().into_bytes());
    let mut headers = vec![("Authorization", bearer.as_str())];
    if body.is_some() {
        headers.push(("Content-Type", "application/json"));
    }
    Some(request(rest.addr, method, path, &headers, body.as_deref()).ok()?.status)
}

/// Each name has one owner, so what it should be is known.
fn change_users(shared: &Shared, mut random: Random, worker: u64) {
    let ledger = &shared.ledger;
    for round in 0.. {
        if shared.stopped() {
            return;
        }
        let name = format!("w{worker}u{}", random.below(USERS));
        let node = random.below(3) as usize;
        let (rest, asked) = (&shared.rest[node], Instant::now());
        let before = ledger.possible(&name);
        let password = format!("p{round}-{worker}");
        let exists = before.iter().any(Option::is_some);
        let (method, after, status) = match (exists, random.below(3)) {
            (false, _) => {
                let body = json!({"username": name, "userid": format!("x{worker}"), "password": password});
                ledger.may_become(&name, Some(&password));
                ("POST", Some(password.as_str()), ask(rest, "POST", "/api/v1/users", Some(&body)))
            }
            (true, 0) => {
                ledger.may_become(&name, None);
                ("DELETE", None, ask(rest, "DELETE", &format!("/api/v1/users/{name}"), None))
            }
            (true, _) => {
                ledger.may_become(&name, Some(&password));
                let body = json!({"password": password});
                ("PATCH", Some(password.as_str()), ask(rest, "PATCH", &format!("/api/v1/users/{name}"), Some(&body)))
            }
        };
        ledger.note(&name, asked, &format!("{method} on node {}: {status:?}", node + 1));
        shared.counts.changes.fetch_add(1, Ordering::Relaxed);
        let was_sure = before.len() == 1;
        match status {
            Some(200 | 201 | 204) => ledger.became(&name, after),
            // Not there, or there already: possible only if it was not sure.
            Some(status @ (404 | 409)) if was_sure => {
                ledger.user_violation(&name, &format!("should be {before:?}, a change is answered with {status}"));
            }
            // A change without an answer may be made later than one that is answered: all stays possible.
            Some(404 | 409) => {}
            // Whether it was made is not known, also when it says so itself: both stay possible.
            _ => {
                shared.counts.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
        thread::sleep(random.millis(20, 120));
    }
}

/// The same name from all nodes at once: one winner at most.
fn contest_names(shared: &Shared, mut random: Random) {
    for round in 0.. {
        if shared.stopped() {
            return;
        }
        let name = format!("contested{round}");
        let answers: Vec<(String, Option<u16>)> = thread::scope(|scope| {
            let asking: Vec<_> = (0..3)
                .map(|node| {
                    let (name, rest) = (&name, &shared.rest[node]);
                    scope.spawn(move || {
                        let password = format!("of-node-{node}");
                        let body = json!({"username": name, "userid": "contest", "password": password});
                        (password, ask(rest, "POST", "/api/v1/users", Some(&body)))
                    })
                })
                .collect();
            asking.into_iter().map(|asking| asking.join().unwrap()).collect()
        });
        let winners: Vec<&String> = answers.iter().filter(|(_, s)| *s == Some(201)).map(|(p, _)| p).collect();
        match winners[..] {
            [winner] => shared.ledger.became(&name, Some(winner)),
            [] => answers.iter().for_each(|(password, _)| shared.ledger.may_become(&name, Some(password))),
            _ => shared.ledger.violation(format!("{name} was created more than once: {answers:?}")),
        }
        thread::sleep(random.millis(300, 900));
    }
}

/// A client that is in; `None` if it was not let in, or nobody answered.
fn connect(shared: &Shared, connect: &Connect, node: u8) -> Option<(Client, bool)> {
    let mut client = Client::open(connect, shared.tcp[usize::from(node) - 1]).ok()?;
    client.send(&connect.encode());
    shared.counts.connects.fetch_add(1, Ordering::Relaxed);
    match client.next(ANSWER) {
        Event::Packet(Packet::Connack { code: 0, session_present, .. }) => Some((client, session_present)),
        _ => None,
    }
}

/// Subscribes; `false` if that was not acknowledged.
fn subscribe(client: &mut Client, filter: &str) -> bool {
    client.send(&ciqadamq_tests::mqtt::subscribe(client.version, 1, &[(filter, 1)]));
    loop {
        match client.next(ANSWER) {
            Event::Packet(Packet::Suback { codes, .. }) => return codes.iter().all(|code| *code < 0x80),
            Event::Packet(Packet::Publish(_)) => {}
            _ => return false,
        }
    }
}

/// Publishes numbered messages on one node, to all people in turn.
fn publish(shared: &Shared, mut random: Random, backend: &Account, node: u8) {
    let mut number = 0;
    while !shared.stopped() {
        let own = backend.connect(Version::V5, &format!("backend{node}"));
        let Some((mut client, _)) = connect(shared, &own, node) else {
            thread::sleep(random.millis(50, 200));
            continue;
        };
        while !shared.stopped() {
            let person = PEOPLE[number as usize % PEOPLE.len()];
            let text = format!("{person}-{node}-{number}");
            let sent = Instant::now();
            client.send_publish(&Publish::new(format!("chat/{person}/seq"), text.clone(), 1));
            match client.next(ANSWER) {
                Event::Packet(Packet::Ack { kind: kind::PUBACK, .. }) => {
                    shared.ledger.acked(Acked { person, text, sent, acked: Instant::now(), node });
                    shared.counts.messages.fetch_add(1, Ordering::Relaxed);
                }
                _ => break,
            }
            number += 1;
            thread::sleep(random.millis(5, 40));
        }
    }
}

/// A device that stays on its node, and connects again when it has to.
fn receive(shared: &Shared, mut random: Random, person: &Account, node: u8) {
    let device = format!("{}-stays-{node}", person.userid);
    while !shared.stopped() {
        let Some((mut client, _)) = connect(shared, &person.connect(Version::V5, &device), node) else {
            thread::sleep(random.millis(50, 200));
            continue;
        };
        if !subscribe(&mut client, &format!("chat/{}/#", person.userid)) {
            continue;
        }
        let subscribed = Instant::now();
        let person_id = person.userid.clone();
        let mut epoch = Epoch {
            device: device.clone(),
            person: person_id,
            node,
            subscribed,
            ended: subscribed,
            got: Default::default(),
        };
        let open = loop {
            match client.message_within(Duration::from_millis(200)) {
                Ok(message) => {
                    shared.counts.received.fetch_add(1, Ordering::Relaxed);
                    if message.topic != format!("chat/{}/seq", person.userid) {
                        shared.ledger.violation(format!("{device} got {} {}", message.topic, message.text()));
                    }
                    epoch.got.insert(message.text());
                }
                Err(Event::Timeout) if shared.stopped() => break true,
                Err(Event::Timeout) => {}
                Err(_) => break false,
            }
        };
        epoch.ended = Instant::now();
        shared.ledger.epoch(epoch);
        if open {
            return;
        }
    }
}

/// A device with a session that goes from node to node; and somebody else who wants its client id.
fn roam(shared: &Shared, mut random: Random, person: &Account) {
    let device = "roaming";
    let own = format!("chat/{}/seq", person.userid);
    while !shared.stopped() {
        let node = 1 + random.below(3) as u8;
        // Both people use the same client id: whoever has it keeps it until its session ends.
        let session = person.connect(Version::V5, device).persistent(1);
        let Some((mut client, _)) = connect(shared, &session, node) else {
            thread::sleep(random.millis(100, 400));
            continue;
        };
        let until = Instant::now() + random.millis(100, 1500);
        if !subscribe(&mut client, &format!("chat/{}/#", person.userid)) {
            continue;
        }
        while Instant::now() < until {
            match client.message_within(Duration::from_millis(100)) {
                Ok(message) if message.topic == own => {}
                Ok(message) => {
                    shared.ledger.violation(format!("{} got {} as {device}", person.userid, message.topic));
                }
                Err(Event::Timeout) => {}
                Err(_) => break,
            }
        }
    }
}
