//! Sessions on their way to another node, and from there. See [`ciqadamq_core::Moves`].

use ciqadamq_core::{MoveTag, NodeId};

use crate::command::Command;
use crate::core::now;
use crate::{Leaving, SessionNo, SessionRecord, Store};

impl Store {
    /// A session was handed to another node. It stays until that one has it, and is not to be used meanwhile.
    pub fn leave(&self, no: SessionNo, to: NodeId, tag: MoveTag) {
        self.change(no, |record| {
            record.leaving = Some(Leaving { to, tag });
            record.disconnected_at.get_or_insert_with(now);
            // Whoever takes a session over does not die.
            record.will_pending = false;
        });
    }

    /// A session's facts.
    pub fn record(&self, no: SessionNo) -> Option<SessionRecord> {
        self.inner.core.lock().state.sessions.get(&no).map(|session| session.record.clone())
    }

    /// A session of another node is here, with all it is owed.
    pub fn take(&self, no: SessionNo, from: NodeId, tag: MoveTag) {
        self.change(no, |record| record.arriving = false);
        let mut core = self.inner.core.lock();
        core.push(Command::Taken { node: from, tag });
        self.notify(core);
    }

    /// Whether a session of another node was taken. Of each node the last thousand are known.
    pub fn has_taken(&self, from: NodeId, tag: MoveTag) -> bool {
        self.inner.core.lock().state.heard.get(&from).is_some_and(|heard| heard.taken.contains(&tag))
    }
}
