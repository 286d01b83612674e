//! A session goes on where it was, whatever became of the connection before, and whatever the new one takes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ciqadamq_tests::mqtt::{Event, Message, Packet, kind, packet};
use ciqadamq_tests::{Broker, BrokerOptions, Client, Connect, Version, WAIT, eventually};

const TOPIC: &str = "chat/ua/x";

/// Hashes slowly, and every password: long enough for a client to go away meanwhile.
fn slow_logins() -> BrokerOptions {
    BrokerOptions::new().set("auth.cache_ttl_secs", 0).set("auth.argon2.m_cost", 8192)
}

fn begin_login(broker: &Broker, connect: &Connect) -> Client {
    let mut client = Client::open(connect, broker.tcp).unwrap();
    client.send(&connect.encode());
    client
}

/// A login whose CONNACK cannot be written: its session is in the engine's table, and stays online there without a task.
fn break_before_connack(broker: &Broker, connect: &Connect) {
    let begun = Instant::now();
    let is_online = || broker.rest.session("phone").is_some_and(|session| session["online"] == true);
    while begun.elapsed() < Duration::from_secs(60) {
        begin_login(broker, connect).stream.reset();
        let looked = Instant::now() + Duration::from_secs(2);
        while Instant::now() < looked && !is_online() {}
        // One that got as far as its CONNACK is offline again a moment later.
        let looked = Instant::now() + Duration::from_secs(1);
        while Instant::now() < looked && is_online() {}
        if is_online() {
            return;
        }
    }
    panic!("no session lost its connection before CONNACK");
}

struct Publisher {
    client: Client,
    next: u32,
}

impl Publisher {
    fn publish(&mut self, count: u32) {
        for n in self.next..self.next + count {
            self.client.publish_ok(TOPIC, &n.to_string(), 1 + (n % 2) as u8);
        }
        self.next += count;
    }
}

/// A session that has lost its connection before CONNACK, perhaps several times, with messages in all states.
fn lost_before_connack(version: Version, between: impl FnOnce(&Broker, &Connect, &mut Publisher)) {
    let broker = Broker::start(slow_logins());
    let (root, ua) = (broker.superuser("root"), broker.user("ua"));
    let connect = ua.connect(version, "phone").persistent(600);
    let mut publisher = Publisher { client: broker.client(&root, Version::V5, "publisher"), next: 0 };
    let (mut phone, _) = broker.connect(&connect).accepted();
    assert_eq!(phone.try_subscribe(&[(TOPIC, 2)]), [2]);
    phone.auto_ack = false;
    publisher.publish(3);
    let sent: Vec<_> = (0..3).map(|_| phone.message()).collect();
    phone.cut();
    broker.rest.wait_offline("phone");
    publisher.publish(5);
    break_before_connack(&broker, &connect);
    publisher.publish(5);
    between(&broker, &connect, &mut publisher);
    // Some come while it logs in: a session without a task is waited for, for a second, by this login and the one before.
    let phone = begin_login(&broker, &connect);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(1_800) {
        publisher.publish(1);
        std::thread::sleep(Duration::from_millis(5));
    }
    let (mut phone, connack) = phone.connack().accepted();
    assert!(connack.session_present);
    for n in 0..publisher.next {
        let message = phone.expect(TOPIC, &n.to_string());
        let again = sent.get(n as usize);
        assert_eq!(message.dup, again.is_some(), "{n}");
        assert!(again.is_none_or(|sent| sent.packet_id == message.packet_id), "{n}");
    }
    publisher.client.publish_ok(TOPIC, "end", 1);
    assert_eq!(phone.until(TOPIC, "end"), [], "{version:?}");
}

#[test]
fn what_waits_outlives_connections_that_break_before_connack() {
    for version in Version::COMMON {
        lost_before_connack(version, |broker, connect, publisher| {
            // Each takes the session over from the one before.
            for _ in 0..3 {
                let client = begin_login(broker, connect);
                publisher.publish(2);
                client.stream.reset();
                publisher.publish(2);
            }
            break_before_connack(broker, connect);
        });
    }
}

#[test]
fn a_session_whose_connack_could_not_be_written_goes_on_collecting() {
    lost_before_connack(Version::V5, |broker, _, publisher| {
        let revived = || broker.rest.metric("ciqadamq_auth_sessions_revived_total", &[]) > 0.0;
        eventually("the session is offline", || revived().then_some(()));
        publisher.publish(5);
        let session = broker.rest.session("phone").unwrap();
        assert_eq!((&session["online"], &session["queued"]), (&false.into(), &(publisher.next - 3).into()));
    });
}

