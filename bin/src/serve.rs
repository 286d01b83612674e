//! The life of the broker: started, run, drained.

use tracing::info;

use crate::config::Config;
use crate::lost::{Lost, lost};
use crate::{signals, start};

/// Why the broker ended.
#[derive(Debug)]
pub enum End {
    /// A signal asked for it.
    Asked,
    /// Only a new process helps.
    Restart(String),
}

/// Runs the broker until a signal asks for a drain, or the cluster for a new process.
pub async fn serve(config: Config) -> anyhow::Result<End> {
    let mut shutdown = signals::listen()?;
    // A node may wait for its cluster for a long time.
    let running = tokio::select! {
        running = start::start(&config) => running,
        () = shutdown.requested() => return Ok(End::Asked),
    };
    let running = match running {
        Ok(running) => running,
        Err(error) => return error.downcast().map(|Lost(why)| End::Restart(why)),
    };
    info!("ready");
    let end = tokio::select! {
        () = shutdown.requested() => End::Asked,
        Lost(why) = lost(running.cluster.as_ref()) => End::Restart(why),
    };
    running.drain().await?;
    Ok(end)
}
