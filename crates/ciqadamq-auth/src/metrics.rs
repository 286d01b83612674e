//! Counters of logins and withdrawals; and of messages, which all pass the guard.

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, Opts, Registry};

/// Registered once a process.
pub struct AuthMetrics {
    /// logins by result
    pub logins: IntCounterVec,
    /// seconds from CONNECT to verdict
    pub seconds: Histogram,
    /// sessions ended because their user lost the right to act
    pub withdrawn: IntCounter,
    /// connections refused at the second line: the client id was taken by another user meanwhile
    pub contested: IntCounter,
    /// messages that passed the access rule
    pub received: IntCounter,
    /// copies of them handed to subscribers' sessions
    pub delivered: IntCounter,
    /// connections closed that did not finish their CONNECT in time
    pub silent: IntCounter,
}

impl AuthMetrics {
    /// Registers the metrics.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self {
            logins: IntCounterVec::new(
                Opts::new("ciqadamq_auth_logins_total", "Logins by result: ok or the reason of the refusal"),
                &["result"],
            )?,
            seconds: Histogram::with_opts(
                HistogramOpts::new("ciqadamq_auth_login_seconds", "Time from CONNECT to the verdict on it")
                    .buckets(vec![0.000_05, 0.000_2, 0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0]),
            )?,
            withdrawn: IntCounter::new(
                "ciqadamq_auth_sessions_withdrawn_total",
                "Sessions ended because their user was deleted, disabled or changed",
            )?,
            contested: IntCounter::new(
                "ciqadamq_auth_client_id_contested_total",
                "Connections refused because another user took the client id during the login",
            )?,
            received: IntCounter::new(
                "ciqadamq_messages_received_total",
                "Messages published by clients, Wills and the API that passed the access rule",
            )?,
            delivered: IntCounter::new(
                "ciqadamq_messages_delivered_total",
                "Messages handed to subscribers' sessions, one for each",
            )?,
            silent: IntCounter::new(
                "ciqadamq_auth_silent_closed_total",
                "Connections of the TCP listener closed because they had no online session for too long",
            )?,
        };
        registry.register(Box::new(metrics.logins.clone()))?;
        registry.register(Box::new(metrics.seconds.clone()))?;
        registry.register(Box::new(metrics.withdrawn.clone()))?;
        registry.register(Box::new(metrics.contested.clone()))?;
        registry.register(Box::new(metrics.silent.clone()))?;
        registry.register(Box::new(metrics.received.clone()))?;
        registry.register(Box::new(metrics.delivered.clone()))?;
        Ok(metrics)
    }
}
