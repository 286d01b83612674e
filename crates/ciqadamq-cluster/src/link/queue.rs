//! Messages for another node, until it has said that it has them.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::HEAD;

/// Bytes kept for one node. More wait.
const BYTES_MAX: usize = 64 * 1024 * 1024;
/// How long a publisher waits for room.
const PATIENCE: Duration = Duration::from_secs(1);
/// Written in one go.
const CHUNK: usize = 256 * 1024;

pub(crate) struct Queue {
    state: Mutex<State>,
    /// Something is to be sent.
    more: Notify,
    /// There is room again.
    room: Notify,
}

#[derive(Default)]
struct State {
    /// Not acknowledged, in order, without a gap in the numbers.
    kept: VecDeque<Vec<u8>>,
    /// Number of the first of them.
    first: u64,
    /// How many of them are on the current connection already.
    sent: usize,
    bytes: usize,
    /// Who waits for the message with this number to arrive: nobody is woken for another one.
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
}

impl State {
    /// Wakes those whose messages are not kept any more.
    fn wake(&mut self) {
        let later = self.waiting.split_off(&self.first);
        for (_, waiting) in std::mem::replace(&mut self.waiting, later) {
            // It may have given up.
            let _ = waiting.send(());
        }
    }
}

impl Queue {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State { first: 1, ..State::default() }), more: Notify::new(), room: Notify::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.state.lock().kept.len()
    }

    /// Puts a message at the end and gives its number, or says why not.
    pub(crate) async fn push(&self, message: Vec<u8>) -> Result<u64, &'static str> {
        let since = Instant::now();
        loop {
            // Before the look, so that room made in between is not missed.
            let room = self.room.notified();
            {
                let mut state = self.state.lock();
                // One that is longer than the queue goes alone.
                if state.bytes + message.len() <= BYTES_MAX || state.kept.is_empty() {
                    state.bytes += message.len();
                    state.kept.push_back(message);
                    let number = state.first + state.kept.len() as u64 - 1;
                    drop(state);
                    self.more.notify_one();
                    return Ok(number);
                }
            }
            let left = PATIENCE.checked_sub(since.elapsed()).ok_or("the queue to the node is full")?;
            // Whether room or time came, is seen above.
            let _ = tokio::time::timeout(left, room).await;
        }
    }

    /// Waits until the message with this number is not kept any more: it arrived, or it was forgotten.
    pub(crate) async fn gone(&self, number: u64) {
        let arrived = {
            let mut state = self.state.lock();
            if state.first > number {
                return;
            }
            let (arrives, arrived) = oneshot::channel();
            // One message has one publisher.
            state.waiting.insert(number, arrives);
            arrived
        };
        // The sender is dropped with the queue only.
        let _ = arrived.await;
    }

    /// Begins a connection on whose other side everything up to `has` arrived.
    pub(super) fn begin(&self, has: u64) {
        self.acknowledge(has);
        self.state.lock().sent = 0;
    }

    /// Takes note that everything up to `has` arrived.
    pub(super) fn acknowledge(&self, has: u64) {
        let mut state = self.state.lock();
        while state.first <= has {
            let Some(gone) = state.kept.pop_front() else { break };
            state.bytes -= gone.len();
            state.first += 1;
            state.sent = state.sent.saturating_sub(1);
        }
        state.wake();
        drop(state);
        self.room.notify_waiters();
    }

    /// Fills `buffer` with what is to be sent next, waiting for it.
    pub(super) async fn next(&self, buffer: &mut Vec<u8>) {
        buffer.clear();
        loop {
            let more = self.more.notified();
            {
                let mut state = self.state.lock();
                while let Some(message) = state.kept.get(state.sent) {
                    let number = state.first + state.sent as u64;
                    // Lengths are checked when a message comes in.
                    buffer.extend_from_slice(&(message.len() as u32).to_be_bytes());
                    buffer.extend_from_slice(&number.to_be_bytes());
                    buffer.extend_from_slice(message);
                    state.sent += 1;
                    if buffer.len() + HEAD >= CHUNK {
                        return;
                    }
                }
            }
            if !buffer.is_empty() {
                return;
            }
            more.await;
        }
    }

    /// Forgets everything; says how many messages that were.
    pub(super) fn clear(&self) -> usize {
        let mut state = self.state.lock();
        let gone = state.kept.len();
        state.first += gone as u64;
        (state.sent, state.bytes) = (0, 0);
        state.kept.clear();
        state.wake();
        drop(state);
        self.room.notify_waiters();
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(buffer: &[u8]) -> Vec<u64> {
        let (mut rest, mut found) = (buffer, Vec::new());
        while !rest.is_empty() {
            let len = u32::from_be_bytes(rest[..4].try_into().unwrap()) as usize;
            found.push(u64::from_be_bytes(rest[4..12].try_into().unwrap()));
            rest = &rest[HEAD + len..];
        }
        found
    }

    #[tokio::test]
    async fn what_was_not_acknowledged_is_sent_again_on_the_next_connection() {
        let queue = Queue::new();
        let mut buffer = Vec::new();
        for _ in 0..5 {
            queue.push(vec![1; 10]).await.unwrap();
        }
        queue.next(&mut buffer).await;
        assert_eq!(numbers(&buffer), [1, 2, 3, 4, 5]);
        queue.acknowledge(2);
        queue.push(vec![2; 10]).await.unwrap();
        queue.next(&mut buffer).await;
        assert_eq!(numbers(&buffer), [6]);
        queue.begin(3);
        queue.next(&mut buffer).await;
        assert_eq!(numbers(&buffer), [4, 5, 6]);
        queue.acknowledge(6);
        assert_eq!(queue.len(), 0);
    }

    #[tokio::test]
    async fn who_waits_for_a_message_hears_when_it_arrived_or_is_forgotten() {
        let queue = std::sync::Arc::new(Queue::new());
        let wait = |number| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.gone(number).await })
        };
        let (first, second) = (queue.push(vec![1]).await.unwrap(), queue.push(vec![2]).await.unwrap());
        let (waits_first, waits_second) = (wait(first), wait(second));
        tokio::task::yield_now().await;
        queue.acknowledge(first);
        waits_first.await.unwrap();
        assert!(!waits_second.is_finished());
        queue.clear();
        waits_second.await.unwrap();
        wait(second).await.unwrap();
    }

    #[tokio::test]
    async fn a_full_queue_is_waited_for_and_then_said_to_be_full() {
        let queue = Queue::new();
        queue.push(vec![0; BYTES_MAX]).await.unwrap();
        assert!(queue.push(vec![0; 1]).await.is_err());
        let queue = std::sync::Arc::new(queue);
        let other = queue.clone();
        let waiting = tokio::spawn(async move { other.push(vec![0; 1]).await });
        tokio::task::yield_now().await;
        queue.acknowledge(1);
        waiting.await.unwrap().unwrap();
        assert_eq!(queue.clear(), 1);
        // Numbers go on: the other side has seen the earlier ones.
        queue.push(vec![0; 1]).await.unwrap();
        let mut buffer = Vec::new();
        queue.next(&mut buffer).await;
        assert_eq!(numbers(&buffer), [3]);
    }
}
