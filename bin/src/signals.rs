//! SIGTERM, SIGINT and SIGHUP: the first asks for a drain, the second ends the process at once.
//!
//! They are heard on a thread of their own, until the process ends or is replaced: also while everything else is busy, and when
//! the broker's runtime is shut down already.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::restart;

/// Exit code after a second signal: 128 + SIGINT, as a shell would report it.
const INTERRUPTED: i32 = 130;

/// Signals within this time are one request.
const ONE_REQUEST: Duration = Duration::from_millis(500);

/// Resolves once a shutdown was asked for. Cheap to clone; every part that stops by itself holds one.
#[derive(Debug, Clone)]
pub struct Shutdown(watch::Receiver<bool>);

impl Shutdown {
    /// Waits for the first signal.
    pub async fn requested(&mut self) {
        // The sender lives as long as the process; should it be gone, shutting down is the safe reading.
        if self.0.wait_for(|asked| *asked).await.is_err() {
            warn!("signal handler ended");
        }
    }
}

/// Starts listening for signals. From the first one on the process is not replaced any more.
pub fn listen() -> anyhow::Result<Shutdown> {
    let (asked, shutdown) = watch::channel(false);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("the thread for signals cannot be started")?;
    let signals = {
        let _inside = runtime.enter();
        Signals::new().context("signal handlers cannot be installed")?
    };
    let thread = std::thread::Builder::new().name("signals".into());
    let hearing = hear(signals, asked);
    thread.spawn(move || runtime.block_on(hearing)).context("the thread for signals cannot be started")?;
    Ok(Shutdown(shutdown))
}

async fn hear(mut signals: Signals, asked: watch::Sender<bool>) {
    let name = signals.next().await;
    info!(signal = name, "shutdown requested");
    restart::off();
    asked.send_replace(true);
    // Some senders signal the process and its group: one request, heard twice.
    let since = Instant::now();
    let name = loop {
        let name = signals.next().await;
        if since.elapsed() > ONE_REQUEST {
            break name;
        }
    };
    warn!(signal = name, "second signal, leaving at once");
    std::process::exit(INTERRUPTED);
}

#[cfg(unix)]
struct Signals {
    term: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.hangup.recv() => "SIGHUP",
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> &'static str {
        match tokio::signal::ctrl_c().await {
            Ok(()) => "Ctrl-C",
            Err(error) => {
                warn!(%error, "Ctrl-C cannot be heard");
                std::future::pending().await
            }
        }
    }
}
