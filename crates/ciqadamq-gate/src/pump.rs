//! Carries bytes between a client and the engine until both have ended.
//!
//! One task, one state machine over both directions. A side is read only when all that was read for the other side is
//! written, so a side that does not take its bytes stops the one that sends them. Reading goes through a buffer that
//! belongs to the thread: a connection where nothing happens holds none.
//!
//! How it ends: what either side sent before its end is delivered, then the other side is shut down for writing, and the
//! rest is waited for (and thrown away) for [`LINGER`], because closing a socket with unread input resets it, and a reset
//! can destroy what was sent last, such as the engine's DISCONNECT.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Sleep, sleep};

use crate::gate::{Stage, reached};
use crate::io::ClientIo;
use crate::outgoing::Outgoing;
use crate::ws::{Decoder, End, HEADER_ROOM, close_frame, code, put_data_header};

/// Read at a time, from either side.
const CHUNK: usize = 16 * 1024;
/// Pongs waiting for a client that sends pings and does not read: beyond this it is not read either.
const WAITING_REPLIES_MAX: usize = CHUNK + 4 * 1024;
/// How long the second side may take to end after the first.
const LINGER: Duration = Duration::from_secs(5);
/// At the gate's end, how long the engine may take to end its side before WebSockets are closed without waiting for it.
const DRAIN_GRACE: Duration = Duration::from_millis(100);
/// Rounds before other tasks get a turn.
const ROUNDS_MAX: usize = 16;

thread_local! {
    /// Room for a frame header, then a chunk. Never borrowed across a return to the runtime.
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; HEADER_ROOM + CHUNK].into_boxed_slice());
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Incoming {
    Open,
    /// Read only to see the end.
    Discard,
    Ended,
}

/// A client that has sent its CONNECT, and its connection to the engine.
#[derive(Debug)]
pub(crate) struct Pump {
    client: ClientIo,
    engine: TcpStream,
    /// Set if the client speaks WebSocket.
    frames: Option<Decoder>,
    from_client: Incoming,
    from_engine: Incoming,
    to_client: Outgoing,
    to_engine: Outgoing,
    going_away: bool,
    stall_timeout: Duration,
    /// What the timer is for. It has memory only while it runs.
    wait: Wait,
    timer: Option<Pin<Box<Sleep>>>,
}

/// What a connection is waiting for with a limit; a later one replaces an earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wait {
    Nothing,
    /// The client to take something.
    Stall,
    /// The engine to end, at the gate's end.
    Grace,
    /// The second side to end.
    Linger,
}

impl Pump {
    /// `stall_timeout` is how long the client may take nothing while something waits for it.
    pub(crate) fn new(client: ClientIo, frames: Option<Decoder>, engine: TcpStream, stall_timeout: Duration) -> Self {
        Self {
            client,
            engine,
            frames,
            from_client: Incoming::Open,
            from_engine: Incoming::Open,
            to_client: Outgoing::new(),
            to_engine: Outgoing::new(),
            going_away: false,
            stall_timeout,
            wait: Wait::Nothing,
            timer: None,
        }
    }

    /// The client ended the WebSocket: its end is answered, and the engine sees the end of the stream.
    pub(crate) fn client_ended(&mut self, end: End) {
        self.to_client.queue(&end.answer());
        self.to_client.finish();
        self.to_engine.finish();
        // Nothing may follow a close frame, so there is no need to wait for more (RFC 6455 §7.1.1).
        self.from_client = if matches!(end, End::Close(_)) { Incoming::Ended } else { Incoming::Discard };
    }

