//! Sessions whose connection was lost before it had its CONNACK.
//!
//! The engine puts a session into its table, writes CONNACK, and then begins the session's task. If the write fails, the
//! task never begins: the session stays in the table for ever, takes no message and never expires. A look at the table now
//! and then finds such sessions, and gives them the task of one that is offline: its Will fires, it keeps its subscriptions, and
//! ends when it has expired, at once if it was to end with its connection.
//!
//! What waited in its predecessor's queue is lost with the channel that the engine dropped, but for what the session store has: it
//! gives that back when the client comes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus::IntCounter;
use rmqtt::context::ServerContext;
use rmqtt::session::{Session, SessionState};
use rmqtt::types::{ConnectInfo, Id, Reason};
use tracing::{debug, warn};

use crate::sessions::Sessions;

/// Between two looks. A session that was without a task at two of them has none.
const INTERVAL: Duration = Duration::from_secs(5);

/// Looks and revives, for ever.
pub(crate) async fn watch(scx: ServerContext, sessions: Arc<Sessions>, revived: IntCounter) {
    let mut suspects: HashMap<Id, Instant> = HashMap::new();
    loop {
        tokio::time::sleep(INTERVAL).await;
        let mut still = HashMap::new();
        for id in sessions.ids().await {
            let tx = { scx.extends.shared().await.entry(id.clone()).tx() };
            if !tx.is_some_and(|tx| tx.is_closed()) {
                continue;
            }
            match suspects.get(&id) {
                Some(since) if since.elapsed() >= INTERVAL / 2 => match revive(&scx, &id).await {
                    Ok(true) => {
                        revived.inc();
                        debug!(client_id = &*id.client_id, "a session without a task is offline now");
                    }
                    Ok(false) => {}
                    Err(error) => {
                        warn!(client_id = &*id.client_id, %error, "a session without a task cannot be revived");
                        still.insert(id, Instant::now());
                    }
                },
                _ => drop(still.insert(id, Instant::now())),
            }
        }
        suspects = still;
    }
}

/// Gives a session the task of an offline one, unless it is gone or has a task by now.
async fn revive(scx: &ServerContext, id: &Id) -> rmqtt::Result<bool> {
    let entry = { scx.extends.shared().await.entry(id.clone()) };
    let mut locked = entry.try_lock().await?;
    let (Some(session), Some(tx)) = (locked.session(), locked.tx()) else { return Ok(false) };
    if session.id != *id || !tx.is_closed() {
        return Ok(false);
    }
    session.disconnected_set(None, Some(Reason::ConnectReadWriteError)).await?;
    let expiry = expiry(&session).await;
    let tx = SessionState::offline_restart(session.clone(), expiry).await?;
    locked.set(session, tx).await?;
    Ok(true)
}

/// How long a session outlives its connection.
async fn expiry(session: &Session) -> Duration {
    match session.connect_info().await.as_deref() {
        Ok(ConnectInfo::V3(_, connect)) if connect.clean_session => Duration::ZERO,
        _ => session.fitter.session_expiry_interval(None),
    }
}
