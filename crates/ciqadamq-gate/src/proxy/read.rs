//! Takes exactly the header from a socket, in whatever pieces it comes.

use std::io;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::parse::{self, V1_BYTES_MAX, V1_PREFIX, V2_ADDRESSES_MAX};
use super::{Announced, Malformed, V2_SIGNATURE};
use crate::metrics::Failure;

impl From<Malformed> for Failure {
    fn from(_: Malformed) -> Self {
        Self::ProxyHeader
    }
}

/// Reads a header of either version. What follows it stays in the socket. The caller sets the time limit.
pub(crate) async fn read_header(stream: &mut TcpStream) -> Result<Announced, Failure> {
    // Every header of either version is longer than the signature.
    let mut start = [0; V2_SIGNATURE.len()];
    let mut have = 0;
    while have < start.len() {
        have += some(stream.read(&mut start[have..]).await)?;
        let got = &start[..have];
        // A client that sends something else is told so now, not when its time is over.
        if !V2_SIGNATURE.starts_with(got) && !V1_PREFIX.iter().zip(got).all(|(a, b)| a == b) {
            return Err(Failure::ProxyHeader);
        }
    }
    if start == V2_SIGNATURE { read_v2(stream).await } else { read_v1(stream, start).await }
}

async fn read_v2(stream: &mut TcpStream) -> Result<Announced, Failure> {
    let mut head = [0; 4];
    exact(stream, &mut head).await?;
    let (len, addresses) = parse::v2_lengths(head)?;
    let mut block = [0; V2_ADDRESSES_MAX];
    exact(stream, &mut block[..addresses]).await?;
    // The rest are TLVs, up to 64 KiB of them: skipped without being kept.
    let mut rest = len - addresses;
    let mut skipped = [0; 256];
    while rest > 0 {
        let take = rest.min(skipped.len());
        rest -= some(stream.read(&mut skipped[..take]).await)?;
    }
    Ok(parse::v2_addresses(&block[..addresses])?)
}

async fn read_v1(stream: &mut TcpStream, start: [u8; V2_SIGNATURE.len()]) -> Result<Announced, Failure> {
    let mut line = [0; V1_BYTES_MAX];
    let mut have = start.len();
    line[..have].copy_from_slice(&start);
    while !line[..have].ends_with(b"\r\n") {
        let free = line.get_mut(have..).filter(|free| !free.is_empty()).ok_or(Failure::ProxyHeader)?;
        // Peek to find the end of the line, then take up to there and no more.
        let seen = some(stream.peek(free).await)?;
        let take = free[..seen].iter().position(|&b| b == b'\n').map_or(seen, |end| end + 1);
        exact(stream, &mut free[..take]).await?;
        have += take;
        if line[have - 1] == b'\n' && !line[..have].ends_with(b"\r\n") {
            return Err(Failure::ProxyHeader);
        }
    }
    Ok(parse::v1(&line[..have])?)
}

async fn exact(stream: &mut TcpStream, buf: &mut [u8]) -> Result<(), Failure> {
    stream.read_exact(buf).await.map(|_| ()).map_err(|_| Failure::Closed)
}

/// The bytes read, of which there must be some.
fn some(read: io::Result<usize>) -> Result<usize, Failure> {
    match read {
        Ok(0) | Err(_) => Err(Failure::Closed),
        Ok(n) => Ok(n),
    }
}
