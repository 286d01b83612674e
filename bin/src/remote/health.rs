//! `ciqadamq health`: for whoever supervises a node and has no HTTP client at hand, such as a container.

use std::time::Duration;

use reqwest::Method;

use super::{Api, Done, Failure};

/// For the whole answer; who supervises asks again soon.
const TIMEOUT: Duration = Duration::from_secs(4);

/// Asks `/health` or `/ready`. What a node that is ready cannot do is told too.
pub async fn run(api: &Api, ready: bool) -> Result<Done, Failure> {
    let (path, yes) = if ready { ("/ready", "ready") } else { ("/health", "alive") };
    let answer = tokio::time::timeout(TIMEOUT, api.call(Method::GET, path, None)).await;
    let answer = answer.map_err(|_| Failure::Unreachable(format!("no answer within {TIMEOUT:?}")))??;
    let reasons = answer["reasons"].as_object().into_iter().flatten();
    let lines = reasons.map(|(name, reason)| format!("{name}: {}", reason.as_str().unwrap_or_default()));
    Ok(std::iter::once(yes.to_owned()).chain(lines).collect::<Vec<_>>().join("\n").into())
}
