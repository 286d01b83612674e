//! What waits to be written to one side of a connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// Nothing more is taken; the side is shut down for writing when all is out.
    Finishing,
    /// Shut down, or broken: what is given is dropped.
    Closed,
}

/// The writing half of one side: bytes go out at once, and only what the socket does not take is kept.
#[derive(Debug)]
pub(crate) struct Outgoing {
    kept: Vec<u8>,
    written: usize,
    state: State,
    /// Something was written since the last flush, which TLS needs.
    unflushed: bool,
    /// Bytes were taken by the socket since [`Outgoing::take_progress`] was asked last.
    progress: bool,
}

impl Outgoing {
    pub(crate) fn new() -> Self {
        Self { kept: Vec::new(), written: 0, state: State::Open, unflushed: false, progress: false }
    }

    /// Nothing waits: more may be read for this side.
    pub(crate) fn is_idle(&self) -> bool {
        self.kept.is_empty() && !self.unflushed
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// How many bytes wait.
    pub(crate) fn waiting(&self) -> usize {
        self.kept.len() - self.written
    }

    pub(crate) fn take_progress(&mut self) -> bool {
        std::mem::take(&mut self.progress)
    }

    /// Appends to what waits. For what is small; the caller bounds it.
    pub(crate) fn queue(&mut self, bytes: &[u8]) {
        if self.is_open() {
            self.kept.extend_from_slice(bytes);
        }
    }

    /// Writes what the socket takes now and keeps the rest. The caller reads no more for this side until
    /// [`Outgoing::poll_drain`] has said that it is out.
    pub(crate) fn send(&mut self, cx: &mut Context<'_>, io: &mut (impl AsyncWrite + Unpin), mut bytes: &[u8]) {
        if !self.is_open() {
            return;
        }
        while self.kept.is_empty() && !bytes.is_empty() {
            match Pin::new(&mut *io).poll_write(cx, bytes) {
                Poll::Ready(result) => match self.wrote(result) {
                    Some(n) => bytes = &bytes[n..],
                    None => return,
                },
                Poll::Pending => break,
            }
        }
        self.kept.extend_from_slice(bytes);
    }

    /// Takes nothing more, and shuts the side down when all is out.
    pub(crate) fn finish(&mut self) {
        if self.is_open() {
            self.state = State::Finishing;
        }
    }

    /// The side is broken.
    pub(crate) fn fail(&mut self) {
        *self = Self { state: State::Closed, ..Self::new() };
    }

    /// Writes what waits. Ready when all is out, and shut down if that was asked for.
    pub(crate) fn poll_drain(&mut self, cx: &mut Context<'_>, io: &mut (impl AsyncWrite + Unpin)) -> Poll<()> {
        while self.written < self.kept.len() {
            let result = ready!(Pin::new(&mut *io).poll_write(cx, &self.kept[self.written..]));
            match self.wrote(result) {
                Some(n) => self.written += n,
                None => return Poll::Ready(()),
            }
        }
        if self.written > 0 {
            // The memory goes too: what has waited once need not wait again.
            (self.kept, self.written) = (Vec::new(), 0);
        }
        if self.unflushed {
            if ready!(Pin::new(&mut *io).poll_flush(cx)).is_err() {
                self.fail();
                return Poll::Ready(());
            }
            self.unflushed = false;
        }
        if self.state == State::Finishing {
            // The peer may be gone already, which is as good.
            let _ = ready!(Pin::new(io).poll_shutdown(cx));
            self.state = State::Closed;
        }
        Poll::Ready(())
    }

    fn wrote(&mut self, result: io::Result<usize>) -> Option<usize> {
        match result {
            Ok(n) if n > 0 => {
                self.unflushed = true;
                self.progress = true;
                Some(n)
            }
            Ok(_) | Err(_) => {
                self.fail();
                None
            }
        }
    }
}
