//! Deciding a login without argon2: the success cache and the fast verifier.
//!
//! Both are keyed by the record's `valid_from`, so they die when the password, the person or a flag is taken away, and
//! live on when only the hash parameters are upgraded.
//!
//! * The **cache** lives in memory for `cache_ttl`, under a key made at start.
//! * The **fast verifier** lives on disk, under the pepper: HMAC-SHA256 over user name, a separator, password, and the
//!   revision. It lets ten thousand devices come back after a restart without ten thousand argon2. Who reads the disk
//!   but not the pepper cannot guess against it.

use std::path::Path;
use std::time::Duration;

use ciqadamq_core::{Revision, Secret, User};
use hmac::{Hmac, Mac};
use moka::sync::Cache;
use sha2::Sha256;
use subtle::ConstantTimeEq;
use tracing::warn;

type Tag = [u8; 32];

/// Most successful logins remembered in memory.
const CACHED: u64 = 200_000;
/// Cache of the database of fast verifiers.
const VERIFIER_CACHE_BYTES: u64 = 8 << 20;
/// Fast verifiers need no fsync: a lost one costs one argon2.
const VERIFIER_FLUSH: Duration = Duration::from_secs(2);

fn tag(key: &Secret, user: &User, password: &Secret) -> Tag {
    #[expect(clippy::expect_used, reason = "HMAC takes a key of any length")]
    let mut mac = Hmac::<Sha256>::new_from_slice(key.expose()).expect("any key length");
    mac.update(user.username.as_str().as_bytes());
    // A user name holds no U+0000, so no two pairs of name and password give the same input.
    mac.update(&[0]);
    mac.update(password.expose());
    mac.update(&user.valid_from.0.to_be_bytes());
    mac.finalize().into_bytes().into()
}

/// What is known of earlier successful logins.
pub struct FastVerdicts {
    cache_key: Secret,
    cache: Option<Cache<Tag, ()>>,
    verifiers: Option<(Secret, sled::Db)>,
}

impl FastVerdicts {
    /// Opens the database of fast verifiers if there is a pepper. A database that cannot be opened is only a loss of
    /// speed, so it is reported and left aside.
    pub fn open(cache_ttl: Duration, pepper: Option<Secret>, path: &Path) -> Self {
        let verifiers = pepper.and_then(|pepper| {
            if let Err(error) = private_directory(path) {
                warn!(%error, path = %path.display(), "fast verifiers are off: their directory cannot be made");
                return None;
            }
            let config = sled::Config::new()
                .path(path)
                .cache_capacity(VERIFIER_CACHE_BYTES)
                .flush_every_ms(Some(VERIFIER_FLUSH.as_millis() as u64));
            match config.open() {
                Ok(db) => Some((pepper, db)),
                Err(error) => {
                    warn!(%error, path = %path.display(), "fast verifiers are off: the database does not open");
                    None
                }
            }
        });
        let cache =
            (!cache_ttl.is_zero()).then(|| Cache::builder().max_capacity(CACHED).time_to_live(cache_ttl).build());
        Self { cache_key: Secret::new(rand::random::<[u8; 32]>()), cache, verifiers }
    }

    /// Whether this login is known to be right. `false` means nothing: ask argon2.
    pub fn knows(&self, user: &User, password: &Secret) -> bool {
        if let Some(cache) = &self.cache
            && cache.contains_key(&tag(&self.cache_key, user, password))
        {
            return true;
        }
        let Some((pepper, db)) = &self.verifiers else { return false };
        match db.get(user.username.as_str()) {
            Ok(Some(stored)) => bool::from(stored.ct_eq(&entry(user.valid_from, &tag(pepper, user, password)))),
            Ok(None) => false,
            Err(error) => {
                warn!(%error, "fast verifier unreadable");
                false
            }
        }
    }

    /// Remembers that argon2 found this login right.
    pub fn learn(&self, user: &User, password: &Secret) {
        if let Some(cache) = &self.cache {
            cache.insert(tag(&self.cache_key, user, password), ());
        }
        if let Some((pepper, db)) = &self.verifiers
            && let Err(error) =
                db.insert(user.username.as_str(), &entry(user.valid_from, &tag(pepper, user, password))[..])
        {
            warn!(%error, "fast verifier not stored");
        }
    }

