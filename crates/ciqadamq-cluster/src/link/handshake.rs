//! Both sides of a connection show that they know the nodes' credential, without saying it.
//!
//! The caller sends `MAGIC`, its node, its process and a random number; the called one a random number; then
//! each sends an HMAC-SHA256 of both numbers and of who calls whom, keyed with the credential. Nothing of it can be used
//! on another connection. What follows is not encrypted, as the engine's own calls on this port are not.

use anyhow::{Context as _, bail};
use ciqadamq_core::{NodeId, Secret};
use hmac::{Hmac, Mac as _};
use rand::RngCore as _;
use sha2::Sha256;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::MAGIC;

type Nonce = [u8; 32];

/// The two sides.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub caller: NodeId,
    pub called: NodeId,
}

fn nonce() -> Nonce {
    let mut nonce = Nonce::default();
    rand::rng().fill_bytes(&mut nonce);
    nonce
}

fn proof(credential: &Secret, side: &[u8], ends: Ends, theirs: &Nonce, ours: &Nonce) -> anyhow::Result<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(credential.expose()).context("the credential is no key")?;
    for part in [MAGIC, side, &ends.caller.to_be_bytes(), &ends.called.to_be_bytes(), theirs, ours] {
        mac.update(part);
    }
    Ok(mac)
}

/// The caller's side. Gives up to which number the called one has everything.
pub(super) async fn call(socket: &mut TcpStream, ends: Ends, boot: u64, credential: &Secret) -> anyhow::Result<u64> {
    let caller_nonce = nonce();
    let mut hello = Vec::with_capacity(64);
    hello.extend_from_slice(MAGIC);
    hello.extend_from_slice(&ends.caller.to_be_bytes());
    hello.extend_from_slice(&boot.to_be_bytes());
    hello.extend_from_slice(&caller_nonce);
    socket.write_all(&hello).await?;
    let mut called_nonce = Nonce::default();
    socket.read_exact(&mut called_nonce).await?;
    let ours = proof(credential, b"caller", ends, &called_nonce, &caller_nonce)?.finalize().into_bytes();
    socket.write_all(&ours).await?;
    let mut theirs = [0; 32];
    socket.read_exact(&mut theirs).await.context("the other node refused; do both have the same api.repl_token?")?;
    if proof(credential, b"called", ends, &called_nonce, &caller_nonce)?.verify_slice(&theirs).is_err() {
        bail!("whoever answers does not know the nodes' credential");
    }
    Ok(socket.read_u64().await?)
}

/// Who called, before anything is proven.
pub(super) struct Caller {
    pub node: NodeId,
    pub boot: u64,
    caller_nonce: Nonce,
}

/// Reads what comes after the magic.
pub(super) async fn hello(socket: &mut TcpStream) -> anyhow::Result<Caller> {
    let (node, boot) = (socket.read_u64().await?, socket.read_u64().await?);
    let mut caller_nonce = Nonce::default();
    socket.read_exact(&mut caller_nonce).await?;
    Ok(Caller { node, boot, caller_nonce })
}

/// The called one's side, up to its own proof; what is missing is the number up to which it has everything.
pub(super) async fn answer(
    socket: &mut TcpStream,
    caller: &Caller,
    called: NodeId,
    credential: &Secret,
) -> anyhow::Result<()> {
    let ends = Ends { caller: caller.node, called };
    let called_nonce = nonce();
    socket.write_all(&called_nonce).await?;
    let mut theirs = [0; 32];
    socket.read_exact(&mut theirs).await?;
    if proof(credential, b"caller", ends, &called_nonce, &caller.caller_nonce)?.verify_slice(&theirs).is_err() {
        bail!("the caller does not know the nodes' credential");
    }
    let ours = proof(credential, b"called", ends, &called_nonce, &caller.caller_nonce)?.finalize().into_bytes();
    socket.write_all(&ours).await?;
    Ok(())
}
