//! The load: subscribers that wait, publishers that send round-robin to the users' topics, and what comes of it.
//!
//! One thread does all of it, so that on two cores the broker can have the other for itself. A message carries the time
//! of its sending and the phase it belongs to; a straggler of the phase before is not counted.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use hdrhistogram::Histogram;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, spawn_local};

use crate::mqtt::{self, Connection};
use crate::users::Users;

/// CONNECTs under way at once.
const CONNECT_PARALLEL: usize = 64;
/// Bytes of a payload that are ours: time and phase.
pub const PAYLOAD_MIN: usize = 12;
/// Messages that may be unacknowledged (QoS 1 and 2) of one publisher.
const WINDOW: usize = 64;
/// Deliveries that may be outstanding. At QoS 0 nothing else holds a publisher back, and a broker that drops what it
/// cannot keep up with would be measured dropping.
const BEHIND_MAX: u64 = 20_000;
/// A phase in which nothing arrives for so long has ended.
const SILENCE: Duration = Duration::from_secs(10);

/// What is published in a phase.
#[derive(Debug, Clone)]
pub struct Phase {
    /// messages
    pub messages: u64,
    /// bytes each
    pub payload: usize,
    pub qos: u8,
    /// messages per second; 0 = as fast as the broker takes them
    pub rate: u64,
    pub publishers: usize,
    /// publishing ends after this time, whatever is left; a broker that cannot keep up would never be done
    pub limit: Option<Duration>,
}

/// What a phase came to.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub expected: u64,
    pub delivered: u64,
    /// from the first publish to the last delivery
    pub took: Duration,
    /// from publish to delivery. Microseconds
    pub latency: Histogram<u64>,
}

impl Outcome {
    /// Deliveries per second.
    pub fn per_second(&self) -> f64 {
        self.delivered as f64 / self.took.as_secs_f64().max(1e-9)
    }

    /// A quantile of the latency. Milliseconds.
    pub fn latency_ms(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1000.0
    }
}

struct Tally {
    phase: u32,
    /// publishers that are not done sending
    sending: usize,
    /// deliveries of what was sent so far
    owed: u64,
    delivered: u64,
    latency: Histogram<u64>,
    last: Instant,
}

impl Tally {
    fn new(phase: u32, sending: usize) -> anyhow::Result<Self> {
        // Up to a minute in microseconds, three digits.
        let latency = Histogram::new_with_max(60_000_000, 3)?;
        Ok(Self { phase, sending, owed: 0, delivered: 0, latency, last: Instant::now() })
    }

    fn complete(&self) -> bool {
        self.sending == 0 && self.delivered >= self.owed
    }
}

/// Connected, subscribed clients.
pub struct Fleet {
    addrs: Vec<SocketAddr>,
    users: Rc<Users>,
    qos: u8,
    size: usize,
    tally: Rc<RefCell<Tally>>,
    epoch: Instant,
    tasks: Vec<JoinHandle<()>>,
    // subscribers that lost their connection, and the last reason
    lost: Rc<Cell<usize>>,
    phases: u32,
    /// for all to be connected and subscribed
    pub connect_took: Duration,
}

impl Fleet {
    /// An empty one.
    pub fn new(addrs: &[SocketAddr], users: &Rc<Users>, qos: u8) -> anyhow::Result<Self> {
        let tally = Tally::new(0, 0)?;
        Ok(Self {
            addrs: addrs.to_vec(),
            users: users.clone(),
            qos,
            size: 0,
            tally: Rc::new(RefCell::new(tally)),
            epoch: Instant::now(),
            tasks: Vec::new(),
            lost: Rc::default(),
            phases: 0,
            connect_took: Duration::ZERO,
        })
    }