#[test]
fn a_session_whose_connack_could_not_be_written_survives_a_crash() {
    let mut broker = Broker::start(slow_logins());
    let (root, ua) = (broker.superuser("root"), broker.user("ua"));
    let connect = ua.connect(Version::V5, "phone").persistent(600);
    let (mut phone, _) = broker.connect(&connect).accepted();
    phone.subscribe(&[TOPIC]);
    phone.disconnect();
    broker.rest.wait_offline("phone");
    break_before_connack(&broker, &connect);
    broker.client(&root, Version::V5, "publisher").publish_ok(TOPIC, "kept", 1);
    broker.kill9();
    broker.start_again();
    let (mut phone, connack) = broker.connect(&connect).accepted();
    assert!(connack.session_present);
    phone.expect(TOPIC, "kept");
}

/// The other side of a connection with a small Receive Maximum: acknowledges only when it has to.
struct Slow {
    client: Client,
    receive_maximum: usize,
    /// messages without PUBACK or PUBREC, in their order
    open: VecDeque<Message>,
    /// exchanges without PUBCOMP, in their order
    releases: VecDeque<u16>,
    messages: Vec<Message>,
}

impl Slow {
    fn new(client: Client, receive_maximum: usize) -> Self {
        let (open, releases, messages) = (VecDeque::new(), VecDeque::new(), Vec::new());
        Self { client, receive_maximum, open, releases, messages }
    }

    /// Takes what comes before the answer to a PINGREQ.
    fn look(&mut self) {
        self.client.send(&packet(kind::PINGREQ, 0, &[]));
        loop {
            match self.client.next(WAIT) {
                Event::Packet(Packet::Publish(message)) => {
                    self.messages.push(message.clone());
                    self.open.push_back(message);
                }
                Event::Packet(Packet::Ack { kind: kind::PUBREL, id, .. }) => self.releases.push_back(id),
                Event::Packet(Packet::Pingresp) => break,
                other => panic!("{other:?}"),
            }
        }
        let on_the_way = self.open.len();
        assert!(on_the_way <= self.receive_maximum, "{on_the_way} after {:?}", self.texts());
    }

    /// The oldest step that is due.
    fn acknowledge(&mut self) {
        if let Some(id) = self.releases.pop_front() {
            self.client.ack(kind::PUBCOMP, id);
        } else if let Some(message) = self.open.pop_front() {
            self.client.ack(if message.qos == 1 { kind::PUBACK } else { kind::PUBREC }, message.packet_id.unwrap());
        }
    }

    fn texts(&self) -> Vec<String> {
        self.messages.iter().map(Message::text).collect()
    }
}

#[test]
fn a_session_that_resumes_with_a_smaller_receive_maximum_is_sent_no_more_at_a_time() {
    let broker = Broker::start_default();
    let (root, ua) = (broker.superuser("root"), broker.user("ua"));
    let mut publisher = broker.client(&root, Version::V5, "publisher");
    // How many messages were received, and not completed, on the first connection.
    for (qos, received) in [(1, 0), (2, 0), (2, 2), (2, 6), (2, 10)] {
        let connect = ua.connect(Version::V5, "phone").persistent(600);
        let (mut phone, _) = broker.connect(&connect.clone().receive_maximum(20)).accepted();
        assert_eq!(phone.try_subscribe(&[(TOPIC, qos)]), [qos]);
        phone.auto_ack = false;
        for n in 0..10 {
            publisher.publish_ok(TOPIC, &n.to_string(), qos);
        }
        let sent: Vec<_> = (0..10).map(|_| phone.message()).collect();
        for message in &sent[..received] {
            phone.ack(kind::PUBREC, message.packet_id.unwrap());
        }
        for message in &sent[..received] {
            let next = phone.next(WAIT);
            assert!(
                matches!(next, Event::Packet(Packet::Ack { kind: kind::PUBREL, id, .. }) if Some(id) == message.packet_id)
            );
        }
        phone.cut();
        broker.rest.wait_offline("phone");
        for n in 10..20 {
            publisher.publish_ok(TOPIC, &n.to_string(), qos);
        }
        let (phone, connack) = broker.connect(&connect.receive_maximum(3)).accepted();
        assert!(connack.session_present);
        let mut phone = Slow::new(phone, 3);
        eventually("all PUBRELs that are owed", || {
            phone.look();
            (phone.releases.len() == received).then_some(())
        });
        let owed: Vec<_> = sent[..received].iter().map(|message| message.packet_id.unwrap()).collect();
        assert_eq!(phone.releases, owed);
        eventually("everything", || {
            phone.look();
            phone.acknowledge();
            (phone.messages.len() == 20 - received && phone.open.is_empty() && phone.releases.is_empty()).then_some(())
        });
        let all: Vec<String> = (received..20).map(|n| n.to_string()).collect();
        assert_eq!(phone.texts(), all, "QoS {qos}, {received} were received");
        for (before, now) in sent[received..].iter().zip(&phone.messages) {
            assert_eq!((now.packet_id, now.dup), (before.packet_id, true));
        }
        assert!(phone.messages[10 - received..].iter().all(|message| !message.dup));
        phone.client.disconnect();
        broker.rest.delete("/api/v1/sessions/phone");
        broker.rest.wait_gone("phone");
    }
}
