//! What the gate counts, and the names it gives to the ways a connection can fail.

use std::fmt;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use tracing::warn;

/// Why a connection was closed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Total,
    PerIp,
    /// Unfinished CONNECTs occupy all the memory they may.
    Memory,
}

impl Refusal {
    const ALL: [Self; 3] = [Self::Total, Self::PerIp, Self::Memory];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Total => "max_pending",
            Self::PerIp => "max_pending_per_ip",
            Self::Memory => "max_pending_bytes",
        }
    }
}

/// Why an accepted connection never got to the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// `connect_timeout` is over.
    Timeout,
    /// The client went before its CONNECT was complete.
    Closed,
    /// No PROXY header where one is required, or a malformed one.
    ProxyHeader,
    /// The TLS handshake failed.
    Tls,
    /// The HTTP request was not a WebSocket upgrade; it was answered.
    NotUpgrade,
    /// Only subprotocols were offered that are not MQTT; it was answered.
    Subprotocol,
    /// A frame that WebSocket forbids, or a text frame.
    WebSocket,
    /// The first packet is not a CONNECT.
    NotConnect,
    /// The CONNECT says it is larger than `max_packet_size`.
    TooLarge,
    /// The engine does not take the connection.
    Engine,
    /// The gate is being shut down.
    Shutdown,
    /// A bound on pending connections that showed only after accept.
    Refused(Refusal),
}

impl Failure {
    const ALL: [Self; 11] = [
        Self::Timeout,
        Self::Closed,
        Self::ProxyHeader,
        Self::Tls,
        Self::NotUpgrade,
        Self::Subprotocol,
        Self::WebSocket,
        Self::NotConnect,
        Self::TooLarge,
        Self::Engine,
        Self::Shutdown,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Closed => "closed",
            Self::ProxyHeader => "proxy_header",
            Self::Tls => "tls",
            Self::NotUpgrade => "not_upgrade",
            Self::Subprotocol => "subprotocol",
            Self::WebSocket => "websocket",
            Self::NotConnect => "not_connect",
            Self::TooLarge => "too_large",
            Self::Engine => "engine",
            Self::Shutdown => "shutdown",
            Self::Refused(refusal) => refusal.as_str(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The gate's metrics, one set for all listeners.
#[derive(Debug)]
pub(crate) struct Metrics {
    connections: IntGaugeVec,
    accepted: IntCounterVec,
    refused: IntCounterVec,
    failures: IntCounterVec,
    refusal_lines: [Brake; Refusal::ALL.len()],
    engine_lines: Brake,
}

impl Metrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Self {
            connections: IntGaugeVec::new(
                Opts::new("ciqadamq_gate_connections", "Connections open at the gate, those before CONNECT included"),
                &["listener"],
            )?,
            accepted: IntCounterVec::new(
                Opts::new("ciqadamq_gate_accepted_total", "Connections the gate took from the kernel"),
                &["listener"],
            )?,
            refused: IntCounterVec::new(
                Opts::new("ciqadamq_gate_refused_total", "Connections closed at once because of a bound"),
                &["listener", "reason"],
            )?,
            failures: IntCounterVec::new(
                Opts::new(
                    "ciqadamq_gate_handshake_failures_total",
                    "Connections that ended before the engine had them",
                ),
                &["listener", "reason"],
            )?,
            refusal_lines: Default::default(),
            engine_lines: Brake::default(),
        };
        registry.register(Box::new(metrics.connections.clone()))?;
        registry.register(Box::new(metrics.accepted.clone()))?;
        registry.register(Box::new(metrics.refused.clone()))?;
        registry.register(Box::new(metrics.failures.clone()))?;
        Ok(metrics)
    }

    /// The series of one listener. They exist with value 0 from then on, so that a rate can be taken from the first event.
    pub(crate) fn listener(&self, name: &'static str) -> ListenerMetrics {
        for reason in Refusal::ALL {
            self.refused.with_label_values(&[name, reason.as_str()]);
        }
        for reason in Failure::ALL {
            self.failures.with_label_values(&[name, reason.as_str()]);
        }
        ListenerMetrics {
            connections: self.connections.with_label_values(&[name]),
            accepted: self.accepted.with_label_values(&[name]),
        }
    }

    /// Counts a refusal, and says so at most once a second for each reason.
    pub(crate) fn refused(&self, listener: &'static str, reason: Refusal) {
        self.refused.with_label_values(&[listener, reason.as_str()]).inc();
        if let Some(count) = self.refusal_lines[reason as usize].count() {
            warn!(listener, reason = reason.as_str(), count, "connections refused");
        }
    }

    /// Counts a connection that did not get to the engine.
    pub(crate) fn failed(&self, listener: &'static str, reason: Failure) {
        if let Failure::Refused(refusal) = reason {
            return self.refused(listener, refusal);
        }
        self.failures.with_label_values(&[listener, reason.as_str()]).inc();
        // The clients' faults are theirs (and in the debug log); an engine that does not answer is ours.
        if reason == Failure::Engine
            && let Some(count) = self.engine_lines.count()
        {
            warn!(listener, count, "the engine does not take connections");
        }
    }
}

/// What is counted on every connection, resolved once for each listener.
#[derive(Debug, Clone)]
pub(crate) struct ListenerMetrics {
    pub(crate) connections: IntGauge,
    pub(crate) accepted: IntCounter,
}

/// Lets one log line a second through, which says how many events it stands for.
#[derive(Debug, Default)]
struct Brake {
    state: Mutex<(Option<Instant>, u64)>,
}

impl Brake {
    fn count(&self) -> Option<u64> {
        let mut state = self.state.lock();
        state.1 += 1;
        if state.0.is_some_and(|last| last.elapsed() < Duration::from_secs(1)) {
            return None;
        }
        state.0 = Some(Instant::now());
        Some(std::mem::take(&mut state.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brake_lets_one_line_through_and_counts_the_rest() {
        let brake = Brake::default();
        assert_eq!(brake.count(), Some(1));
        for _ in 0..9 {
            assert_eq!(brake.count(), None);
        }
        brake.state.lock().0 = None;
        assert_eq!(brake.count(), Some(10));
    }
}
