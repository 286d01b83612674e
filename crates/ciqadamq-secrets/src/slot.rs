//! One secret at run time: its value in force, and the one task that asks its source for another.
//!
//! **Who is answered by which question.** Questions are numbered. A caller that was shown an unknown value needs an answer to
//! a question that was put *after* it came: one that was under way may have been answered before the rotation. So it
//! remembers the number of the last question put, and waits until a later one is answered.
//!
//! **Bounds.** One question at a time, one in `Pace::at_least` that callers ask for, besides the clock's own;
//! [`WAITING_MAX`] callers wait, each at most for that long and an answer's deadline. A source that asked us to stay away is not asked, and nobody waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ciqadamq_core::{LookedAgain, Secret, SecretName};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::error::ReadError;
use crate::metrics::Metrics;
use crate::source::{Found, Source};

/// Callers that may wait for an answer; a further one is told that everybody is busy.
const WAITING_MAX: usize = 256;
/// No source takes longer: each bounds itself, and this is for one that does not.
const READ_MAX: Duration = Duration::from_secs(60);
/// After 429 without a word about how long.
pub(crate) const STAY_AWAY: Duration = Duration::from_secs(60);

/// Told of every value that comes into force; `None`: the source says for sure that there is no such secret.
pub(crate) type Observer = Box<dyn Fn(SecretName, Option<&Secret>) + Send + Sync>;
/// Told when the trouble with a secret begins and ends.
pub(crate) type Trouble = Arc<dyn Fn(SecretName, Option<String>) + Send + Sync>;

/// The value in force.
enum Held {
    Value {
        secret: Secret,
        /// it is the source's own, not a substitute
        from_source: bool,
    },
    Absent,
    Unknown,
}

/// What was in force before.
#[derive(Clone)]
pub(crate) enum Before {
    Value(Secret),
    Absent,
}

pub(crate) struct Slot {
    name: SecretName,
    source: Arc<dyn Source>,
    held: RwLock<Held>,
    /// what was in force until the last change, and how long that counts
    before: RwLock<Option<(Before, Instant)>>,
    overlap: Duration,
    observers: RwLock<Vec<Observer>>,
    /// questions put so far
    put: AtomicU64,
    /// the last question that was answered, or given up
    answered: watch::Sender<u64>,
    wanted: Notify,
    waiting: Semaphore,
    away_until: Mutex<Option<Instant>>,
    /// an episode of failures is going on
    failing: Mutex<bool>,
    metrics: Metrics,
    trouble: Trouble,
}

/// What a slot begins with.
pub(crate) enum First {
    Source(Secret),
    Substitute(Secret),
    Absent,
    Unknown,
}

impl Slot {
    pub(crate) fn new(
        name: SecretName,
        source: Arc<dyn Source>,
        overlap: Duration,
        first: First,
        metrics: Metrics,
        trouble: Trouble,
    ) -> Self {
        let held = match first {
            First::Source(secret) => Held::Value { secret, from_source: true },
            First::Substitute(secret) => Held::Value { secret, from_source: false },
            First::Absent => Held::Absent,
            First::Unknown => Held::Unknown,
        };
        Self {
            name,
            source,
            held: RwLock::new(held),
            before: RwLock::new(None),
            overlap,
            observers: RwLock::default(),
            put: AtomicU64::new(0),
            answered: watch::Sender::new(0),
            wanted: Notify::new(),
            waiting: Semaphore::new(WAITING_MAX),
            away_until: Mutex::new(None),
            failing: Mutex::new(false),
            metrics,
            trouble,
        }
    }

    pub(crate) fn name(&self) -> SecretName {
        self.name
    }

    pub(crate) fn observe(&self, observer: Observer) {
        self.observers.write().push(observer);
    }

    pub(crate) fn current(&self) -> Option<Secret> {
        match &*self.held.read() {
            Held::Value { secret, .. } => Some(secret.clone()),
            Held::Absent | Held::Unknown => None,
        }
    }

    /// What was in force until a moment ago: the overlap of its rotation lasts.
    pub(crate) fn before(&self) -> Option<Before> {
        let before = self.before.read();
        before.as_ref().filter(|(_, until)| Instant::now() < *until).map(|(before, _)| before.clone())
    }

    pub(crate) fn is_known(&self) -> bool {
        !matches!(&*self.held.read(), Held::Unknown)
    }

    /// See [`ciqadamq_core::SecretRefresh`].
    pub(crate) async fn look_again(&self, known: &(dyn Fn() -> bool + Send + Sync)) -> LookedAgain {
        let pace = self.source.pace();
        let away = |until: Instant| until.saturating_duration_since(Instant::now()) > pace.at_least;
        if self.away_until.lock().is_some_and(away) {
            return LookedAgain::NoAnswer;
        }
        let Ok(_place) = self.waiting.try_acquire() else { return LookedAgain::Busy };
        let mut answered = self.answered.subscribe();
        let after = self.put.load(Ordering::SeqCst);
        self.wanted.notify_one();
        let wait = async {
            loop {
                // An error means that the task is gone: the node is stopping.
                if answered.changed().await.is_err() {
                    return LookedAgain::NoAnswer;
                }
                let number = *answered.borrow_and_update();
                if known() {
                    return LookedAgain::Asked;
                }
                if number > after {
                    return if *self.failing.lock() { LookedAgain::NoAnswer } else { LookedAgain::Asked };
                }
            }
        };
        let patience = pace.at_least + READ_MAX;
        tokio::time::timeout(patience, wait).await.unwrap_or(LookedAgain::NoAnswer)
    }

