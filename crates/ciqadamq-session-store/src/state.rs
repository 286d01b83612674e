//! What the commands have made: the state of all sessions, in memory. Pure: it knows neither files nor clocks.
//!
//! Bytes of messages are not here but where they were written; [`Place`] says where.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use crate::command::Command;
use crate::records::{
    HEARD_MAX, Heard, MessageId, Millis, Owed, PACKET_IDS, Seq, SessionNo, SessionState, Stage, packet_id, remember,
    size_of_subscription,
};

/// Where the bytes of a message are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// in the log, from this offset on
    Log(u64),
    /// in sled, under its own key
    Base,
}

/// A message or a Retained Message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stored {
    pub(crate) place: Place,
    pub(crate) len: u32,
    /// how many sessions are owed it
    pub(crate) owed: u32,
    pub(crate) expires_at: Millis,
    /// sled knows a message's key. Of a topic that is not known: one that it had may have been cleared, and set again, since.
    pub(crate) in_base: bool,
}

/// A key of sled.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Key {
    Session(SessionNo),
    Message(MessageId),
    Retained(String),
    /// what a node has sent
    Heard(u64),
}

/// Whether a session owes a message after it was told to.
enum Owes {
    New,
    Already,
    Nothing,
}

/// Everything.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) sessions: HashMap<SessionNo, SessionState>,
    pub(crate) by_client: HashMap<String, SessionNo>,
    pub(crate) messages: HashMap<MessageId, Stored>,
    pub(crate) retained: BTreeMap<String, Stored>,
    /// by node; as many as there are nodes
    pub(crate) heard: BTreeMap<u64, Heard>,
    /// What differs from sled. A key that is not in the state any more is to be removed there.
    pub(crate) touched: HashSet<Key>,
    pub(crate) next_session: SessionNo,
    pub(crate) next_message: MessageId,
    /// bytes of all messages and Retained Messages
    pub(crate) bytes: u64,
    /// messages owed, over all sessions
    pub(crate) owed: u64,
    /// bytes of all sessions, without their queues
    pub(crate) session_bytes: u64,
}

impl State {
    /// Applies a command; `at` is the log's offset of the bytes of the message in it.
    pub(crate) fn apply(&mut self, command: Command<'_>, at: u64) {
        match command {
            Command::Session { no, record } => {
                self.next_session = self.next_session.max(no + 1);
                if let Some(other) = self.by_client.insert(record.client_id.clone(), no)
                    && other != no
                {
                    self.end(other);
                }
                // When the log is read again, one that sled has may have ended at an earlier command.
                let in_base = self.touched.contains(&Key::Session(no));
                self.session_bytes += record.size();
                match self.sessions.entry(no) {
                    Entry::Occupied(mut session) => {
                        self.session_bytes -= session.get().record.size();
                        session.get_mut().record = record;
                    }
                    Entry::Vacant(place) => {
                        place.insert(SessionState { record, in_base, ..SessionState::default() });
                    }
                }
                self.touch_session(no);
            }
            Command::End { no } => self.end(no),
            Command::Subscribe { no, filter, options } => {
                if let Some(session) = self.sessions.get_mut(&no) {
                    self.session_bytes += size_of_subscription(filter, options);
                    if let Some(old) = session.subscriptions.insert(filter.to_owned(), options.to_vec()) {
                        self.session_bytes -= size_of_subscription(filter, &old);
                    }
                    self.touch_session(no);
                }
            }
            Command::Unsubscribe { no, filter } => {
                if let Some(session) = self.sessions.get_mut(&no) {
                    if let Some(old) = session.subscriptions.remove(filter) {
                        self.session_bytes -= size_of_subscription(filter, &old);
                    }
                    self.touch_session(no);
                }
            }
            Command::Publish { id, expires_at, recipients, inbound, message } => {
                self.next_message = self.next_message.max(id + 1);
                let (mut new, mut all) = (0, 0);
                for (no, owed) in recipients {
                    match self.owe(no, owed) {
                        Owes::New => (new, all) = (new + 1, all + 1),
                        Owes::Already => all += 1,
                        Owes::Nothing => {}
                    }
                }
                if let Some(stored) = self.messages.get_mut(&id) {
                    stored.owed += new;
                } else if all > 0 {
                    // When the log is read again, sled's sessions may know of a message that sled does not have yet; and one that
                    // sled has may have gone with its session, and is to be removed there.
                    let in_base = !self.touched.insert(Key::Message(id));
                    let len = message.len() as u32;
                    let stored = Stored { place: Place::Log(at), len, owed: all, expires_at, in_base };
                    self.messages.insert(id, stored);
                    self.bytes += u64::from(len);
                }
                if let Some((no, inbound)) = inbound
                    && let Some(session) = self.sessions.get_mut(&no)
                {
                    session.inbound.retain(|other| other.packet_id != inbound.packet_id);
                    session.inbound.push(inbound);
                    self.touch_session(no);
                }
            }
            Command::Sent { no, seq } => self.advance(no, seq, Stage::Sent),
            Command::Received { no, seq } => self.advance(no, seq, Stage::Received),
            Command::Done { no, seq } => self.done(no, seq),
            Command::Released { no, packet_id } => {
                if let Some(session) = self.sessions.get_mut(&no) {
                    session.inbound.retain(|inbound| inbound.packet_id != packet_id);
                    self.touch_session(no);
                }
            }
            Command::Retain { topic, expires_at, message } => {
                let len = message.len() as u32;
                let stored = Stored { place: Place::Log(at), len, owed: 0, expires_at, in_base: false };
                self.bytes += u64::from(len);
                if let Some(old) = self.retained.insert(topic.to_owned(), stored) {
                    self.bytes -= u64::from(old.len);
                }
                self.touched.insert(Key::Retained(topic.to_owned()));
            }
            Command::Clear { topic } => {
                if let Some(old) = self.retained.remove(topic) {
                    self.bytes -= u64::from(old.len);
                    self.touched.insert(Key::Retained(topic.to_owned()));
                }
            }
            Command::Heard { node, boot, number, origin } => {
                self.heard.entry(node).or_default().note(boot, number, origin);
                self.touched.insert(Key::Heard(node));
            }
            Command::Taken { node, tag } => {
                remember(&mut self.heard.entry(node).or_default().taken, tag);
                self.touched.insert(Key::Heard(node));
            }
        }
    }

