//! Replicated commands, and records as they lie on disk.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/ciqadamq-user-store/src/codec.rs"]
mod codec;

use ciqadamq_core::{Command, Decision, Revision, User, Username, decide};
use libfuzzer_sys::fuzz_target;

fn record(data: &[u8]) {
    let Ok(name) = Username::new("name") else { return };
    if let Ok(user) = codec::decode(name.clone(), data) {
        let bytes = codec::encode(&user).expect("a record that was read can be written");
        assert_eq!(codec::decode(name, &bytes).as_ref(), Ok(&user));
    }
    if let Ok(name) = codec::username_in(data) {
        assert_eq!(codec::user_key(&name), data);
    }
    if let Ok(revision) = codec::decode_revision(data) {
        assert_eq!(codec::encode_revision(revision), data);
    }
}

/// A history of commands on one record.
fn history(mut data: &[u8]) {
    let mut record: Option<User> = None;
    let mut revision = 0;
    while let Ok((command, rest)) = postcard::take_from_bytes::<Command>(data) {
        data = rest;
        revision += 1;
        let again: Command = postcard::from_bytes(&postcard::to_stdvec(&command).expect("encodes")).expect("decodes");
        assert_eq!(again, command);
        let before = record.clone();
        match decide(before.as_ref(), &command, Revision(revision)) {
            Ok(Decision::Write(user)) => {
                assert!(user.valid_from <= user.revision && user.revision == Revision(revision));
                if before.is_none() || matches!(command, Command::Put { .. }) {
                    assert!((0..revision).all(|login| !user.admits(Revision(login))), "an older login is admitted");
                }
                if user.disabled {
                    assert!(!user.admits(Revision(revision)));
                }
                record = Some(user);
            }
            Ok(Decision::Remove) => {
                assert!(before.is_some() && matches!(command, Command::Delete { .. }));
                record = None;
            }
            Err(_) => {}
        }
        if revision > 64 {
            break;
        }
    }
}

fuzz_target!(|data: &[u8]| {
    record(data);
    history(data);
});
