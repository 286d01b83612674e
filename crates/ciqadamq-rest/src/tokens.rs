//! Who may call: bearer tokens, compared without telling how close a guess was.

use std::time::{Duration, Instant};

use ciqadamq_core::Secret;
use parking_lot::RwLock;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use thiserror::Error;

/// Longest token in bytes.
pub const TOKEN_BYTES_MAX: usize = 4096;
/// Shortest token in a file, in bytes; one that comes with the configuration was judged there.
pub(crate) const TOKEN_BYTES_MIN: usize = 16;

/// Which of the two credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credential {
    /// the token of operators and backends
    Management,
    /// the token the nodes use among themselves, for `/internal/*`
    Replication,
}

/// Why a token cannot be used. Never holds the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TokenError {
    /// nothing in it
    #[error("the token is empty; set one, or leave it out to have one made")]
    Empty,
    /// easily guessed
    #[error("the token has fewer than {TOKEN_BYTES_MIN} characters")]
    TooShort,
    /// longer than a header should be
    #[error("the token has more than {TOKEN_BYTES_MAX} bytes")]
    TooLong,
    /// would not survive in a header
    #[error(
        "the token has characters other than printable ASCII without spaces, which no Authorization header can carry"
    )]
    Characters,
}

/// A token as it is kept: its SHA-256. Digests have one length, so comparing them does not tell the token's length.
struct Slot {
    current: [u8; 32],
    /// the one before and when it stops working
    previous: Option<([u8; 32], Instant)>,
}

impl Slot {
    fn new(token: &Secret) -> Result<Self, TokenError> {
        check_token(token.expose())?;
        Ok(Self { current: digest(token.expose()), previous: None })
    }

    fn admits(&self, presented: &[u8; 32], now: Instant) -> bool {
        let current = self.current.ct_eq(presented);
        // Both are compared, whatever the first said.
        let previous = self
            .previous
            .as_ref()
            .map_or(0.into(), |(token, until)| token.ct_eq(presented) & u8::from(now < *until).into());
        bool::from(current | previous)
    }
}

/// What opens `/internal/*`.
enum Replication {
    /// a token of its own
    Own(Slot),
    /// the management token: there is no other
    Management,
    /// nothing: whether there is another is not known yet
    Closed,
}

/// The tokens in force. Shared by the API and by whoever rotates them.
///
/// In a cluster every node has its own copy; after a rotation the overlap covers the time until all have the new one.
pub struct Tokens {
    management: RwLock<Slot>,
    replication: RwLock<Replication>,
}

impl Tokens {
    /// Takes the management token, and the replication token if there is one. Without it `/internal/*` takes the
    /// management token.
    pub fn new(management: &Secret, replication: Option<&Secret>) -> Result<Self, TokenError> {
        let replication = match replication {
            Some(token) => Replication::Own(Slot::new(token)?),
            None => Replication::Management,
        };
        Ok(Self { management: RwLock::new(Slot::new(management)?), replication: RwLock::new(replication) })
    }

    /// Closes `/internal/*` until [`Tokens::replace`] or [`Tokens::open_with_management`]: whether there is a replication
    /// token is not known, and the holders of the management token must not profit from that.
    pub fn close_replication(&self) {
        *self.replication.write() = Replication::Closed;
    }

    /// There is no replication token: `/internal/*`, if it was closed, takes the management token.
    pub fn open_with_management(&self) {
        let mut place = self.replication.write();
        if matches!(*place, Replication::Closed) {
            *place = Replication::Management;
        }
    }

    /// Puts `new` in the place of a token. The one before keeps working for `overlap`, the one before that stops at
    /// once. The token that is already there changes nothing.
    pub fn replace(&self, credential: Credential, new: &Secret, overlap: Duration) -> Result<(), TokenError> {
        let mut slot = Slot::new(new)?;
        let take_over = |old: &Slot, slot: &mut Slot| {
            if bool::from(old.current.ct_eq(&slot.current)) {
                slot.previous = old.previous;
            } else {
                // A duration beyond the clock's range means no overlap rather than an endless one.
                slot.previous = Instant::now().checked_add(overlap).map(|until| (old.current, until));
            }
        };
        match credential {
            Credential::Management => {
                let mut place = self.management.write();
                take_over(&place, &mut slot);
                *place = slot;
            }
            Credential::Replication => {
                let mut place = self.replication.write();
                match &*place {
                    Replication::Own(old) => take_over(old, &mut slot),
                    // Other nodes may not have heard of the first replication token yet.
                    Replication::Management => take_over(&self.management.read(), &mut slot),
                    Replication::Closed => {}
                }
                *place = Replication::Own(slot);
            }
        }
        Ok(())
    }

    /// Whether `/internal/*` takes the management token.
    pub fn management_opens_internal(&self) -> bool {
        matches!(*self.replication.read(), Replication::Management)
    }

