//! Whether the node is alive and ready, and what it counts: `/health`, `/ready`, `/metrics`.

use std::collections::BTreeMap;

use ciqadamq_core::Condition;
use salvo::Depot;
use salvo::http::StatusCode;
use salvo::oapi::{ToSchema, endpoint};
use serde::Serialize;

use crate::app::Call;
use crate::error::ApiError;
use crate::metrics;
use crate::reply::{Answer, Reply};

/// The node is alive.
#[derive(Debug, Serialize, ToSchema)]
#[salvo(schema(name = Alive))]
pub(crate) struct Alive {
    /// `ok`
    status: &'static str,
}

/// Whether clients may come.
#[derive(Debug, Serialize, ToSchema)]
#[salvo(schema(name = Readiness))]
pub(crate) struct Readiness {
    /// whether clients may come
    ready: bool,
    /// why not, in one line; only when not ready
    #[serde(skip_serializing_if = "Option::is_none")]
    #[salvo(schema(value_type = String, required = false))]
    error: Option<String>,
    /// what is not met or does not work as it should, and why
    reasons: BTreeMap<String, String>,
}

/// Is the node alive
///
/// Needs no token.
#[endpoint(
    operation_id = "show_health", tags("node"),
    responses((status_code = 200, description = "alive", body = Alive))
)]
pub(crate) async fn show_health() -> Answer {
    Reply::json(&Alive { status: "ok" })
}

/// Is the node ready to take clients
///
/// Needs no token. 503, with the reasons, while it is not.
#[endpoint(
    operation_id = "show_ready", tags("node"),
    responses(
        (status_code = 200, description = "ready", body = Readiness),
        (status_code = 503, description = "not ready, and why", body = Readiness),
    )
)]
pub(crate) async fn show_ready(depot: &mut Depot) -> Answer {
    let call = Call::of(depot)?;
    let health = &call.app.deps.health;
    let is_ready = health.is_ready();
    let reasons: BTreeMap<String, String> = health
        .conditions()
        .into_iter()
        .filter_map(|(name, condition)| match condition {
            Condition::Met => None,
            Condition::Degraded(reason) | Condition::Unmet(reason) => Some((name.to_owned(), reason)),
        })
        .collect();
    if is_ready {
        return Reply::json(&Readiness { ready: true, error: None, reasons });
    }
    let listed = reasons.iter().map(|(name, reason)| format!("{name}: {reason}")).collect::<Vec<_>>().join("; ");
    let error = Some(format!("not ready: {listed}"));
    Ok(Reply::json(&Readiness { ready: false, error, reasons })?.with_status(StatusCode::SERVICE_UNAVAILABLE))
}

/// Metrics in the Prometheus text format
#[endpoint(
    operation_id = "show_metrics", tags("node"),
    responses((status_code = 200, description = "metrics", content_type = "text/plain", body = String))
)]
pub(crate) async fn show_metrics(depot: &mut Depot) -> Answer {
    let text = metrics::render(&Call::of(depot)?.app.deps.metrics)
        .map_err(|_| ApiError::internal("the metrics could not be rendered"))?;
    Ok(Reply::bytes("text/plain; version=0.0.4; charset=utf-8", text))
}
