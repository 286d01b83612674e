//! Sessions of all nodes.

use std::sync::Arc;

use async_trait::async_trait;
use ciqadamq_core::{NodeId, SessionControl, SessionInfo, SessionQuery};
use tracing::warn;

use crate::cluster::Cluster;
use crate::wire::{Answer, Ask};

/// Looks at and ends the sessions of all nodes that live.
pub struct AllSessions(pub Arc<Cluster>);

impl AllSessions {
    async fn all(&self, ask: &Ask) -> Vec<(NodeId, Answer)> {
        let views = self.0.liveness.views();
        let others = views.iter().filter(|(_, view)| view.alive().is_some()).map(|(node, _)| *node);
        let asked = others.map(|node| async move { (node, self.0.ask(node, ask.clone()).await) });
        let answers = futures::future::join_all(asked).await.into_iter();
        let answered = answers.filter_map(|(node, answer)| match answer {
            Ok(answer) => Some((node, answer)),
            Err(error) => {
                warn!(node, %error, "a node's sessions could not be reached");
                None
            }
        });
        answered.collect()
    }
}

#[async_trait]
impl SessionControl for AllSessions {
    async fn list(&self, query: &SessionQuery) -> Vec<SessionInfo> {
        let mut sessions = self.0.deps.sessions.list(query).await;
        for (_, answer) in self.all(&Ask::Sessions(query.clone())).await {
            if let Answer::Sessions(theirs) = answer {
                sessions.extend(theirs);
            }
        }
        sessions.sort_by(|a, b| a.clientid.cmp(&b.clientid).then(a.node.cmp(&b.node)));
        sessions.truncate(query.limit);
        sessions
    }

    async fn end(&self, client_id: &str) -> bool {
        // On all of them: a session that is just moving is found on one side or the other.
        let here = self.0.deps.sessions.end(client_id).await;
        let there = self.all(&Ask::End { client_id: client_id.to_owned() }).await;
        here || there.iter().any(|(_, answer)| matches!(answer, Answer::Ended(true)))
    }
}