    /// The place in its queue that a session's next message gets: one whose Packet Identifier nothing has that is owed.
    ///
    /// `None` if the session has ended, or all identifiers are taken.
    pub(crate) fn reserve_seq(&mut self, no: SessionNo) -> Option<Seq> {
        let session = self.sessions.get_mut(&no)?;
        let mut seq = session.next_seq;
        if session.queue.len() as u64 >= PACKET_IDS {
            return None;
        }
        let front = session.queue.front().map_or(seq, |front| front.seq);
        // Only an old message that is still owed can stand in the way.
        if seq - front >= PACKET_IDS {
            let used: HashSet<u16> = session.queue.iter().map(Owed::packet_id).collect();
            while used.contains(&packet_id(seq)) {
                seq += 1;
            }
        }
        session.next_seq = seq + 1;
        Some(seq)
    }

    /// The next place in a session's queue that has this Packet Identifier.
    pub(crate) fn reserve_seq_of(&mut self, no: SessionNo, wanted: u16) -> Option<Seq> {
        let session = self.sessions.get_mut(&no)?;
        let offset = u64::from(wanted).checked_sub(1).filter(|offset| *offset < PACKET_IDS)?;
        if session.queue.len() as u64 >= PACKET_IDS || session.queue.iter().any(|owed| owed.packet_id() == wanted) {
            return None;
        }
        let round = session.next_seq - session.next_seq % PACKET_IDS;
        let seq = round + offset;
        let seq = if seq < session.next_seq { seq + PACKET_IDS } else { seq };
        session.next_seq = seq + 1;
        Some(seq)
    }

    fn owe(&mut self, no: SessionNo, owed: Owed) -> Owes {
        let Some(session) = self.sessions.get_mut(&no) else { return Owes::Nothing };
        session.next_seq = session.next_seq.max(owed.seq + 1);
        match session.queue.binary_search_by_key(&owed.seq, |o| o.seq) {
            Ok(at) => {
                let held = &session.queue[at];
                return if held.message == owed.message && held.holds_message() {
                    Owes::Already
                } else {
                    Owes::Nothing
                };
            }
            Err(at) => session.queue.insert(at, owed),
        }
        self.owed += 1;
        self.touch_session(no);
        Owes::New
    }

    fn advance(&mut self, no: SessionNo, seq: Seq, stage: Stage) {
        let Some(session) = self.sessions.get_mut(&no) else { return };
        let Some(at) = session.position(seq) else { return };
        let before = std::mem::replace(&mut session.queue[at].stage, stage);
        let message = session.queue[at].message;
        self.touch_session(no);
        // After PUBREC only its identifier is owed.
        if stage == Stage::Received && before != Stage::Received {
            self.release(message);
        }
    }

    /// Makes a topic's Retained Message again what it was.
    pub(crate) fn put_back(&mut self, topic: &str, before: Option<Stored>) {
        let after = self.retained.remove(topic);
        self.bytes -= after.map_or(0, |stored| u64::from(stored.len));
        if let Some(stored) = before {
            self.bytes += u64::from(stored.len);
            self.retained.insert(topic.to_owned(), stored);
        }
        self.touched.insert(Key::Retained(topic.to_owned()));
    }

    /// Bytes of sled that all of it takes, about.
    pub(crate) fn size(&self) -> u64 {
        self.bytes + self.owed * 32 + self.session_bytes
    }

