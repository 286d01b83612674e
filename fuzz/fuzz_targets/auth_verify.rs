//! Password hashes and fast verifiers.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/ciqadamq-auth/src/fast.rs"]
mod fast;
#[allow(dead_code)]
#[path = "../../crates/ciqadamq-auth/src/phc.rs"]
mod phc;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use argon2::password_hash::{PasswordHash as Phc, PasswordVerifier};
use argon2::{Argon2, Params};
use ciqadamq_core::{PasswordHash, Revision, Secret, User, UserId, Username};
use libfuzzer_sys::fuzz_target;

static FAST: LazyLock<fast::FastVerdicts> = LazyLock::new(|| {
    let dir = std::env::temp_dir().join(format!("ciqadamq-fuzz-{}", std::process::id()));
    let pepper = Some(Secret::new("a pepper of the fuzzer"));
    fast::FastVerdicts::open(Duration::from_secs(60), pepper, &dir)
});

fn user(name: &str, valid_from: u64) -> Option<User> {
    Some(User {
        username: Username::new(name).ok()?,
        userid: UserId::new("u").ok()?,
        password: PasswordHash(String::new()),
        superuser: false,
        admin: false,
        disabled: false,
        revision: Revision(valid_from),
        valid_from: Revision(valid_from),
    })
}

fn verify(text: &str, password: &[u8]) {
    let checked = phc::check(text);
    phc::is_outdated(text, phc::HashParams::default());
    // Costly ones take time, not other ways through the code.
    let is_cheap = |phc: &Phc<'_>| {
        let within = |name: &str, max| phc.params.get_decimal(name).is_none_or(|value| value <= max);
        within("m", 256) && within("t", 2) && within("p", 4)
    };
    if !Phc::new(text).is_ok_and(|phc| is_cheap(&phc) && Params::try_from(&phc).is_ok_and(|p| p.m_cost() <= 256)) {
        return;
    }
    let verdict = phc::verify(text, password, &mut phc::Scratch::default());
    assert_eq!(checked.is_ok(), verdict.is_ok(), "{text:?}: {checked:?} {verdict:?}");
    if let (Ok(ours), Ok(parsed)) = (&verdict, Phc::new(text)) {
        let theirs = Argon2::default().verify_password(password, &parsed).is_ok();
        assert_eq!(*ours, theirs, "{text:?}");
    }
}

/// What was learned under an earlier revision is remembered, so each run has its own.
static REVISION: AtomicU64 = AtomicU64::new(0);

fn fast_verifier(name: &str, password: &[u8], other: &[u8]) {
    let revision = REVISION.fetch_add(2, Ordering::Relaxed);
    let (Some(learned), Some(later)) = (user(name, revision), user(name, revision + 1)) else { return };
    let (right, wrong) = (Secret::new(password), Secret::new(other));
    FAST.learn(&learned, &right);
    assert!(FAST.knows(&learned, &right));
    assert!(!FAST.knows(&later, &right), "a new revision knows the old password");
    assert_eq!(FAST.knows(&learned, &wrong), password == other);
    if let Some(namesake) = user(&format!("{name}x"), revision) {
        let mut shifted = b"x".to_vec();
        shifted.extend_from_slice(password);
        FAST.forget(namesake.username.as_str(), None);
        assert!(!FAST.knows(&namesake, &right) && !FAST.knows(&learned, &Secret::new(shifted)));
    }
    FAST.forget(name, Some(later.valid_from));
}

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(4, |b| *b == b'\n');
    let mut next = || parts.next().unwrap_or_default();
    let (phc, password, other, name) = (next(), next(), next(), next());
    if let Ok(phc) = std::str::from_utf8(phc) {
        verify(phc, password);
    }
    if let Ok(name) = std::str::from_utf8(name)
        && password.len() <= 512
    {
        fast_verifier(name, password, other);
    }
});
