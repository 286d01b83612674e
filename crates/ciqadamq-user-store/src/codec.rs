//! How records and keys look on disk.
//!
//! One tree holds the whole state, so that one sled batch changes all of it or nothing:
//!
//! | key | value |
//! | --- | --- |
//! | `a` | revision of the last applied command, 8 bytes big endian |
//! | `r` | how far the replicated log was applied, and its members: bytes that `raft` makes and reads |
//! | `u` username | version byte, then the record in postcard |

use ciqadamq_core::{PasswordHash, Revision, User, UserId, Username};
use serde::{Deserialize, Serialize};

/// Key of the last applied revision.
pub(crate) const APPLIED: &[u8] = b"a";

/// Key of the state of the replicated log.
pub(crate) const RAFT: &[u8] = b"r";

/// First byte of a record.
const RECORD_VERSION: u8 = 1;

const USER: u8 = b'u';

/// Version 1 of a record. Its fields never change order or type: a change is a new version with a type of its own.
#[derive(Serialize, Deserialize)]
struct RecordV1<'a> {
    userid: &'a str,
    password: &'a str,
    superuser: bool,
    admin: bool,
    disabled: bool,
    revision: u64,
    valid_from: u64,
}

/// Key of a record.
pub(crate) fn user_key(username: &Username) -> Vec<u8> {
    [&[USER], username.as_str().as_bytes()].concat()
}

/// The name in a record's key.
pub(crate) fn username_in(key: &[u8]) -> Result<Username, String> {
    let name = key.strip_prefix(&[USER]).ok_or("a key of unknown kind")?;
    let name = std::str::from_utf8(name).map_err(|_| "a user name that is not text")?;
    Username::new(name).map_err(|e| format!("user name `{}`: {e}", name.escape_debug()))
}

/// A record as bytes.
pub(crate) fn encode(user: &User) -> Result<Vec<u8>, String> {
    let record = RecordV1 {
        userid: user.userid.as_str(),
        password: &user.password.0,
        superuser: user.superuser,
        admin: user.admin,
        disabled: user.disabled,
        revision: user.revision.0,
        valid_from: user.valid_from.0,
    };
    postcard::to_extend(&record, vec![RECORD_VERSION]).map_err(|e| format!("record of `{}`: {e}", user.username))
}

/// A record from bytes. The error names the user and never shows the content.
pub(crate) fn decode(username: Username, bytes: &[u8]) -> Result<User, String> {
    let record = match bytes.split_first() {
        Some((&RECORD_VERSION, rest)) => match postcard::take_from_bytes::<RecordV1<'_>>(rest) {
            Ok((record, [])) => record,
            Ok(_) => return Err(format!("record of `{username}`: bytes left over")),
            Err(e) => return Err(format!("record of `{username}`: {e}")),
        },
        Some((version, _)) => return Err(format!("record of `{username}`: version {version} is not known")),
        None => return Err(format!("record of `{username}`: empty")),
    };
    let userid = UserId::new(record.userid).map_err(|e| format!("record of `{username}`: userid {e}"))?;
    Ok(User {
        username,
        userid,
        password: PasswordHash(record.password.to_owned()),
        superuser: record.superuser,
        admin: record.admin,
        disabled: record.disabled,
        revision: Revision(record.revision),
        valid_from: Revision(record.valid_from),
    })
}

/// A revision as bytes.
pub(crate) fn encode_revision(revision: Revision) -> [u8; 8] {
    revision.0.to_be_bytes()
}

/// A revision from bytes.
pub(crate) fn decode_revision(bytes: &[u8]) -> Result<Revision, String> {
    let bytes = bytes.try_into().map_err(|_| "the last revision is not 8 bytes long".to_owned())?;
    Ok(Revision(u64::from_be_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn user() -> User {
        User {
            username: Username::new("t0k3n").unwrap(),
            userid: UserId::new("u1").unwrap(),
            password: PasswordHash("$argon2id$secret".into()),
            superuser: true,
            admin: false,
            disabled: true,
            revision: Revision(7),
            valid_from: Revision(3),
        }
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        let user = user();
        let bytes = encode(&user).unwrap();
        assert_eq!(bytes[0], RECORD_VERSION);
        assert_eq!(decode(user.username.clone(), &bytes).unwrap(), user);
    }

    /// Databases in the field hold exactly these bytes.
    #[test]
    fn the_bytes_of_version_1_never_change() {
        let expected = b"\x01\x02u1\x10$argon2id$secret\x01\x00\x01\x07\x03";
        assert_eq!(encode(&user()).unwrap(), expected);
    }

    #[test]
    fn a_damaged_record_is_refused_and_its_hash_not_shown() {
        let user = user();
        let good = encode(&user).unwrap();
        let mut longer = good.clone();
        longer.push(0);
        let mut newer = good.clone();
        newer[0] = 9;
        for bytes in [&good[..good.len() - 1], &longer, &newer, &[]] {
            let text = decode(user.username.clone(), bytes).unwrap_err();
            assert!(text.contains("t0k3n") && !text.contains("argon2"), "{text}");
        }
    }

    #[test]
    fn a_key_names_its_user() {
        assert_eq!(username_in(&user_key(&user().username)), Ok(user().username));
        for key in [&b""[..], b"u", b"x1", b"u\xff", b"ua/b"] {
            assert!(username_in(key).is_err());
        }
    }
}
