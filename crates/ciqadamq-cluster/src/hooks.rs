//! What other nodes send through the engine, handled before the cluster plugin's own handler sees it.
//!
//! That one goes past everything that stands in front of its table of sessions: ownership, and what keeps messages while a
//! session is taken over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use async_trait::async_trait;
use rmqtt::grpc::{Message, MessageReply};
use rmqtt::hook::{Handler, HookResult, Parameter, Priority, Register, ReturnType, Type};
use rmqtt::session::OfflineInfo;
use rmqtt::types::{Id, OfflineSession};
use tracing::debug;

use crate::cluster::Cluster;
use crate::failover::{PATIENCE, PLUGIN_MESSAGES};
use crate::takeover::Verdict;

/// Before the cluster plugin (0).
const PRIORITY: Priority = 200;

/// Between two looks whether a session is there.
const SETTING_RETRY: Duration = Duration::from_millis(5);

pub(crate) async fn add(register: &dyn Register, cluster: &Arc<Cluster>) {
    register.add_priority(Type::GrpcMessageReceived, PRIORITY, Box::new(Hooks(cluster.clone()))).await;
}

struct Hooks(Arc<Cluster>);

#[async_trait]
impl Handler for Hooks {
    async fn hook(&self, param: &Parameter, acc: Option<HookResult>) -> ReturnType {
        let Parameter::GrpcMessageReceived(PLUGIN_MESSAGES, message) = param else { return (true, acc) };
        match message {
            Message::ForwardsTo(from, publish, relations, msg_id) => {
                let relations = match publish.target_clientid {
                    Some(_) => relations.clone(),
                    None => self.0.without_stale(&publish.topic, relations.clone()).await.0,
                };
                self.0.hand_out(from.clone(), publish, relations, *msg_id).await;
                (false, acc)
            }
            Message::Kick(by, _, _, false) if self.0.is_unsure_of(&by.client_id) => {
                // Asked again in a moment it is there. That there is none would be the end of it.
                (false, Some(HookResult::GrpcMessageReply(Err(anyhow!("this node is not ready")))))
            }
            Message::Kick(by, clean_start, _, false) => {
                let verdict = give_up(&self.0, by, *clean_start).await;
                (false, Some(HookResult::GrpcMessageReply(Ok(MessageReply::Kick(verdict.encode())))))
            }
            // By an operator, and with all that belongs to the session.
            Message::Kick(by, clean_start, clear_subscriptions, true) => {
                // As this node's own: the plugin would pass it on to where the session is, which is here.
                let id = Id::from(self.0.config.node, by.client_id.clone());
                let mut entry = { self.0.scx.extends.shared().await.entry(id) };
                let kicked = entry.kick(*clean_start, *clear_subscriptions, true).await;
                (false, Some(HookResult::GrpcMessageReply(kicked.map(MessageReply::Kick))))
            }
            _ => (true, acc),
        }
    }
}

/// Gives the session of a client id up for a login of another node, if it may have it. Whoever asks twice gets the same
/// answer: the first one may have been lost.
async fn give_up(cluster: &Arc<Cluster>, by: &Id, clean_start: bool) -> Verdict {
    let answer = cluster.takeovers.answer_to(by);
    let (cluster, by) = (cluster.clone(), by.clone());
    // Not to be cut short when the one who asked goes away: the session would be between two nodes.
    let task = tokio::spawn(async move {
        let verdict = answer.get_or_init(|| async { give_up_once(&cluster, &by, clean_start).await }).await;
        verdict.clone()
    });
    task.await.unwrap_or_else(|error| Verdict::Refused(format!("the takeover failed: {error}")))
}

async fn give_up_once(cluster: &Cluster, by: &Id, clean_start: bool) -> Verdict {
    let mut entry = { cluster.scx.extends.shared().await.entry(by.clone()) };
    // A login of this node has its place in the cluster a moment before it has its session.
    let since = Instant::now();
    while cluster.takeovers.is_setting(&by.client_id) && since.elapsed() < PATIENCE {
        tokio::time::sleep(SETTING_RETRY).await;
    }
    if let Some(session) = entry.session()
        && let Ok(engine) = cluster.engine()
        && let Some(status) = engine.session_status(&by.client_id).await
        && status.id == session.id
        && status.id.create_time > by.create_time
    {
        // The lock of the one who asks has run out, and somebody has come since.
        return Verdict::Refused("a later login has the client id".into());
    }
    if entry.session().is_none() {
        if let Some(node) = cluster.takeovers.displaced(&by.client_id) {
            return Verdict::Ask(node);
        }
        let Some(give) = cluster.strays.get() else { return Verdict::Nothing };
        return match give(by.clone(), clean_start).await {
            Ok(Some(info)) => handed_over(cluster, by, info),
            Ok(None) => Verdict::Nothing,
            Err(error) => Verdict::Refused(error.to_string()),
        };
    }
    // The routes stay until the new session's take their place: they lead here, and from here on.
    match entry.kick(clean_start, clean_start, false).await {
        Ok(OfflineSession::Exist(Some(info))) => handed_over(cluster, by, info),
        Ok(OfflineSession::Exist(None)) => Verdict::Ended,
        Ok(OfflineSession::NotExist) => Verdict::Nothing,
        Err(error) => Verdict::Refused(error.to_string()),
    }
}

fn handed_over(cluster: &Cluster, by: &Id, mut info: OfflineInfo) -> Verdict {
    make_portable(&mut info);
    debug!(client_id = &*by.client_id, node = by.node_id, "session handed over to another node");
    cluster.metrics.handed_over.inc();
    Verdict::Session(Box::new(info))
}

/// Takes out of a session's messages what only this node understands: where they are on its disk. The Packet Identifiers under
/// which they were sent go with them; the next node gives them to no other.
fn make_portable(info: &mut OfflineInfo) {
    let sent = info.inflight_messages.iter_mut().map(|message| &mut message.publish);
    for publish in sent.chain(info.offline_messages.iter_mut().map(|(_, publish)| publish)) {
        publish.delay_interval = None;
    }
}