    /// Drops the verifier of a user whose record changed or went.
    pub fn forget(&self, username: &str, valid_from: Option<Revision>) {
        if let Some((_, db)) = &self.verifiers {
            let stale = |stored: &[u8]| valid_from.is_none_or(|v| !stored.starts_with(&v.0.to_be_bytes()));
            let result = db.fetch_and_update(username, |stored| stored.filter(|s| !stale(s)).map(<[u8]>::to_vec));
            if let Err(error) = result {
                warn!(%error, "stale fast verifier not removed");
            }
        }
    }

    /// Writes what is only in memory to disk.
    pub fn flush(&self) {
        if let Some((_, db)) = &self.verifiers
            && let Err(error) = db.flush()
        {
            warn!(%error, "fast verifiers not flushed");
        }
    }
}

/// For its owner alone: whoever had the pepper too could guess quickly against what lies there.
fn private_directory(path: &Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

fn entry(valid_from: Revision, tag: &Tag) -> [u8; 40] {
    let mut entry = [0; 40];
    entry[..8].copy_from_slice(&valid_from.0.to_be_bytes());
    entry[8..].copy_from_slice(tag);
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use ciqadamq_core::{PasswordHash, UserId, Username};

    fn user(name: &str, valid_from: u64) -> User {
        User {
            username: Username::new(name).unwrap(),
            userid: UserId::new("u").unwrap(),
            password: PasswordHash(String::new()),
            superuser: false,
            admin: false,
            disabled: false,
            revision: Revision(valid_from),
            valid_from: Revision(valid_from),
        }
    }

    fn pepper(text: &str) -> Option<Secret> {
        Some(Secret::new(text))
    }

    /// Opens what was closed a moment ago: sled lets go of its files in a thread of its own.
    fn reopen(pepper_text: &str, dir: &Path) -> FastVerdicts {
        let since = std::time::Instant::now();
        loop {
            let fast = FastVerdicts::open(Duration::ZERO, pepper(pepper_text), dir);
            if fast.verifiers.is_some() {
                return fast;
            }
            assert!(since.elapsed() < Duration::from_secs(10), "the database stays closed");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_verifier_survives_a_restart_and_dies_with_the_revision() {
        let dir = tempfile::tempdir().unwrap();
        let (right, wrong) = (Secret::new("pw"), Secret::new("no"));
        {
            let fast = FastVerdicts::open(Duration::ZERO, pepper("0123456789abcdef"), dir.path());
            assert!(!fast.knows(&user("a", 1), &right));
            fast.learn(&user("a", 1), &right);
            fast.flush();
        }
        let fast = reopen("0123456789abcdef", dir.path());
        assert!(fast.knows(&user("a", 1), &right));
        assert!(!fast.knows(&user("a", 1), &wrong));
        assert!(!fast.knows(&user("a", 2), &right));
        assert!(!fast.knows(&user("b", 1), &right));
        fast.forget("a", Some(Revision(1)));
        assert!(fast.knows(&user("a", 1), &right), "a change that left valid_from alone forgets nothing");
        fast.forget("a", None);
        assert!(!fast.knows(&user("a", 1), &right));
    }

    #[test]
    fn another_pepper_only_costs_an_argon2() {
        let dir = tempfile::tempdir().unwrap();
        {
            let fast = FastVerdicts::open(Duration::ZERO, pepper("0123456789abcdef"), dir.path());
            fast.learn(&user("a", 1), &Secret::new("pw"));
            fast.flush();
        }
        let fast = reopen("another pepper....", dir.path());
        assert!(!fast.knows(&user("a", 1), &Secret::new("pw")));
    }

    #[test]
    fn without_a_pepper_only_memory_remembers() {
        let dir = tempfile::tempdir().unwrap();
        let fast = FastVerdicts::open(Duration::from_secs(60), None, &dir.path().join("v"));
        fast.learn(&user("a", 1), &Secret::new("pw"));
        assert!(fast.knows(&user("a", 1), &Secret::new("pw")));
        assert!(!dir.path().join("v").exists());
    }

    #[test]
    fn name_and_password_do_not_run_into_each_other() {
        let key = Secret::new("k");
        assert_ne!(tag(&key, &user("ab", 1), &Secret::new("c")), tag(&key, &user("a", 1), &Secret::new("bc")));
    }
}
