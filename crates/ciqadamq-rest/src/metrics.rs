//! What the API counts about itself. Labels are bounded: the route's template, a known method, a status.

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};
use salvo::http::{Method, StatusCode};

/// The metrics of one API. Registered once, whatever how often the listener is started.
#[derive(Debug)]
pub(crate) struct Metrics {
    requests: IntCounterVec,
    latency: HistogramVec,
    pub(crate) in_flight: IntGauge,
    pub(crate) connections: IntGauge,
    pub(crate) token_refusals: IntCounterVec,
}

impl Metrics {
    pub(crate) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self {
            requests: IntCounterVec::new(
                Opts::new("ciqadamq_rest_requests_total", "REST requests by route, method and status"),
                &["route", "method", "status"],
            )?,
            latency: HistogramVec::new(
                HistogramOpts::new(
                    "ciqadamq_rest_request_duration_seconds",
                    "time from a request's head to its answer's head",
                )
                .buckets(vec![0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]),
                &["route"],
            )?,
            in_flight: IntGauge::new("ciqadamq_rest_requests_in_flight", "REST requests being answered")?,
            connections: IntGauge::new("ciqadamq_rest_connections", "open connections to the REST API")?,
            token_refusals: IntCounterVec::new(
                Opts::new("ciqadamq_rest_token_refusals_total", "requests refused for their token, by reason"),
                &["reason"],
            )?,
        };
        registry.register(Box::new(metrics.requests.clone()))?;
        registry.register(Box::new(metrics.latency.clone()))?;
        registry.register(Box::new(metrics.in_flight.clone()))?;
        registry.register(Box::new(metrics.connections.clone()))?;
        registry.register(Box::new(metrics.token_refusals.clone()))?;
        Ok(metrics)
    }

    pub(crate) fn answered(&self, route: &str, method: &Method, status: StatusCode, secs: f64) {
        self.requests.with_label_values(&[route, method_label(method), status.as_str()]).inc();
        self.latency.with_label_values(&[route]).observe(secs);
    }
}

/// A client may invent methods without end.
fn method_label(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}

/// Everything in `registry` in the Prometheus text format.
pub(crate) fn render(registry: &Registry) -> prometheus::Result<String> {
    TextEncoder::new().encode_to_string(&registry.gather())
}
