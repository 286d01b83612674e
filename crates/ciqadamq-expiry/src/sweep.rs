//! The queues of offline sessions, and the messages in them that nobody will get.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dashmap::DashMap;
use parking_lot::Mutex;
use prometheus::IntCounter;
use rmqtt::session::Session;
use rmqtt::types::{Id, MessageQueueType, Publish};
use rmqtt::utils::timestamp_millis;

/// The offline sessions of this node. Bounded by their number.
pub(crate) struct Offline {
    cap: Duration,
    expired: IntCounter,
    queues: DashMap<Id, Arc<Waiting>>,
}

struct Waiting {
    queue: MessageQueueType,
    times: Mutex<Times>,
}

struct Times {
    /// Everything in the queue is at least as old as this.
    newest: Instant,
    /// When the front was last looked at from inside.
    looked: Instant,
}

impl Offline {
    pub(crate) fn new(cap: Duration, expired: IntCounter) -> Self {
        Self { cap, expired, queues: DashMap::new() }
    }

    /// A session's client disconnected; what it did not read waits.
    pub(crate) fn went(&self, session: &Session) {
        let now = Instant::now();
        let times = Mutex::new(Times { newest: now, looked: now });
        let waiting = Waiting { queue: session.deliver_queue().clone(), times };
        self.queues.insert(session.id.clone(), Arc::new(waiting));
    }

    /// A session is online again, taken over, or over.
    pub(crate) fn forget(&self, session: &Session) {
        self.queues.remove(&session.id);
    }

    /// A message is about to be pushed; called in the session's own task.
    pub(crate) fn arrived(&self, session: &Session) {
        let waiting = self.queues.entry(session.id.clone()).or_insert_with(|| {
            let now = Instant::now();
            let times = Mutex::new(Times { newest: now, looked: now });
            Arc::new(Waiting { queue: session.deliver_queue().clone(), times })
        });
        let mut times = waiting.times.lock();
        let now = Instant::now();
        times.newest = now;
        // The queue can only be turned over as a whole, so not at every message.
        if now.duration_since(times.looked) >= self.cap / 8 {
            times.looked = now;
            self.turn_over(&waiting.queue);
        }
    }

    /// Drops the expired and keeps the order of the rest.
    fn turn_over(&self, queue: &MessageQueueType) {
        let (now, cap) = (timestamp_millis(), self.cap.as_millis() as i64);
        for _ in 0..queue.len() {
            let Some((from, publish)) = queue.pop() else { break };
            if is_expired(&publish, now, cap) {
                self.expired.inc();
            } else if queue.push((from, publish)).is_err() {
                // Cannot happen: the task that pushes is this one. A lost message would be worse than a log line.
                tracing::error!("a queue filled while it was being swept");
            }
        }
    }

    /// Empties the queues in which nothing arrived for a whole cap. Returns how many messages went.
    pub(crate) fn sweep(&self) -> u64 {
        let idle: Vec<_> = self
            .queues
            .iter()
            .filter(|waiting| !waiting.queue.is_empty() && waiting.times.lock().newest.elapsed() > self.cap)
            .map(|waiting| waiting.value().clone())
            .collect();
        // A session that was taken over never says so; its queue was drained for its successor.
        self.queues.retain(|_, w| !w.queue.is_empty() || w.times.lock().newest.elapsed() <= self.cap);
        let mut swept = 0;
        for waiting in idle {
            // The lock keeps an arriving message out of the queue until we are done, see `arrived`.
            let times = waiting.times.lock();
            if times.newest.elapsed() <= self.cap {
                continue;
            }
            while waiting.queue.pop().is_some() {
                swept += 1;
            }
        }
        self.expired.inc_by(swept);
        swept
    }
}

fn is_expired(publish: &Publish, now: i64, cap: i64) -> bool {
    let interval = publish.properties.as_ref().and_then(|p| p.message_expiry_interval);
    let interval = interval.map_or(cap, |i| i64::from(i.get()) * 1000).min(cap);
    publish.create_time.is_some_and(|created| now - created >= interval)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rmqtt::codec::types::{Publish as Packet, QoS};
    use rmqtt::types::{ClientId, From, MessageQueue};

    fn message(topic: &str, age: i64) -> (From, Publish) {
        let packet = Packet {
            dup: false,
            retain: false,
            qos: QoS::AtLeastOnce,
            topic: topic.into(),
            packet_id: None,
            payload: Default::default(),
            properties: None,
        };
        let from = From::from_custom(Id::from(1, ClientId::from_static("p")));
        (from, Publish::from(packet).create_time(timestamp_millis() - age))
    }

    fn offline() -> Offline {
        Offline::new(Duration::from_secs(10), IntCounter::new("x", "x").unwrap())
    }

    #[test]
    fn turning_a_queue_over_drops_the_expired_and_keeps_the_order() {
        let queue: MessageQueueType = Arc::new(MessageQueue::new(10));
        for (topic, age) in [("a", 20_000), ("b", 1), ("c", 10_001), ("d", 2), ("e", 3)] {
            queue.push(message(topic, age)).unwrap();
        }
        let offline = offline();
        offline.turn_over(&queue);
        let left: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|(_, p)| p.topic.to_string()).collect();
        assert_eq!(left, ["b", "d", "e"]);
        assert_eq!(offline.expired.get(), 2);
    }

    #[test]
    fn a_queue_is_emptied_only_when_nothing_arrived_for_a_whole_cap() {
        let offline = offline();
        for (name, idle) in [("idle", 11), ("busy", 9)] {
            let queue: MessageQueueType = Arc::new(MessageQueue::new(10));
            queue.push(message(name, 0)).unwrap();
            let newest = Instant::now().checked_sub(Duration::from_secs(idle)).unwrap();
            let waiting = Waiting { queue, times: Mutex::new(Times { newest, looked: newest }) };
            offline.queues.insert(Id::from(1, ClientId::from_static(name)), Arc::new(waiting));
        }
        assert_eq!(offline.sweep(), 1);
        assert_eq!(offline.sweep(), 0);
        let left: usize = offline.queues.iter().map(|w| w.queue.len()).sum();
        assert_eq!(left, 1);
    }
}
