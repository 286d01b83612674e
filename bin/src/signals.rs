//! SIGTERM, SIGINT and SIGHUP: the first asks for a drain, the second ends the process at once.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::sync::watch;
use tracing::{info, warn};

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

/// Starts listening for signals; must be called inside the runtime.
pub fn listen() -> anyhow::Result<Shutdown> {
    let (asked, shutdown) = watch::channel(false);
    let mut signals = Signals::new().context("signal handlers cannot be installed")?;
    tokio::spawn(async move {
        let name = signals.next().await;
        info!(signal = name, "shutdown requested");
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
        crate::restart::disarm();
        std::process::exit(INTERRUPTED);
    });
    Ok(Shutdown(shutdown))
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
