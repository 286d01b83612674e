//! Counters of logins and withdrawals; and of messages, which all pass the guard.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

use crate::pool::HashPool;

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
    /// connections closed that did not finish their CONNECT in time, or were too many
    pub silent: IntCounterVec,
    /// pauses after packets of clients that send too fast
    pub throttled: IntCounter,
    /// connections closed because their client was too far behind
    pub laggards: IntCounter,
    /// sessions revived whose connection was lost before its CONNACK
    pub orphans: IntCounter,
    /// connections refused because their user had as many sessions as it may
    pub too_many_sessions: IntCounter,
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
            silent: IntCounterVec::new(
                Opts::new(
                    "ciqadamq_auth_silent_closed_total",
                    "Connections of the TCP listener closed because they had no online session for too long, or were too \
                     many",
                ),
                &["reason"],
            )?,
            throttled: IntCounter::new(
                "ciqadamq_auth_throttled_total",
                "Pauses made in reading from clients that publish faster than limits allow",
            )?,
            laggards: IntCounter::new(
                "ciqadamq_auth_laggards_closed_total",
                "Connections closed because their client took its messages too slowly",
            )?,
            orphans: IntCounter::new(
                "ciqadamq_auth_sessions_revived_total",
                "Sessions made offline that lost their connection before CONNACK",
            )?,
            too_many_sessions: IntCounter::new(
                "ciqadamq_auth_too_many_sessions_total",
                "Connections refused because their user had as many sessions as it may",
            )?,
        };
        registry.register(Box::new(metrics.logins.clone()))?;
        registry.register(Box::new(metrics.seconds.clone()))?;
        registry.register(Box::new(metrics.withdrawn.clone()))?;
        registry.register(Box::new(metrics.contested.clone()))?;
        registry.register(Box::new(metrics.silent.clone()))?;
        registry.register(Box::new(metrics.throttled.clone()))?;
        registry.register(Box::new(metrics.laggards.clone()))?;
        registry.register(Box::new(metrics.too_many_sessions.clone()))?;
        registry.register(Box::new(metrics.orphans.clone()))?;
        registry.register(Box::new(metrics.received.clone()))?;
        registry.register(Box::new(metrics.delivered.clone()))?;
        Ok(metrics)
    }
}

/// What the hashing pool has to do, read when somebody asks.
pub(crate) struct HashLoad {
    pool: Arc<HashPool>,
    gauge: IntGauge,
}

impl HashLoad {
    pub(crate) fn new(pool: Arc<HashPool>) -> prometheus::Result<Self> {
        let gauge = IntGauge::new("ciqadamq_auth_hashing", "Passwords that are being hashed or wait for it")?;
        Ok(Self { pool, gauge })
    }
}

impl Collector for HashLoad {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.gauge.set(self.pool.load() as i64);
        self.gauge.collect()
    }
}
