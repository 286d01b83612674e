//! Both sides of a connection show that they know the nodes' credential, without saying it.
//!
//! The caller sends `MAGIC`, its node, its process and a random number; the called one a random number; then
//! each sends an HMAC-SHA256 of both numbers and of who calls whom, keyed with the credential. Nothing of it can be used
//! on another connection. What follows is not encrypted, as the engine's own calls on this port are not.
//!
//! Nodes hear of a rotated credential at different times. The caller shows the one that is in force for it; the called one
//! takes the one before too, for a while, and answers with the one that it was shown.

use std::io::ErrorKind;

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

/// The caller's side. Gives up to which number the called one has everything; `None` if it takes nothing yet.
pub(super) async fn call(
    socket: &mut TcpStream,
    ends: Ends,
    boot: u64,
    credential: &Secret,
) -> anyhow::Result<Option<u64>> {
    let caller_nonce = nonce();
    let mut hello = Vec::with_capacity(64);
    hello.extend_from_slice(MAGIC);
    hello.extend_from_slice(&ends.caller.to_be_bytes());
    hello.extend_from_slice(&boot.to_be_bytes());
    hello.extend_from_slice(&caller_nonce);
    socket.write_all(&hello).await?;
    let mut called_nonce = Nonce::default();
    socket.read_exact(&mut called_nonce).await.context("the other node hung up")?;
    let ours = proof(credential, b"caller", ends, &called_nonce, &caller_nonce)?.finalize().into_bytes();
    socket.write_all(&ours).await?;
    let mut theirs = [0; 32];
    let heard = socket.read_exact(&mut theirs).await;
    heard.context("the other node does not take this node's credential; do both have the same api.repl_token?")?;
    if proof(credential, b"called", ends, &called_nonce, &caller_nonce)?.verify_slice(&theirs).is_err() {
        bail!("whoever answers does not know the nodes' credential");
    }
    match socket.read_u64().await {
        Ok(has) => Ok(Some(has)),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error.into()),
    }
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

/// The called one's side, up to its own proof; what is missing is the number up to which it has everything. Any of the
/// `credentials` will do.
pub(super) async fn answer(
    socket: &mut TcpStream,
    caller: &Caller,
    called: NodeId,
    credentials: &[Secret],
) -> anyhow::Result<()> {
    if credentials.is_empty() {
        bail!("what nodes show each other is not known here yet");
    }
    let ends = Ends { caller: caller.node, called };
    let called_nonce = nonce();
    socket.write_all(&called_nonce).await?;
    let mut theirs = [0; 32];
    socket.read_exact(&mut theirs).await?;
    for credential in credentials {
        let proof = |side| proof(credential, side, ends, &called_nonce, &caller.caller_nonce);
        if proof(b"caller".as_slice())?.verify_slice(&theirs).is_ok() {
            socket.write_all(&proof(b"called")?.finalize().into_bytes()).await?;
            return Ok(());
        }
    }
    bail!("the caller does not know the nodes' credential")
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    const HAS: u64 = 7;

    /// What a caller with this credential gets from one that takes those, and what that one says.
    async fn meet(shown: &str, taken: &[&str]) -> (anyhow::Result<Option<u64>>, anyhow::Result<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let taken: Vec<Secret> = taken.iter().map(|text| Secret::new(*text)).collect();
        let called = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut magic = [0; MAGIC.len()];
            socket.read_exact(&mut magic).await?;
            let caller = hello(&mut socket).await?;
            assert_eq!((caller.node, caller.boot), (1, 42));
            answer(&mut socket, &caller, 2, &taken).await?;
            socket.write_u64(HAS).await?;
            Ok(())
        };
        let calling = async {
            let mut socket = TcpStream::connect(addr).await.unwrap();
            call(&mut socket, Ends { caller: 1, called: 2 }, 42, &Secret::new(shown)).await
        };
        tokio::join!(calling, called)
    }

    #[tokio::test]
    async fn both_sides_know_the_credential_or_nothing_is_said() {
        let (calling, called) = meet("right", &["right"]).await;
        assert_eq!(calling.unwrap(), Some(HAS));
        called.unwrap();
        let (calling, called) = meet("wrong", &["right"]).await;
        assert!(calling.unwrap_err().to_string().contains("api.repl_token"));
        assert!(called.unwrap_err().to_string().contains("does not know"));
    }

    #[tokio::test]
    async fn the_credential_before_a_rotation_is_taken_as_long_as_it_works() {
        assert_eq!(meet("old", &["new", "old"]).await.0.unwrap(), Some(HAS));
        assert!(meet("old", &["new"]).await.0.is_err());
    }

    #[tokio::test]
    async fn while_the_credential_is_not_known_nobody_gets_through() {
        for shown in ["", "not-known-yet", "right"] {
            let (calling, called) = meet(shown, &[]).await;
            assert!(calling.is_err() && called.is_err(), "{shown}");
        }
    }
}