    /// By which token what `credential` guards is opened, for the audit.
    pub fn name(&self, credential: Credential) -> &'static str {
        match credential {
            Credential::Replication if !self.management_opens_internal() => "replication",
            _ => "management",
        }
    }

    /// Whether `presented` opens what `credential` guards.
    pub fn admits(&self, credential: Credential, presented: &[u8]) -> bool {
        let presented = digest(presented);
        let now = Instant::now();
        if credential == Credential::Replication {
            match &*self.replication.read() {
                Replication::Own(slot) => return slot.admits(&presented, now),
                Replication::Closed => return false,
                Replication::Management => {}
            }
        }
        self.management.read().admits(&presented, now)
    }
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens(redacted)")
    }
}

/// Whether these bytes can be a token at all.
pub(crate) fn check_token(token: &[u8]) -> Result<(), TokenError> {
    match token {
        [] => Err(TokenError::Empty),
        long if long.len() > TOKEN_BYTES_MAX => Err(TokenError::TooLong),
        token if !token.iter().all(u8::is_ascii_graphic) => Err(TokenError::Characters),
        _ => Ok(()),
    }
}

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use Credential::{Management, Replication};

    fn secret(text: &str) -> Secret {
        Secret::new(text)
    }

    #[test]
    fn only_the_whole_token_opens() {
        let tokens = Tokens::new(&secret("abc"), None).unwrap();
        assert!(tokens.admits(Management, b"abc"));
        for wrong in [&b""[..], b"ab", b"abcd", b"abd", b"ABC", b"abc "] {
            assert!(!tokens.admits(Management, wrong));
        }
    }

    #[test]
    fn the_management_token_opens_the_internal_routes_only_while_they_have_none_of_their_own() {
        let tokens = Tokens::new(&secret("m"), None).unwrap();
        assert!(tokens.admits(Replication, b"m") && tokens.management_opens_internal());
        let tokens = Tokens::new(&secret("m"), Some(&secret("r"))).unwrap();
        assert!(tokens.admits(Replication, b"r") && !tokens.admits(Replication, b"m"));
        assert!(!tokens.admits(Management, b"r"));
    }

    #[test]
    fn after_a_rotation_the_previous_token_works_for_the_overlap_and_the_one_before_does_not() {
        let tokens = Tokens::new(&secret("one"), None).unwrap();
        tokens.replace(Management, &secret("two"), Duration::from_secs(600)).unwrap();
        assert!(tokens.admits(Management, b"one") && tokens.admits(Management, b"two"));
        // Told the same again, the overlap neither ends nor starts anew.
        tokens.replace(Management, &secret("two"), Duration::ZERO).unwrap();
        assert!(tokens.admits(Management, b"one"));
        tokens.replace(Management, &secret("three"), Duration::ZERO).unwrap();
        assert!(!tokens.admits(Management, b"one") && !tokens.admits(Management, b"two"));
        assert!(tokens.admits(Management, b"three"));
    }

    #[test]
    fn while_it_is_not_known_whether_there_is_a_replication_token_nothing_opens_the_internal_routes() {
        let tokens = Tokens::new(&secret("m"), None).unwrap();
        tokens.close_replication();
        assert!(!tokens.admits(Replication, b"m") && !tokens.management_opens_internal());
        assert!(tokens.admits(Management, b"m"));
        tokens.open_with_management();
        assert!(tokens.admits(Replication, b"m"));
        tokens.close_replication();
        tokens.replace(Replication, &secret("r"), Duration::from_secs(600)).unwrap();
        assert!(tokens.admits(Replication, b"r") && !tokens.admits(Replication, b"m"));
        tokens.open_with_management();
        assert!(!tokens.admits(Replication, b"m"), "what is open with its own token stays so");
    }

    #[test]
    fn the_first_replication_token_leaves_other_nodes_the_overlap() {
        let tokens = Tokens::new(&secret("m"), None).unwrap();
        tokens.replace(Replication, &secret("r"), Duration::from_secs(600)).unwrap();
        assert!(tokens.admits(Replication, b"r") && tokens.admits(Replication, b"m"));
        tokens.replace(Replication, &secret("s"), Duration::ZERO).unwrap();
        assert!(!tokens.admits(Replication, b"r") && !tokens.admits(Replication, b"m"));
    }

    #[test]
    fn a_token_that_no_header_can_carry_is_refused() {
        for (bad, why) in [
            ("", TokenError::Empty),
            ("a b", TokenError::Characters),
            ("é", TokenError::Characters),
            ("a\n", TokenError::Characters),
        ] {
            assert_eq!(Tokens::new(&secret(bad), None).unwrap_err(), why);
        }
        assert_eq!(Tokens::new(&secret(&"x".repeat(4097)), None).unwrap_err(), TokenError::TooLong);
        let tokens = Tokens::new(&secret("good"), None).unwrap();
        assert!(tokens.replace(Management, &secret(""), Duration::ZERO).is_err());
        assert!(tokens.admits(Management, b"good"));
    }

    #[test]
    fn tokens_do_not_show_in_debug_output() {
        let tokens = Tokens::new(&secret("hunter2"), None).unwrap();
        assert_eq!(format!("{tokens:?}"), "Tokens(redacted)");
    }
}
