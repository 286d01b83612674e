//! The state, and the commands that were applied to it and are not written yet. One lock guards both, so that the log has the
//! order in which the state changed.

use std::time::Instant;

use tokio::sync::oneshot;

use crate::Refusal;
use crate::command::Command;
use crate::journal::{FRAME_ALIGN, FRAME_HEAD};
use crate::records::Millis;
use crate::state::{Place, State, Stored};
use crate::wire::{Put, Take};

/// Where the outcome of a commit goes.
pub(crate) type Waiter = oneshot::Sender<Result<(), Refusal>>;

/// See the module.
pub(crate) struct Core {
    pub(crate) state: State,
    /// the frame that is being filled
    pub(crate) frame: Frame,
    /// the log's offset at which it will stand
    pub(crate) frame_at: u64,
    /// why nothing can be written now
    pub(crate) fault: Option<Refusal>,
    /// A checkpoint after a fault has begun: what changes from now on may not be in it, and is for the log again.
    pub(crate) mending: bool,
    /// a frame is being written, or was and is not as durable as was promised
    pub(crate) unsettled: bool,
    /// why no message is taken now, while all else is written: what is free of the disk is kept for that
    pub(crate) short: Option<Refusal>,
    /// sled has what the log had in front of this
    pub(crate) folded: u64,
    /// nothing is written any more
    pub(crate) closed: bool,
    /// nothing is ever written: [`crate::Durability::Memory`]
    pub(crate) volatile: bool,
    /// the writer sleeps until so many wait
    pub(crate) enough: usize,
}

/// Commands for one commit.
#[derive(Default)]
pub(crate) struct Frame {
    /// with room for the frame's head; empty if there is no command
    pub(crate) bytes: Vec<u8>,
    pub(crate) waiters: Vec<Waiter>,
    /// Retained Messages that it replaces or removes: if it cannot be written they are put back
    pub(crate) replaced: Vec<(String, Option<Stored>)>,
    /// there is a message in it that is to be kept
    pub(crate) has_messages: bool,
    /// why there is none any more: what whoever waits is told once the rest is written
    pub(crate) refused: Option<Refusal>,
    /// when its first command came
    pub(crate) since: Option<Instant>,
    /// what is in it should be with the operating system soon, although nobody waits
    pub(crate) urgent: bool,
}

impl Core {
    /// Applies a command and puts it into the frame.
    pub(crate) fn push(&mut self, command: Command<'_>) {
        // While nothing can be written the state goes on; what has changed is in its list for the next checkpoint.
        if self.volatile || self.closed || (self.fault.is_some() && !self.mending) {
            return self.state.apply(command, u64::MAX);
        }
        let frame = &mut self.frame;
        frame.begin();
        command.encode(&mut frame.bytes);
        let message = match &command {
            Command::Publish { message, recipients, .. } => {
                frame.has_messages |= !recipients.is_empty();
                message.len()
            }
            Command::Retain { topic, message, .. } => {
                frame.has_messages = true;
                frame.replaced.push(((*topic).to_owned(), self.state.retained.get(*topic).copied()));
                message.len()
            }
            Command::Clear { topic } => {
                frame.replaced.push(((*topic).to_owned(), self.state.retained.get(*topic).copied()));
                0
            }
            _ => 0,
        };
        let at = self.frame_at + (frame.bytes.len() - message) as u64;
        self.state.apply(command, at);
    }

    /// Hands the frame out to be written; without its messages, if there is no room for them.
    pub(crate) fn take_frame(&mut self) -> Frame {
        let mut frame = std::mem::take(&mut self.frame);
        self.unsettled |= !frame.bytes.is_empty();
        if self.short.is_some() && frame.has_messages {
            self.take_back(&frame);
            frame.leave_out_what_was_taken_back();
            frame.refused.clone_from(&self.short);
        }
        frame.pad();
        self.frame_at += frame.bytes.len() as u64;
        frame
    }

    /// Takes back what nobody was promised: messages, and changes of Retained Messages, in a frame that was not written. The
    /// rest stands, and is written with the next checkpoint if not before.
    pub(crate) fn take_back(&mut self, frame: &Frame) {
        let mut from = Take::new(frame.bytes.get(FRAME_HEAD + 8..).unwrap_or_default());
        // Our own bytes of a moment ago.
        while let Ok(command) = Command::decode(&mut from) {
            if let Command::Publish { recipients, inbound, .. } = command {
                for (no, owed) in recipients {
                    self.state.apply(Command::Done { no, seq: owed.seq }, 0);
                }
                if let Some((no, inbound)) = inbound {
                    self.state.apply(Command::Released { no, packet_id: inbound.packet_id }, 0);
                }
            }
        }
        for (topic, before) in frame.replaced.iter().rev() {
            // A checkpoint may have moved it since.
            let now = before.map(|stored| match stored.place {
                Place::Log(at) if at < self.folded => Stored { place: Place::Base, ..stored },
                _ => stored,
            });
            self.state.put_back(topic, now);
        }
    }

    /// Why no message is taken now.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.fault.clone().or_else(|| self.short.clone())
    }

    /// Somebody waits for everything so far. What is on its way, or not durable yet, is waited for by a frame without a command
    /// behind it.
    pub(crate) fn wait_for_all(&mut self) -> Result<Option<oneshot::Receiver<Result<(), Refusal>>>, Refusal> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        if self.unsettled && !self.closed {
            self.frame.begin();
        }
        Ok(self.wait())
    }

    /// Somebody waits for what is in the frame.
    pub(crate) fn wait(&mut self) -> Option<oneshot::Receiver<Result<(), Refusal>>> {
        if self.volatile || self.frame.bytes.is_empty() {
            return None;
        }
        let (tx, rx) = oneshot::channel();
        self.frame.waiters.push(tx);
        Some(rx)
    }
}

impl Frame {
    fn begin(&mut self) {
        if self.bytes.is_empty() {
            self.bytes.resize(FRAME_HEAD, 0);
            self.bytes.i64(now());
            self.since = Some(Instant::now());
        }
    }

    /// One that says only when it was written.
    pub(crate) fn without_commands() -> Self {
        let mut frame = Self::default();
        frame.begin();
        frame.pad();
        frame
    }

    /// Zeros at the end are no command.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(FRAME_ALIGN), 0);
    }

    /// Leaves in it what [`Core::take_back`] lets stand, but for notes that something of another node is here: that one sends it
    /// again if this one dies before it can keep it.
    fn leave_out_what_was_taken_back(&mut self) {
        use Command::{Clear, Heard, Publish, Retain, Taken};
        let (head, commands) = self.bytes.split_at(FRAME_HEAD + 8);
        let (mut bytes, mut from) = (head.to_vec(), Take::new(commands));
        while let Ok(command) = Command::decode(&mut from) {
            if !matches!(command, Publish { .. } | Retain { .. } | Clear { .. } | Heard { .. } | Taken { .. }) {
                command.encode(&mut bytes);
            }
        }
        self.bytes = bytes;
        self.replaced.clear();
    }
}

/// The time of day.
pub(crate) fn now() -> Millis {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // A clock before 1970 is wrong anyway; nothing expires then.
    since.map_or(0, |d| d.as_millis() as Millis)
}
