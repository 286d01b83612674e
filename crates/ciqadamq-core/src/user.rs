//! Users and the names they go by.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest password accepted, in bytes. Any bytes are allowed; the whole value is compared.
pub const PASSWORD_BYTES_MAX: usize = 512;

/// Position of a change in the history of all users, counting up from 1; 0 is "before everything".
///
/// The same on every node: it is the index of the change in the replicated log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a name was not accepted. The text is meant for the caller of the API.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InvalidName {
    /// Empty or longer than allowed.
    #[error("must have 1 to {max} characters, has {len}")]
    Length {
        /// what it has
        len: usize,
        /// what it may have
        max: usize,
    },
    /// A character that is not allowed, at a byte position.
    #[error("{what} is not allowed (position {at})")]
    Character {
        /// the character, escaped
        what: String,
        /// byte offset
        at: usize,
    },
    /// `.` and `..` cannot stand in a path.
    #[error("must not be `.` or `..`")]
    DotName,
}

/// An MQTT login name: 1 to 128 printable ASCII characters without space, none of `/ \ % ? #`, not `.` or `..`.
///
/// The limits keep a name usable as one percent-encoded path segment.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Username(Arc<str>);

impl Username {
    /// Longest name in characters.
    pub const MAX: usize = 128;

    /// Checks and takes a name.
    pub fn new(name: &str) -> Result<Self, InvalidName> {
        if name.is_empty() || name.len() > Self::MAX {
            return Err(InvalidName::Length { len: name.chars().count(), max: Self::MAX });
        }
        if name == "." || name == ".." {
            return Err(InvalidName::DotName);
        }
        refuse_characters(name, |c| c.is_ascii_graphic() && !matches!(c, '/' | '\\' | '%' | '?' | '#'))?;
        Ok(Self(name.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The application's user id, which stands in topics: 1 to 64 of `A-Za-z0-9_-`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UserId(Arc<str>);

impl UserId {
    /// Longest id in characters.
    pub const MAX: usize = 64;

    /// Checks and takes an id.
    pub fn new(id: &str) -> Result<Self, InvalidName> {
        if id.is_empty() || id.len() > Self::MAX {
            return Err(InvalidName::Length { len: id.chars().count(), max: Self::MAX });
        }
        refuse_characters(id, |c| c.is_ascii_alphanumeric() || c == '_' || c == '-')?;
        Ok(Self(id.into()))
    }

    /// The id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn refuse_characters(name: &str, allowed: impl Fn(char) -> bool) -> Result<(), InvalidName> {
    match name.char_indices().find(|(_, c)| !allowed(*c)) {
        None => Ok(()),
        Some((at, c)) => Err(InvalidName::Character { what: format!("`{}`", c.escape_debug()), at }),
    }
}

macro_rules! string_like {
    ($name:ident) => {
        impl TryFrom<String> for $name {
            type Error = InvalidName;
            fn try_from(value: String) -> Result<Self, InvalidName> {
                Self::new(&value)
            }
        }
        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.0.to_string()
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}
string_like!(Username);
string_like!(UserId);

/// A password hash as a PHC string (`$argon2id$v=19$m=...`). Not printed: it is worth guessing against.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PasswordHash(pub String);

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PasswordHash(redacted)")
    }
}

/// One user as the directory keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// login name, unique
    pub username: Username,
    /// the person; several usernames may share one
    pub userid: UserId,
    /// how the password is verified
    pub password: PasswordHash,
    /// no access rule applies
    pub superuser: bool,
    /// may also subscribe the admin prefixes
    pub admin: bool,
    /// kept, but may not log in
    pub disabled: bool,
    /// last change of any field
    pub revision: Revision,
    /// Last change that took a right away (or created the user): sessions that logged in before it are over.
    pub valid_from: Revision,
}

impl User {
    /// Whether a session that logged in when the directory was at `login` may still act for this user.
    pub fn admits(&self, login: Revision) -> bool {
        !self.disabled && self.valid_from <= login
    }
}

/// One change, as told to observers.
#[derive(Debug, Clone)]
pub struct UserChange {
    /// when
    pub revision: Revision,
    /// who
    pub username: Username,
    /// the record afterwards; `None` after a deletion
    pub after: Option<Arc<User>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usernames_are_printable_ascii_that_fits_one_path_segment() {
        for good in
            ["a", "Alice", "+", "a+b", ".*", "al.ce", "{userid}", "~!@$^&*()_-=[]{}|;:'\",<>.", &"x".repeat(128)]
        {
            assert!(Username::new(good).is_ok(), "{good}");
        }
        for bad in ["", " ", "a b", "a/b", "a\\b", "%u", "a?b", "#", ".", "..", "ü", "a\u{0}", "a\n", &"x".repeat(129)]
        {
            assert!(Username::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn userids_are_one_plain_topic_level() {
        for good in ["u1", "A-Z_09", &"x".repeat(64)] {
            assert!(UserId::new(good).is_ok(), "{good}");
        }
        for bad in ["", "+", "#", "a/b", "a.b", "$x", "é", "a b", &"x".repeat(65)] {
            assert!(UserId::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_record_survives_serialisation_and_a_bad_name_does_not() {
        let user = User {
            username: Username::new("t0k3n").unwrap(),
            userid: UserId::new("u1").unwrap(),
            password: PasswordHash("$argon2id$x".into()),
            superuser: false,
            admin: true,
            disabled: false,
            revision: Revision(7),
            valid_from: Revision(3),
        };
        let text = serde_json::to_string(&user).unwrap();
        assert_eq!(serde_json::from_str::<User>(&text).unwrap(), user);
        assert!(serde_json::from_str::<User>(&text.replace("t0k3n", "a/b")).is_err());
    }

    #[test]
    fn a_hash_does_not_show_in_debug_output() {
        assert!(!format!("{:?}", PasswordHash("$argon2id$v=19$secret".into())).contains("secret"));
    }
}