    /// Connects clients until there are `size`, device by device round the users, spread over the nodes.
    pub async fn grow(&mut self, size: usize, progress: &indicatif::ProgressBar) -> anyhow::Result<()> {
        let began = Instant::now();
        let permits = Rc::new(Semaphore::new(CONNECT_PARALLEL));
        let (done, mut results) = mpsc::unbounded_channel();
        let new = self.size..size;
        for n in new.clone() {
            let addr = self.addrs[n % self.addrs.len()];
            let (users, permits, done) = (self.users.clone(), permits.clone(), done.clone());
            let (tally, lost, epoch, qos) = (self.tally.clone(), self.lost.clone(), self.epoch, self.qos);
            self.tasks.push(spawn_local(async move {
                let permit = permits.acquire().await;
                let connected = subscriber(addr, &users, n, qos).await;
                drop(permit);
                match connected {
                    Ok(mut connection) => {
                        // Whoever waits for the results may be gone because another client failed.
                        done.send(Ok(())).ok();
                        if receive(&mut connection, &tally, epoch).await.is_err() {
                            lost.set(lost.get() + 1);
                        }
                    }
                    Err(error) => drop(done.send(Err(error))),
                }
            }));
        }
        for n in new {
            let result = results.recv().await.context("a client's task is gone")?;
            result.with_context(|| format!("client {n} of {size}"))?;
            progress.set_message(format!("{} clients", n + 1));
        }
        self.size = size;
        self.connect_took = began.elapsed();
        Ok(())
    }