    /// Asks the source whenever somebody wants it, and every now and then. Ends only when it is aborted.
    pub(crate) async fn run(self: Arc<Self>) {
        let pace = self.source.pace();
        let mut last = Instant::now();
        // The value at start is fresh, but somebody may hold a fresher one already.
        let mut earliest = last;
        loop {
            // Spread: nodes that were started together need not ask together.
            let poll = pace.poll.mul_f64(rand::random_range(0.9..1.0));
            let wanted = tokio::select! {
                () = self.wanted.notified() => true,
                () = tokio::time::sleep_until(last + poll) => false,
            };
            let away = *self.away_until.lock();
            // A question of the clock's own holds off nobody who has a reason to ask, and serves those who wait for their turn.
            let not_before = if wanted { earliest.min(last + poll) } else { last };
            tokio::time::sleep_until(away.map_or(not_before, |until| until.max(not_before))).await;
            // Whoever knocked meanwhile is answered by this question too.
            tokio::select! {
                biased;
                () = self.wanted.notified() => {}
                () = std::future::ready(()) => {}
            }
            let number = self.put.fetch_add(1, Ordering::SeqCst) + 1;
            last = Instant::now();
            if wanted {
                earliest = last + pace.at_least;
            }
            let outcome = tokio::time::timeout(READ_MAX, self.source.read(self.name)).await;
            self.take(outcome.unwrap_or(Err(ReadError::Timeout(READ_MAX))));
            self.answered.send_replace(number);
        }
    }

    /// Puts what the source said into force, or keeps what is.
    fn take(&self, outcome: Result<Found, ReadError>) {
        let name = self.name;
        match outcome {
            Ok(Found::Value { secret, version }) => {
                self.metrics.read(name, "ok");
                self.recovered();
                let before = std::mem::replace(
                    &mut *self.held.write(),
                    Held::Value { secret: secret.clone(), from_source: true },
                );
                if matches!(&before, Held::Value { secret: old, .. } if old.expose() == secret.expose()) {
                    return;
                }
                self.remember(before);
                self.metrics.changed(name);
                self.tell(Some(&secret));
                info!(secret = %name, source = self.source.kind(), version = version.as_deref(), "secret changed");
            }
            Ok(Found::Absent) => {
                self.metrics.read(name, "absent");
                let mut held = self.held.write();
                match &*held {
                    Held::Value { from_source: true, .. } => {
                        drop(held);
                        let remedy = "store it there again, or restart without it";
                        self.failed("has no such secret any more", "absent", remedy);
                    }
                    Held::Unknown => {
                        *held = Held::Absent;
                        drop(held);
                        self.recovered();
                        self.tell(None);
                    }
                    Held::Value { .. } | Held::Absent => {
                        drop(held);
                        self.recovered();
                    }
                }
            }
            Err(error) => {
                self.metrics.read(name, error.kind());
                if let ReadError::RateLimited { retry_after } = &error {
                    *self.away_until.lock() = Some(Instant::now() + retry_after.unwrap_or(STAY_AWAY));
                }
                self.failed(&error.to_string(), error.kind(), error.remedy());
            }
        }
    }

    fn remember(&self, held: Held) {
        let before = match held {
            Held::Value { secret, .. } => Some(Before::Value(secret)),
            Held::Absent => Some(Before::Absent),
            Held::Unknown => None,
        };
        // A duration beyond the clock's range means no overlap rather than an endless one.
        *self.before.write() = before.zip(Instant::now().checked_add(self.overlap));
    }

    fn tell(&self, value: Option<&Secret>) {
        for observer in self.observers.read().iter() {
            observer(self.name, value);
        }
    }

    /// Said once in an episode.
    fn failed(&self, why: &str, kind: &str, remedy: &str) {
        let name = self.name;
        let before = std::mem::replace(&mut *self.failing.lock(), true);
        self.metrics.stale(name, true);
        if !before {
            let source = self.source.describe(name);
            warn!(secret = %name, %source, error = why, remedy, "secret cannot be read; the last good value stays in force");
        }
        (self.trouble)(name, Some(self.trouble_text(kind)));
    }

    fn recovered(&self) {
        let name = self.name;
        *self.away_until.lock() = None;
        self.metrics.stale(name, false);
        if std::mem::replace(&mut *self.failing.lock(), false) {
            info!(secret = %name, source = self.source.kind(), "secret can be read again");
        }
        (self.trouble)(name, None);
    }

    /// The start went without the source: the episode began there.
    pub(crate) fn failed_at_start(&self, error: &ReadError) {
        *self.failing.lock() = true;
        self.metrics.stale(self.name, true);
        (self.trouble)(self.name, Some(self.trouble_text(error.kind())));
    }

    /// Strangers read this: the kinds of source and failure, no address and no path.
    fn trouble_text(&self, kind: &str) -> String {
        format!("{}: {kind}", self.source.kind())
    }
}

#[cfg(test)]
mod tests;