    /// Runs until both sides have ended, or one takes too long. At [`Stage::Drain`] it delivers what the engine has sent
    /// and ends.
    pub(crate) async fn run(mut self, mut stage: watch::Receiver<Stage>) {
        let mut drain = pin!(reached(&mut stage, Stage::Drain));
        poll_fn(|cx| {
            if !self.going_away && drain.as_mut().poll(cx).is_ready() {
                self.go_away();
            }
            self.poll(cx)
        })
        .await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..ROUNDS_MAX {
            // Pending or ready, `is_idle` and `is_closed` tell it below; here it registers for what is missing.
            let _ = self.to_engine.poll_drain(cx, &mut self.engine);
            let _ = self.to_client.poll_drain(cx, &mut self.client);
            let moved_up = self.poll_from_client(cx).is_ready();
            let moved_down = self.poll_from_engine(cx).is_ready();
            if self.is_done() {
                return Poll::Ready(());
            }
            if !moved_up && !moved_down {
                return self.poll_timer(cx);
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn is_done(&self) -> bool {
        self.from_client == Incoming::Ended
            && self.from_engine == Incoming::Ended
            && self.to_client.is_closed()
            && self.to_engine.is_closed()
    }

    /// Reads once from the client and hands it on. Ready if something happened.
    fn poll_from_client(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let may_read = match self.from_client {
            Incoming::Open => self.to_engine.is_idle() && self.to_client.waiting() <= WAITING_REPLIES_MAX,
            Incoming::Discard => true,
            Incoming::Ended => false,
        };
        if !may_read {
            return Poll::Pending;
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buf = ReadBuf::new(&mut scratch[..CHUNK]);
            let result = ready!(Pin::new(&mut self.client).poll_read(cx, &mut buf));
            let data = buf.filled_mut();
            if result.is_err() || data.is_empty() {
                self.from_client = Incoming::Ended;
                self.to_engine.finish();
                // TLS clients often leave without saying so; that is an end like any other.
                if result.is_err_and(|e| e.kind() != std::io::ErrorKind::UnexpectedEof) {
                    self.to_client.fail();
                }
            } else if self.from_client == Incoming::Open {
                self.take_from_client(cx, data);
            }
            Poll::Ready(())
        })
    }

    fn take_from_client(&mut self, cx: &mut Context<'_>, data: &mut [u8]) {
        let Some(decoder) = &mut self.frames else {
            return self.to_engine.send(cx, &mut self.engine, data);
        };
        let mut replies = Vec::new();
        let decoded = decoder.decode(data, &mut replies);
        self.to_engine.send(cx, &mut self.engine, &data[..decoded.data]);
        self.to_client.queue(&replies);
        if let Some(end) = decoded.end {
            self.client_ended(end);
        }
    }

    /// Reads once from the engine and hands it on. Ready if something happened.
    fn poll_from_engine(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.from_engine == Incoming::Ended || !self.to_client.is_idle() {
            return Poll::Pending;
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buf = ReadBuf::new(&mut scratch[HEADER_ROOM..]);
            let result = ready!(Pin::new(&mut self.engine).poll_read(cx, &mut buf));
            let len = buf.filled().len();
            if result.is_err() || len == 0 {
                self.engine_ended(result.is_err());
                return Poll::Ready(());
            }
            let chunk = &mut scratch[..HEADER_ROOM + len];
            let start = if self.frames.is_some() { put_data_header(chunk) } else { HEADER_ROOM };
            self.to_client.send(cx, &mut self.client, &chunk[start..]);
            Poll::Ready(())
        })
    }

    fn engine_ended(&mut self, broken: bool) {
        self.from_engine = Incoming::Ended;
        self.end_client(match (self.going_away, broken) {
            (true, _) => code::AWAY,
            (false, true) => code::INTERNAL,
            (false, false) => code::NORMAL,
        });
        if broken {
            self.to_engine.fail();
        }
    }

    /// Ends both directions at the gate's own will. The engine is told first: its end comes after all that it has sent,
    /// some of which may not have been seen here yet.
    fn go_away(&mut self) {
        self.going_away = true;
        self.to_engine.finish();
        if self.from_client == Incoming::Open {
            self.from_client = Incoming::Discard;
        }
    }

    fn end_client(&mut self, close_code: u16) {
        if self.frames.is_some() {
            self.to_client.queue(&close_frame(close_code, ""));
        }
        self.to_client.finish();
        self.to_engine.finish();
        if self.from_client == Incoming::Open {
            self.from_client = Incoming::Discard;
        }
    }

    /// What has to come to an end by now.
    fn needed_wait(&self) -> Wait {
        let ending = self.from_client != Incoming::Open
            || self.from_engine == Incoming::Ended
            || self.to_client.is_closed()
            || self.to_engine.is_closed();
        if self.going_away && self.to_client.is_open() {
            Wait::Grace
        } else if ending {
            Wait::Linger
        } else if !self.to_client.is_idle() {
            Wait::Stall
        } else {
            Wait::Nothing
        }
    }

    fn start_wait(&mut self, wait: Wait) {
        let limit = match wait {
            Wait::Nothing => None,
            Wait::Stall => Some(self.stall_timeout),
            Wait::Grace => Some(DRAIN_GRACE),
            Wait::Linger => Some(LINGER),
        };
        self.to_client.take_progress();
        self.wait = wait;
        self.timer = limit.map(|limit| Box::pin(sleep(limit)));
    }

    /// Ready when the connection is given up.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let needed = self.needed_wait();
        if needed > self.wait {
            self.start_wait(needed);
        }
        while let Some(timer) = &mut self.timer {
            ready!(timer.as_mut().poll(cx));
            match self.wait {
                // The engine's own limit does not help here: its end queues behind what the client does not take.
                Wait::Stall if self.to_client.is_idle() => self.start_wait(Wait::Nothing),
                Wait::Stall if self.to_client.take_progress() => self.start_wait(Wait::Stall),
                Wait::Grace => {
                    self.end_client(code::AWAY);
                    self.start_wait(Wait::Linger);
                    // The close frame is written in the next round.
                    cx.waker().wake_by_ref();
                }
                Wait::Nothing | Wait::Stall | Wait::Linger => return Poll::Ready(()),
            }
        }
        Poll::Pending
    }
}
