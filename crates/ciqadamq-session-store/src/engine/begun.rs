//! Whether the engine has begun the task of a session that was handed over.
//!
//! The engine sets a session, writes CONNACK, and begins the task. If that write fails the task never begins, and the channel is dropped
//! with all that was handed over in it. Nobody is told. So a question stands in the channel behind all that: a task that has begun
//! answers it, and a channel that is dropped takes it along.

use parking_lot::Mutex;
use rmqtt::Result;
use rmqtt::types::{Message, SubscribeReturn, Tx};
use tokio::sync::oneshot::{Receiver, channel, error::TryRecvError};

type Answer = Vec<Result<SubscribeReturn>>;

/// The question, until it is known to be answered.
#[derive(Default)]
pub(super) struct Begun(Mutex<Option<Receiver<Answer>>>);

impl Begun {
    /// Puts the question into the channel of a session that is about to be set.
    pub(super) fn ask(&self, tx: &Tx) {
        let (answer, asked) = channel();
        // To subscribe nothing at all is answered, and does nothing.
        if tx.unbounded_send(Message::Subscribes(Vec::new(), Some(answer))).is_ok() {
            *self.0.lock() = Some(asked);
        }
    }

    /// Whether the question was dropped: with the channel, or by the task of a session whose client had left already.
    pub(super) fn is_unanswered(&self) -> bool {
        let mut asked = self.0.lock();
        match asked.as_mut().map(Receiver::try_recv) {
            Some(Err(TryRecvError::Closed)) => true,
            Some(Ok(_)) => {
                *asked = None;
                false
            }
            Some(Err(TryRecvError::Empty)) | None => false,
        }
    }

    /// The session has another task now.
    pub(super) fn settle(&self) {
        *self.0.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rmqtt::types::SessionTx;

    #[test]
    fn a_channel_that_is_dropped_is_known_from_one_that_is_read() {
        let (tx, mut rx) = futures::channel::mpsc::unbounded();
        let (tx, begun) = (SessionTx::new(tx), Begun::default());
        assert!(!begun.is_unanswered());
        begun.ask(&tx);
        assert!(!begun.is_unanswered());
        let Ok(Message::Subscribes(subscriptions, Some(answer))) = rx.try_recv() else { panic!("no question") };
        assert!(subscriptions.is_empty());
        answer.send(Vec::new()).unwrap();
        assert!(!begun.is_unanswered() && !begun.is_unanswered());
        begun.ask(&tx);
        drop(rx);
        assert!(begun.is_unanswered() && begun.is_unanswered());
        begun.settle();
        assert!(!begun.is_unanswered());
    }
}
