//! Requests that never stop while something happens to the vault.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::http::request;

/// Threads that send.
const THREADS: usize = 8;

#[derive(Debug)]
struct Shared {
    nodes: Vec<SocketAddr>,
    token: Mutex<String>,
    sent: AtomicUsize,
    wrong: Mutex<Vec<String>>,
    expected: fn(u16) -> bool,
    stop: AtomicBool,
}

/// A constant rate of requests, spread over nodes, each with a token that is looked up when it is sent.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    started: Instant,
}

impl Load {
    /// Begins: so many a second over all nodes. An answer that is not `expected` is kept for [`Load::finish`].
    pub fn start(nodes: &[SocketAddr], token: &str, per_second: u32, expected: fn(u16) -> bool) -> Self {
        let shared = Arc::new(Shared {
            nodes: nodes.to_vec(),
            token: Mutex::new(token.to_owned()),
            sent: AtomicUsize::new(0),
            wrong: Mutex::default(),
            expected,
            stop: AtomicBool::new(false),
        });
        let pause = Duration::from_secs(1) * THREADS as u32 / per_second;
        let threads = (0..THREADS)
            .map(|_| (shared.clone(), pause))
            .map(|(shared, pause)| thread::spawn(move || send(&shared, pause)));
        Self { threads: threads.collect(), shared, started: Instant::now() }
    }

    /// From now on requests carry this token.
    pub fn set_token(&self, token: &str) {
        *self.shared.token.lock().unwrap() = token.to_owned();
    }

    /// The token that requests carry now.
    pub fn token(&self) -> String {
        self.shared.token.lock().unwrap().clone()
    }

    /// Requests sent so far.
    pub fn sent(&self) -> usize {
        self.shared.sent.load(Ordering::SeqCst)
    }

    /// Ends; how many requests there were, and how many a second.
    ///
    /// # Panics
    /// If one was not answered as expected.
    #[track_caller]
    pub fn finish(mut self) -> (usize, f64) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
        let wrong = self.shared.wrong.lock().unwrap();
        let sent = self.sent();
        assert!(
            wrong.is_empty(),
            "{} of {sent} requests went wrong, such as {:?}",
            wrong.len(),
            &wrong[..wrong.len().min(5)]
        );
        (sent, sent as f64 / self.started.elapsed().as_secs_f64())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
    }
}

fn send(shared: &Shared, pause: Duration) {
    let mut next = Instant::now();
    while !shared.stop.load(Ordering::SeqCst) {
        let number = shared.sent.fetch_add(1, Ordering::SeqCst);
        let node = shared.nodes[number % shared.nodes.len()];
        let bearer = format!("Bearer {}", shared.token.lock().unwrap());
        let wrong = match request(node, "GET", "/api/v1/users?limit=1", &[("Authorization", &bearer)], None) {
            Ok(response) if (shared.expected)(response.status) => None,
            Ok(response) => Some(format!("{} {}", response.status, response.text())),
            Err(error) => Some(error.to_string()),
        };
        shared.wrong.lock().unwrap().extend(wrong);
        next += pause;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}
