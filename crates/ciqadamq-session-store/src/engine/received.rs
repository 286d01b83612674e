//! PUBREC is on disk before PUBREL leaves.
//!
//! Else a crash in between, while the client completes the exchange, makes the broker deliver a message again that the client
//! has let go of. But the engine answers a PUBREC with PUBREL at once, and asks nobody. All it does before is to note the PUBREC in
//! the session's window, under a lock. Whoever waits for that lock next is woken when the engine lets go of it: in the
//! engine's own task, before the PUBREL is written. So there is an [`Ear`] that waits next, and that does not return from being
//! woken until the PUBREC is on disk.
//!
//! To be next it has to come after the engine. So the session takes the lock when the engine asks for the window
//! ([`Received::listen`]), and a task puts the ear in the queue and gives the lock away. If the ear gets it, the engine had not come
//! yet, and all begins again; else the engine is before it.
//!
//! Only sessions with a QoS 2 delivery before its PUBREC pay for this, and a thread is blocked only while a PUBREC is written.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rmqtt::inflight::{MomentStatus, OutInflight};
use rmqtt::types::{Id, OutInflightType};
use tokio::runtime::Handle;
use tokio::sync::OwnedRwLockWriteGuard;
use tokio::task::{block_in_place, coop::unconstrained, yield_now};
use tracing::warn;

use super::keeper::{Keeper, Live};
use crate::{Commit, Durability, Refusal};

/// The engine comes for the lock within nanoseconds of asking for the window, unless its thread has to wait for a processor.
const COMES_WITHIN: Duration = Duration::from_secs(1);
/// How often its coming is looked for at once.
const LOOKS: usize = 20;
/// Between two looks after that.
const LOOK_EVERY: Duration = Duration::from_millis(1);

type Guard = OwnedRwLockWriteGuard<OutInflight>;
type Turn = Pin<Box<dyn Future<Output = Guard> + Send>>;

/// Takes down the PUBRECs of one connection.
pub(super) struct Received {
    pub(super) id: Id,
    pub(super) live: Arc<Live>,
    pub(super) keeper: Arc<Keeper>,
}

impl Received {
    /// The engine asks for the window, to read or to change it: if there may be a PUBREC, it is not to get by unheard.
    pub(super) fn listen(self: &Arc<Self>, window: &OutInflightType) {
        if self.live.is_harmless()
            || self.live.awaiting.lock().is_empty()
            || self.keeper.store.durability() == Durability::Memory
        {
            return;
        }
        let (Ok(held), Ok(runtime)) = (window.clone().try_write_owned(), Handle::try_current()) else { return };
        runtime.spawn(put_behind(self.clone(), window.clone(), held));
    }

    /// Those that got by unheard, because somebody else had the lock. The next packet of the client waits for it.
    pub(super) async fn take_down_late(&self, window: &OutInflightType) {
        if self.live.awaiting.lock().is_empty() {
            return;
        }
        let commit = { self.take_down(&*window.read().await) };
        if let Some(commit) = commit {
            self.noted(commit.done().await);
        }
    }

    /// Puts what the window tells of PUBRECs into the store; `None` if it tells nothing new.
    fn take_down(&self, window: &OutInflight) -> Option<Commit> {
        let mut received = Vec::new();
        self.live.awaiting.lock().retain(|id| {
            let has_come = window.get(*id).is_some_and(|message| message.status == MomentStatus::UnComplete);
            received.extend(has_come.then_some(*id));
            !has_come
        });
        let kept = self.keeper.same(&self.id).filter(|_| !received.is_empty())?;
        self.live.see();
        // The commit of the last holds the others.
        received.iter().fold(None, |_, id| Some(self.keeper.store.received(kept.no, *id)))
    }

    fn noted(&self, outcome: Result<(), Refusal>) {
        // It stands in memory, and is written when the disk takes writes again.
        if let Err(reason) = outcome {
            warn!(client_id = &*self.id.client_id, %reason, "PUBREC is not on disk yet");
        }
    }
}

/// Lets whoever comes for the lock have it, with an ear behind.
async fn put_behind(received: Arc<Received>, window: OutInflightType, mut held: Guard) {
    let since = Instant::now();
    for look in 0.. {
        held = match Ear::queue(&received, &window, held) {
            Some(guard) if since.elapsed() < COMES_WITHIN => guard,
            _ => return,
        };
        if look < LOOKS { yield_now().await } else { tokio::time::sleep(LOOK_EVERY).await }
    }
}

/// Waits for the lock behind somebody, and hears what was changed.
struct Ear {
    received: Arc<Received>,
    turn: Mutex<Option<Turn>>,
    /// the thread that puts it in the queue, ...
    by: ThreadId,
    /// ... while it does
    is_placing: AtomicBool,
    /// the lock, if there was nobody to wait behind
    back: Mutex<Option<Guard>>,
}

impl Ear {
    /// Queues an ear, and gives the lock away; gets it back if there is nobody else.
    fn queue(received: &Arc<Received>, window: &OutInflightType, held: Guard) -> Option<Guard> {
        let ear = Arc::new(Self {
            received: received.clone(),
            turn: Mutex::new(None),
            by: thread::current().id(),
            is_placing: AtomicBool::new(true),
            back: Mutex::new(None),
        });
        // Whatever task wakes it may have used up its budget.
        let mut turn: Turn = Box::pin(unconstrained(window.clone().write_owned()));
        // It waits: the lock is held.
        let polled = turn.as_mut().poll(&mut Context::from_waker(&ear.clone().into()));
        debug_assert!(polled.is_pending());
        *ear.turn.lock() = Some(turn);
        drop(held);
        ear.is_placing.store(false, Ordering::Release);
        ear.back.lock().take()
    }
}

impl Wake for Ear {
    fn wake(self: Arc<Self>) {
        let Some(mut turn) = self.turn.lock().take() else { return };
        let Poll::Ready(window) = turn.as_mut().poll(&mut Context::from_waker(Waker::noop())) else { return };
        // Another thread may be the engine's already, although this one has just given the lock away.
        if self.by == thread::current().id() && self.is_placing.load(Ordering::Acquire) {
            *self.back.lock() = Some(window);
            return;
        }
        let commit = self.received.take_down(&window);
        drop(window);
        if let Some(commit) = commit {
            self.received.noted(block_in_place(|| commit.wait()));
        }
    }
}
