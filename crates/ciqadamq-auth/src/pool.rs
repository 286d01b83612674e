//! The threads that hash passwords.
//!
//! Argon2 is meant to be slow; on the network threads it would stop everybody's messages. Here it has threads of its
//! own, a bounded queue, and a deadline: a login that waited too long, or whose asker is gone, is thrown away unhashed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use ciqadamq_core::{HashError, PasswordHash, PasswordHashing, Secret};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::phc::{self, HashParams, PhcError, Scratch};

enum Job {
    Hash(Secret, oneshot::Sender<Result<PasswordHash, PhcError>>),
    Verify { stored: PasswordHash, password: Secret, answer: oneshot::Sender<Result<bool, PhcError>> },
}

impl Job {
    fn is_abandoned(&self) -> bool {
        match self {
            Self::Hash(_, answer) => answer.is_closed(),
            Self::Verify { answer, .. } => answer.is_closed(),
        }
    }
}

/// Logins first: a client is waiting on an open connection. One in four places goes to new passwords all the same, so
/// that a storm of logins does not stop provisioning.
#[derive(Default)]
struct Queue {
    logins: VecDeque<(Instant, Job)>,
    hashes: VecDeque<(Instant, Job)>,
    turn: u8,
    closed: bool,
}

impl Queue {
    fn len(&self) -> usize {
        self.logins.len() + self.hashes.len()
    }

    fn pop(&mut self) -> Option<(Instant, Job)> {
        self.turn = (self.turn + 1) % 4;
        if self.turn == 0 {
            self.hashes.pop_front().or_else(|| self.logins.pop_front())
        } else {
            self.logins.pop_front().or_else(|| self.hashes.pop_front())
        }
    }
}

struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    bound: usize,
    deadline: Duration,
    params: HashParams,
    busy: AtomicUsize,
}

/// A bounded pool of hashing threads. Dropping it ends them.
pub struct HashPool {
    shared: Arc<Shared>,
}

impl HashPool {
    /// Starts `threads` threads.
    pub fn start(threads: usize, bound: usize, deadline: Duration, params: HashParams) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            wake: Condvar::new(),
            bound,
            deadline,
            params,
            busy: AtomicUsize::new(0),
        });
        for n in 0..threads.max(1) {
            let shared = shared.clone();
            thread::Builder::new().name(format!("hash-{n}")).spawn(move || work(&shared))?;
        }
        Ok(Self { shared })
    }

    /// Whether `password` is the one behind `stored`.
    pub async fn verify(&self, stored: &PasswordHash, password: &Secret) -> Result<bool, HashError> {
        let (answer, result) = oneshot::channel();
        self.push(Job::Verify { stored: stored.clone(), password: password.clone(), answer })?;
        match result.await {
            Ok(Ok(is_right)) => Ok(is_right),
            Ok(Err(_)) => Err(HashError::Failed),
            Err(_) => Err(HashError::Busy),
        }
    }

    /// Passwords waiting and being hashed.
    pub fn load(&self) -> usize {
        self.shared.queue.lock().len() + self.shared.busy.load(Ordering::Relaxed)
    }

    /// Parameters of new hashes.
    pub fn params(&self) -> HashParams {
        self.shared.params
    }

    fn push(&self, job: Job) -> Result<(), HashError> {
        let mut queue = self.shared.queue.lock();
        let kind = if matches!(job, Job::Hash(..)) { &mut queue.hashes } else { &mut queue.logins };
        if kind.len() >= self.shared.bound {
            return Err(HashError::Busy);
        }
        kind.push_back((Instant::now(), job));
        self.shared.wake.notify_one();
        Ok(())
    }
}

impl Drop for HashPool {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.wake.notify_all();
    }
}

#[async_trait]
impl PasswordHashing for HashPool {
    async fn hash(&self, password: Secret) -> Result<PasswordHash, HashError> {
        let (answer, result) = oneshot::channel();
        self.push(Job::Hash(password, answer))?;
        // A dropped answer means the deadline passed in the queue.
        result.await.map_err(|_| HashError::Busy)?.map_err(|_| HashError::Failed)
    }

    fn check_phc(&self, phc: &str) -> Result<(), String> {
        phc::check(phc).map_err(|e| e.to_string())
    }
}

/// A thread without work for this long gives its memory back.
const IDLE: Duration = Duration::from_secs(1);

fn work(shared: &Shared) {
    let mut scratch = Scratch::default();
    while let Some((since, job)) = next(shared, &mut scratch) {
        if since.elapsed() <= shared.deadline && !job.is_abandoned() {
            match job {
                // The asker may have gone away meanwhile; then nobody wants the answer.
                Job::Hash(password, answer) => drop(answer.send(phc::hash(password.expose(), shared.params))),
                Job::Verify { stored, password, answer } => {
                    drop(answer.send(phc::verify(&stored.0, password.expose(), &mut scratch)));
                    scratch.trim(shared.params.m_cost as usize);
                }
            }
        }
        shared.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

fn next(shared: &Shared, scratch: &mut Scratch) -> Option<(Instant, Job)> {
    let mut queue = shared.queue.lock();
    loop {
        if queue.closed {
            return None;
        }
        if let Some(job) = queue.pop() {
            shared.busy.fetch_add(1, Ordering::Relaxed);
            return Some(job);
        }
        if scratch.is_empty() {
            shared.wake.wait(&mut queue);
        } else if shared.wake.wait_for(&mut queue, IDLE).timed_out() {
            MutexGuard::unlocked(&mut queue, || scratch.trim(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHEAP: HashParams = HashParams { m_cost: 64, t_cost: 1, p_cost: 1 };

    #[tokio::test]
    async fn what_was_hashed_verifies() {
        let pool = HashPool::start(2, 16, Duration::from_secs(5), CHEAP).unwrap();
        let hash = pool.hash(Secret::new("pw")).await.unwrap();
        assert_eq!(pool.verify(&hash, &Secret::new("pw")).await, Ok(true));
        assert_eq!(pool.verify(&hash, &Secret::new("other")).await, Ok(false));
    }

    #[tokio::test]
    async fn a_full_queue_refuses_at_once_and_an_old_job_is_thrown_away() {
        let slow = HashParams { m_cost: 65_536, t_cost: 4, p_cost: 1 };
        let pool = HashPool::start(1, 1, Duration::ZERO, slow).unwrap();
        let hash = phc::hash(b"x", CHEAP).unwrap();
        // With a deadline of zero whatever waits at all is too old, and the bound lets one wait.
        let password = Secret::new("x");
        let (first, second, third) =
            tokio::join!(pool.hash(Secret::new("a")), pool.verify(&hash, &password), pool.verify(&hash, &password));
        assert!([first.is_err(), second.is_err(), third.is_err()].iter().filter(|e| **e).count() >= 2);
    }
}
