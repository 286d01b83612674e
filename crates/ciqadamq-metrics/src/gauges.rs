//! Gauges that are read from the engine when somebody asks.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGauge, Opts};
use rmqtt::context::ServerContext;

type Read = fn(&ServerContext) -> i64;

const GAUGES: [(&str, &str, Read); 6] = [
    ("ciqadamq_connections", "Network connections with a session", |scx| scx.connections.count() as i64),
    ("ciqadamq_handshakes", "Connections between CONNECT and CONNACK", |scx| scx.handshakings.count() as i64),
    ("ciqadamq_sessions", "Sessions, online and offline", |scx| scx.sessions.count() as i64),
    ("ciqadamq_subscriptions", "Subscriptions of all sessions", |scx| scx.stats.subscriptions.count() as i64),
    ("ciqadamq_messages_queued", "Messages waiting for subscribers", |scx| scx.stats.message_queues.count() as i64),
    ("ciqadamq_messages_inflight", "Messages sent and not acknowledged", |scx| scx.stats.out_inflights.count() as i64),
];

pub(crate) struct EngineGauges {
    scx: ServerContext,
    gauges: Vec<(IntGauge, Read)>,
}

impl EngineGauges {
    pub(crate) fn new(scx: ServerContext) -> prometheus::Result<Self> {
        let gauge = |(name, help, read): (&str, &str, Read)| Ok((IntGauge::with_opts(Opts::new(name, help))?, read));
        let gauges = GAUGES.into_iter().map(gauge).collect::<prometheus::Result<_>>()?;
        Ok(Self { scx, gauges })
    }
}

impl Collector for EngineGauges {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges.iter().flat_map(|(gauge, _)| gauge.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.gauges
            .iter()
            .flat_map(|(gauge, read)| {
                gauge.set(read(&self.scx));
                gauge.collect()
            })
            .collect()
    }
}
