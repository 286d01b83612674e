//! Connections under salvo's service: how many, how slow they may be, how they end.
//!
//! salvo's routing, handlers and OpenAPI are used, its server is not. That one takes connections without bound, spins
//! when the process is out of file descriptors, lets a client sit silent before its first byte, and speaks HTTP/2 as
//! soon as any crate of the program switches that on, where one connection carries many requests and none of our
//! limits.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use prometheus::IntGauge;
use salvo::http::ResBody;
use salvo::http::header::CONNECTION;
use salvo::http::uri::Scheme;
use salvo::hyper::body::Incoming;
use salvo::hyper::server::conn::http1;
use salvo::hyper::service::Service;
use salvo::hyper::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Sleep;

use crate::brake::network;
use crate::config::RestConfig;

/// Longest request head, and the read buffer of a connection. The buffer alone bounds a head only at twice as much: a head
/// that is complete with the next read passes.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Pause after `accept` failed for want of a resource.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// After a body was refused: how long and how much of the rest is read and thrown away, so that the client gets to see
/// the answer. Closed at once, a client that is still sending gets a reset instead.
const LINGER: Duration = Duration::from_secs(5);
const LINGER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Serves connections until `stop` says so, then lets requests under way end and cuts what is left after the grace.
pub(crate) async fn serve(gate: Gate, service: salvo::Service, grace: Duration, mut stop: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = stopped(&mut stop) => break,
            // Ended ones are taken out so that the set stays as small as the number of open ones.
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            (wire, peer) = gate.accept() => {
                let handler = service.hyper_handler(gate.local_addr.into(), peer.into(), Scheme::HTTP, None, None);
                connections.spawn(speak_http1(wire, handler, gate.header_timeout, stop.clone()));
            }
        }
    }
    // From here on the address is free.
    drop(gate);
    let ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(grace, ended).await.is_err() {
        tracing::warn!(connections = connections.len(), "REST connections are cut off");
        connections.shutdown().await;
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error says that nobody holds the server any more, which is a stop too.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Accepts at most so many connections at once. Further ones wait in the operating system's queue.
pub(crate) struct Gate {
    listener: TcpListener,
    local_addr: SocketAddr,
    slots: Arc<Semaphore>,
    addresses: Arc<Addresses>,
    open: IntGauge,
    header_timeout: Duration,
    write_timeout: Duration,
}

impl Gate {
    pub(crate) fn new(listener: TcpListener, config: &RestConfig, open: IntGauge) -> io::Result<Self> {
        Ok(Self {
            local_addr: listener.local_addr()?,
            listener,
            slots: Arc::new(Semaphore::new(config.max_connections)),
            addresses: Arc::new(Addresses { max: config.max_connections_per_address, counts: Mutex::default() }),
            open,
            header_timeout: config.header_timeout,
            write_timeout: config.write_timeout,
        })
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    async fn accept(&self) -> (Wire, SocketAddr) {
        // Nobody closes the semaphore; were it closed, there would be no place.
        let Ok(permit) = self.slots.clone().acquire_owned().await else { return std::future::pending().await };
        let (tcp, peer, address) = loop {
            match self.listener.accept().await {
                Ok((tcp, peer)) => match self.addresses.enter(peer.ip()) {
                    Some(address) => break (tcp, peer, address),
                    // One address must not take all places: it is closed, and the next one may come.
                    None => drop(tcp),
                },
                Err(e) => {
                    tracing::warn!(error = %e, "a REST connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        };
        // Answers are small and written whole; a connection without the option still works.
        if let Err(e) = tcp.set_nodelay(true) {
            tracing::debug!(error = %e, "no TCP_NODELAY on a REST connection");
        }
        (Wire::new(tcp, self.write_timeout, Slot::new(permit, address, self.open.clone())), peer)
    }
}

/// Connections by address; none is remembered that has no connection.
struct Addresses {
    max: usize,
    counts: Mutex<HashMap<IpAddr, usize>>,
}

/// One connection of an address, until dropped.
struct OfAddress(Arc<Addresses>, IpAddr);

impl Addresses {
    fn enter(self: &Arc<Self>, ip: IpAddr) -> Option<OfAddress> {
        let ip = network(ip);
        let mut counts = self.counts.lock();
        let count = counts.entry(ip).or_insert(0);
        if self.max > 0 && *count >= self.max {
            return None;
        }
        *count += 1;
        Some(OfAddress(self.clone(), ip))
    }
}

impl Drop for OfAddress {
    fn drop(&mut self) {
        if let Entry::Occupied(mut count) = self.0.counts.lock().entry(self.1) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// A place among the connections, given back when the connection ends.
struct Slot {
    _permit: OwnedSemaphorePermit,
    _address: OfAddress,
    open: IntGauge,
}

impl Slot {
    fn new(permit: OwnedSemaphorePermit, address: OfAddress, open: IntGauge) -> Self {
        open.inc();
        Self { _permit: permit, _address: address, open }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.open.dec();
    }
}

async fn speak_http1<H>(wire: Wire, handler: H, header_timeout: Duration, mut stop: watch::Receiver<bool>)
where
    H: Service<Request<Incoming>, Response = Response<ResBody>, Error = salvo::hyper::Error>,
    H::Future: Send + 'static,
{
    let watched = Watched { handler, linger: wire.linger.clone() };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_header_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(wire), watched);
    let mut connection = std::pin::pin!(connection);
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = stopped(&mut stop) => {
            // The request under way is answered, an idle connection ends at once.
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(e) = outcome {
        tracing::debug!(error = %e, "a REST connection ended early");
    }
}

/// Notices answers that end their connection while the client may still be sending.
struct Watched<H> {
    handler: H,
    linger: Arc<AtomicBool>,
}

impl<H> Service<Request<Incoming>> for Watched<H>
where
    H: Service<Request<Incoming>, Response = Response<ResBody>>,
    H::Future: Send + 'static,
{
    type Response = Response<ResBody>;
    type Error = H::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let answer = self.handler.call(request);
        let linger = self.linger.clone();
        async move {
            let response = answer.await?;
            if response.headers().contains_key(CONNECTION) {
                linger.store(true, Ordering::Relaxed);
            }
            Ok(response)
        }
        .boxed()
    }
}

/// A connection's bytes, with a limit on how long the client may take none of ours.
pub(crate) struct Wire {
    tcp: TcpStream,
    write_timeout: Duration,
    /// runs while a write waits for the client
    stalled: Option<Pin<Box<Sleep>>>,
    linger: Arc<AtomicBool>,
    lingering: Option<(Pin<Box<Sleep>>, usize)>,
    _slot: Slot,
}

impl Wire {
    fn new(tcp: TcpStream, write_timeout: Duration, slot: Slot) -> Self {
        Self { tcp, write_timeout, stalled: None, linger: Arc::default(), lingering: None, _slot: slot }
    }

    /// Passes a write's outcome on; turns one that waits for too long into an error.
    fn watch<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stalled = None;
            return outcome;
        }
        let write_timeout = self.write_timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(write_timeout)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes no more of the answer")))
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.tcp).poll_write(cx, buf);
        self.watch(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.tcp).poll_write_vectored(cx, bufs);
        self.watch(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.lingering.is_none() {
            ready!(Pin::new(&mut this.tcp).poll_shutdown(cx))?;
            if !this.linger.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
        }
        let (patience, left) =
            this.lingering.get_or_insert_with(|| (Box::pin(tokio::time::sleep(LINGER)), LINGER_BYTES_MAX));
        let mut scrap = [0u8; 16 * 1024];
        loop {
            let mut buf = ReadBuf::new(&mut scrap);
            match Pin::new(&mut this.tcp).poll_read(cx, &mut buf) {
                Poll::Pending => {
                    ready!(patience.as_mut().poll(cx));
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Ok(())) if !buf.filled().is_empty() && buf.filled().len() < *left => {
                    *left -= buf.filled().len();
                    // A quick sender must not keep this thread.
                    if patience.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(Ok(()));
                    }
                }
                // Its end, an error, or enough.
                Poll::Ready(_) => return Poll::Ready(Ok(())),
            }
        }
    }
}
