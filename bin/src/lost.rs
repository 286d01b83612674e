//! When only a new process helps, as the cluster finds out.

use std::fmt;
use std::sync::Arc;

use ciqadamq_cluster::Cluster;

/// Only a new process helps, and why.
#[derive(Debug)]
pub struct Lost(pub String);

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Lost {}

/// Resolves when only a new process helps; never on a node alone.
pub async fn lost(cluster: Option<&Arc<Cluster>>) -> Lost {
    match cluster {
        Some(cluster) => Lost(cluster.restart_wanted().await),
        None => std::future::pending().await,
    }
}

/// Waits, unless it turns out meanwhile that only a new process helps.
pub async fn unless<T>(lost: impl Future<Output = Lost>, what: impl Future<Output = T>) -> Result<T, Lost> {
    tokio::select! {
        done = what => Ok(done),
        lost = lost => Err(lost),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_waited_for_is_given_up_when_only_a_new_process_helps() {
        let never = || std::future::pending::<Lost>();
        assert!(matches!(unless(never(), async { 5 }).await, Ok(5)));
        let given_up = unless(async { Lost("no quorum".into()) }, std::future::pending::<()>()).await;
        assert!(matches!(given_up, Err(Lost(why)) if why == "no quorum"));
    }
}