    /// Publishes and waits until all has arrived, or nothing does any more.
    pub async fn publish(&mut self, phase: &Phase, progress: &indicatif::ProgressBar) -> anyhow::Result<Outcome> {
        self.phases += 1;
        let number = self.phases;
        let began = Instant::now();
        *self.tally.borrow_mut() = Tally::new(number, phase.publishers)?;
        let devices = Rc::new(self.devices());
        let publishers: Vec<_> = (0..phase.publishers)
            .map(|publisher| {
                let job = Job {
                    addr: self.addrs[publisher % self.addrs.len()],
                    users: self.users.clone(),
                    devices: devices.clone(),
                    tally: self.tally.clone(),
                    epoch: self.epoch,
                    publisher,
                    number,
                    phase: phase.clone(),
                };
                spawn_local(async move { job.run().await })
            })
            .collect();
        loop {
            let failed = publishers.iter().any(JoinHandle::is_finished);
            {
                let tally = self.tally.borrow();
                progress.set_message(format!("{} of {} delivered", tally.delivered, phase.messages));
                if tally.complete() || failed || tally.last.elapsed() > SILENCE {
                    break;
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for publisher in publishers {
            if publisher.is_finished() {
                publisher.await?.context("publisher")?;
            } else {
                publisher.abort();
            }
        }
        if self.lost.get() > 0 {
            bail!("the broker closed {} of {} subscribers' connections", self.lost.get(), self.size);
        }
        let tally = self.tally.borrow();
        Ok(Outcome {
            expected: tally.owed,
            delivered: tally.delivered,
            took: tally.last - began,
            latency: tally.latency.clone(),
        })
    }

    /// How many devices each user has that has one.
    fn devices(&self) -> Vec<usize> {
        let mut devices = vec![0; self.users.with_devices(self.size)];
        (0..self.size).for_each(|n| devices[self.users.of_device(n)] += 1);
        devices
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn subscriber(addr: SocketAddr, users: &Users, n: usize, qos: u8) -> anyhow::Result<Connection> {
    let user = users.of_device(n);
    let mut connection = Connection::open(addr, &format!("perf-{n}"), users.login(user)).await?;
    connection.subscribe(&users.topic(user), qos).await?;
    Ok(connection)
}

/// Counts and acknowledges whatever comes, until the connection ends.
async fn receive(connection: &mut Connection, tally: &RefCell<Tally>, epoch: Instant) -> io::Result<()> {
    let mut answers = Vec::new();
    loop {
        let packet = connection.next().await?;
        match packet.kind() {
            mqtt::PUBLISH => {
                let qos = packet.qos();
                let (id, payload) = packet.message()?;
                count(payload, tally, epoch);
                if let Some(id) = id {
                    mqtt::acknowledge(if qos == 1 { mqtt::PUBACK } else { mqtt::PUBREC }, id, &mut answers);
                }
            }
            mqtt::PUBREL => mqtt::acknowledge(mqtt::PUBCOMP, packet.id()?, &mut answers),
            _ => {}
        }
        if !answers.is_empty() && !connection.has_next() {
            connection.send(&answers).await?;
            answers.clear();
        }
    }
}

fn count(payload: &[u8], tally: &RefCell<Tally>, epoch: Instant) {
    let now = Instant::now();
    let Some((sent, rest)) = payload.split_first_chunk() else { return };
    let Some((phase, _)) = rest.split_first_chunk() else { return };
    let mut tally = tally.borrow_mut();
    if tally.phase != u32::from_be_bytes(*phase) {
        return;
    }
    let sent = epoch + Duration::from_nanos(u64::from_be_bytes(*sent));
    tally.delivered += 1;
    tally.last = now;
    tally.latency.saturating_record(now.saturating_duration_since(sent).as_micros() as u64);
}

struct Job {
    addr: SocketAddr,
    users: Rc<Users>,
    devices: Rc<Vec<usize>>,
    tally: Rc<RefCell<Tally>>,
    epoch: Instant,
    publisher: usize,
    number: u32,
    phase: Phase,
}

impl Job {
    /// One publisher: every `publishers`-th message is its own.
    async fn run(self) -> io::Result<()> {
        let Phase { messages, qos, rate, publishers, .. } = self.phase;
        let id = format!("perf-p{}-{}", self.publisher, self.number);
        let mut connection = Connection::open(self.addr, &id, self.users.backend()).await?;
        let (me, all) = (self.publisher as u64, publishers as u64);
        let mut mine = messages / all + u64::from(me < messages % all);
        let began = Instant::now();
        let (mut sent, mut open, mut id) = (0u64, 0usize, 0u16);
        let mut out = Vec::with_capacity(64 * 1024);
        let mut payload = vec![b'x'; self.phase.payload.max(PAYLOAD_MIN)];
        payload[8..12].copy_from_slice(&self.number.to_be_bytes());
        while sent < mine || open > 0 {
            if self.phase.limit.is_some_and(|limit| began.elapsed() > limit) {
                mine = sent;
            }
            let due = match rate {
                0 => mine,
                rate => ((began.elapsed().as_secs_f64() * rate as f64 / all as f64) as u64 + 1).min(mine),
            };
            while sent < due && self.has_room(open) && out.len() < 32 * 1024 {
                let user = ((sent * all + me) % self.devices.len() as u64) as usize;
                if qos > 0 {
                    id = id.wrapping_add(1).max(1);
                    open += 1;
                }
                self.tally.borrow_mut().owed += self.devices[user] as u64;
                payload[..8].copy_from_slice(&(self.epoch.elapsed().as_nanos() as u64).to_be_bytes());
                mqtt::publish(&self.users.topic(user), qos, id, &payload, &mut out);
                sent += 1;
            }
            if !out.is_empty() {
                connection.send(&out).await?;
                out.clear();
            }
            if qos > 0 && open > 0 && (rate == 0 || sent == mine || open >= WINDOW) {
                read_acknowledgement(&mut connection, &mut open, &mut out).await?;
                while connection.has_next() {
                    read_acknowledgement(&mut connection, &mut open, &mut out).await?;
                }
            } else if qos > 0 && open > 0 {
                // Paced: acknowledgements are read while the next message is not due.
                let pause = Duration::from_millis(1);
                if let Ok(result) =
                    tokio::time::timeout(pause, read_acknowledgement(&mut connection, &mut open, &mut out)).await
                {
                    result?;
                }
            } else if sent < mine {
                // The clock of timers ticks in milliseconds; that is fine enough.
                tokio::time::sleep(Duration::from_millis(u64::from(rate > 0 || !self.has_room(open)))).await;
                tokio::task::yield_now().await;
            }
        }
        if !out.is_empty() {
            connection.send(&out).await?;
        }
        self.tally.borrow_mut().sending -= 1;
        // A broker may drop what waits for others when the client that sent it goes away: stay until the phase is over,
        // when this task is ended.
        std::future::pending().await
    }

    fn has_room(&self, open: usize) -> bool {
        let tally = self.tally.borrow();
        if self.phase.qos > 0 { open < WINDOW } else { tally.owed.saturating_sub(tally.delivered) < BEHIND_MAX }
    }
}

async fn read_acknowledgement(connection: &mut Connection, open: &mut usize, out: &mut Vec<u8>) -> io::Result<()> {
    let packet = connection.next().await?;
    match packet.kind() {
        mqtt::PUBACK | mqtt::PUBCOMP => *open = open.saturating_sub(1),
        mqtt::PUBREC => mqtt::acknowledge(mqtt::PUBREL, packet.id()?, out),
        _ => {}
    }
    Ok(())
}