    /// Bytes of sled that what differs from it takes, rather too many.
    pub(crate) fn size_of_touched(&self) -> u64 {
        let size = |key: &Key| match key {
            Key::Session(no) => self.sessions.get(no).map_or(0, SessionState::size),
            Key::Message(id) => self.messages.get(id).map_or(0, |stored| u64::from(stored.len)),
            Key::Retained(topic) => {
                self.retained.get(topic).map_or(0, |stored| topic.len() as u64 + u64::from(stored.len))
            }
            Key::Heard(_) => HEARD_MAX as u64 * 20,
        };
        self.touched.iter().map(|key| 64 + size(key)).sum()
    }

    /// The full number of a message of which the low half is known; right for the last four thousand million.
    pub(crate) fn message_of(&self, ticket: u32) -> MessageId {
        let newest = self.next_message.saturating_sub(1);
        newest.saturating_sub(u64::from((newest as u32).wrapping_sub(ticket)))
    }

    fn done(&mut self, no: SessionNo, seq: Seq) {
        let Some(session) = self.sessions.get_mut(&no) else { return };
        let Some(owed) = session.position(seq).and_then(|at| session.queue.remove(at)) else { return };
        if session.queue.is_empty() && session.queue.capacity() > 64 {
            session.queue.shrink_to_fit();
        }
        self.owed -= 1;
        self.touch_session(no);
        if owed.holds_message() {
            self.release(owed.message);
        }
    }

    fn end(&mut self, no: SessionNo) {
        let Some(session) = self.sessions.remove(&no) else { return };
        self.session_bytes -= session.size_of_facts();
        if self.by_client.get(&session.record.client_id) == Some(&no) {
            self.by_client.remove(&session.record.client_id);
        }
        self.owed -= session.queue.len() as u64;
        session.queue.iter().filter(|owed| owed.holds_message()).for_each(|owed| self.release(owed.message));
        self.gone(Key::Session(no), session.in_base);
    }

    fn release(&mut self, id: MessageId) {
        let Some(stored) = self.messages.get_mut(&id) else { return };
        stored.owed = stored.owed.saturating_sub(1);
        if stored.owed == 0 {
            let stored = *stored;
            self.messages.remove(&id);
            self.bytes -= u64::from(stored.len);
            self.gone(Key::Message(id), stored.in_base);
        }
    }

    /// Gives the memory back that a great many messages have taken, once they are gone.
    pub(crate) fn shrink(&mut self) {
        const LARGE: usize = 1 << 16;
        if self.messages.capacity() > LARGE && self.messages.len() < self.messages.capacity() / 8 {
            self.messages.shrink_to_fit();
        }
    }

    fn touch_session(&mut self, no: SessionNo) {
        if let Some(session) = self.sessions.get_mut(&no)
            && !session.touched
        {
            session.touched = true;
            self.touched.insert(Key::Session(no));
        }
    }

    /// A key is no more: sled has to be told if it knows it.
    fn gone(&mut self, key: Key, in_base: bool) {
        if in_base {
            self.touched.insert(key);
        } else {
            self.touched.remove(&key);
        }
    }

    /// Counts who is owed what; after sled was read, and before the log is. Of two sessions with one Client Identifier the older one
    /// has ended: a checkpoint that was cut short may not have said so to sled.
    pub(crate) fn count(&mut self) {
        self.owed = 0;
        self.messages.values_mut().for_each(|stored| stored.owed = 0);
        for session in self.sessions.values() {
            self.owed += session.queue.len() as u64;
            for owed in session.queue.iter().filter(|owed| owed.holds_message()) {
                if let Some(stored) = self.messages.get_mut(&owed.message) {
                    stored.owed += 1;
                }
            }
        }
        self.bytes = self.messages.values().chain(self.retained.values()).map(|s| u64::from(s.len)).sum();
        self.session_bytes = self.sessions.values().map(SessionState::size_of_facts).sum();
        let mut clients: Vec<_> = self.sessions.iter().map(|(no, s)| (*no, s.record.client_id.clone())).collect();
        clients.sort_unstable();
        self.by_client.clear();
        for (no, client_id) in clients {
            if let Some(older) = self.by_client.insert(client_id, no) {
                self.end(older);
            }
        }
    }

    /// After the log was read: lets go of what nobody is owed, and of what nobody has.
    ///
    /// Returns how many sessions were owed a message whose bytes are nowhere. There is no such thing in a sound store.
    pub(crate) fn settle(&mut self) -> usize {
        let mut dangling = Vec::new();
        for (no, session) in &mut self.sessions {
            let before = session.queue.len();
            session.queue.retain(|owed| !owed.holds_message() || self.messages.contains_key(&owed.message));
            if session.queue.len() != before {
                dangling.push(*no);
            }
        }
        dangling.iter().for_each(|no| self.touch_session(*no));
        self.count();
        let unowed: Vec<_> =
            self.messages.iter().filter(|(_, s)| s.owed == 0).map(|(id, s)| (*id, s.in_base)).collect();
        for (id, in_base) in unowed {
            self.messages.remove(&id);
            self.gone(Key::Message(id), in_base);
        }
        self.count();
        dangling.len()
    }
}

#[cfg(test)]
mod tests;
