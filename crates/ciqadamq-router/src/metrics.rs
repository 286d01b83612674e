//! The memory's numbers for Prometheus, read when somebody asks.

use std::sync::Arc;

use prometheus::IntCounter;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;

use crate::memo::Memo;

pub(crate) struct RouterMetrics {
    memo: Arc<Memo>,
    counters: [IntCounter; 3],
}

impl RouterMetrics {
    pub(crate) fn new(memo: Arc<Memo>) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str| IntCounter::new(format!("ciqadamq_router_{name}_total"), help);
        let counters = [
            counter("hits", "Messages whose Topic Name's filters were remembered")?,
            counter("misses", "Messages whose Topic Name's filters had to be searched for")?,
            counter("evictions", "Topic Names that were forgotten because others needed their place")?,
        ];
        Ok(Self { memo, counters })
    }
}

impl Collector for RouterMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.counters.iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let counts = self.memo.counts();
        for (counter, value) in self.counters.iter().zip([counts.hits, counts.misses, counts.evictions]) {
            counter.inc_by(value.saturating_sub(counter.get()));
        }
        self.counters.iter().flat_map(Collector::collect).collect()
    }
}
