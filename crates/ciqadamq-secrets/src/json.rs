//! Values out of JSON answers: strings are wiped when dropped, other types are only named.

use std::collections::BTreeMap;
use std::fmt;

use ciqadamq_core::{Secret, SecretName};
use serde::de::{Deserialize, DeserializeOwned, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::error::ReadError;
use crate::value::{self, BadValue};

/// Any JSON value: a string as a secret, everything else as the name of its type.
#[derive(Debug)]
pub(crate) enum Field {
    Text(Secret),
    Count(u64),
    Other(&'static str),
}

/// An object of which any field may be the secret.
pub(crate) type Fields = BTreeMap<String, Field>;

impl Field {
    /// The value of a secret.
    pub(crate) fn into_secret(self, name: SecretName) -> Result<Secret, BadValue> {
        match self {
            Self::Text(text) => value::check(name, text.expose()),
            Self::Count(_) => Err(BadValue::Type("a number")),
            Self::Other(kind) => Err(BadValue::Type(kind)),
        }
    }

    /// Whether it is this very text.
    pub(crate) fn is_text(&self, text: &str) -> bool {
        matches!(self, Self::Text(own) if own.expose() == text.as_bytes())
    }

    /// A version, as a number or a string; for people, so it is cut and cleaned.
    pub(crate) fn into_version(self) -> Option<String> {
        match self {
            Self::Text(text) => {
                let text = String::from_utf8_lossy(text.expose()).into_owned();
                let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
                (text.len() <= 40 && text.chars().all(plain) && !text.is_empty()).then_some(text)
            }
            Self::Count(count) => Some(count.to_string()),
            Self::Other(_) => None,
        }
    }
}

/// Parses an answer; `what` says what it should have been.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8], what: &'static str) -> Result<T, ReadError> {
    // The parser's own message quotes the text.
    serde_json::from_slice(body).map_err(|_| ReadError::Nonsense(what))
}

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Field;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_str<E>(self, text: &str) -> Result<Field, E> {
                Ok(Field::Text(Secret::new(text)))
            }
            fn visit_string<E>(self, text: String) -> Result<Field, E> {
                Ok(Field::Text(Secret::new(text)))
            }
            fn visit_bool<E>(self, _: bool) -> Result<Field, E> {
                Ok(Field::Other("true or false"))
            }
            fn visit_i64<E>(self, _: i64) -> Result<Field, E> {
                Ok(Field::Other("a number"))
            }
            fn visit_u64<E>(self, count: u64) -> Result<Field, E> {
                Ok(Field::Count(count))
            }
            fn visit_f64<E>(self, _: f64) -> Result<Field, E> {
                Ok(Field::Other("a number"))
            }
            fn visit_unit<E>(self) -> Result<Field, E> {
                Ok(Field::Other("null"))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Field, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Field::Other("a list"))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Field, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Field::Other("an object"))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_string_can_be_a_secret() {
        for (json, kind) in [
            ("null", "null"),
            ("5", "a number"),
            ("-5", "a number"),
            ("1.5", "a number"),
            ("true", "true or false"),
            ("[\"x\"]", "a list"),
            ("{\"a\":{\"b\":[1]}}", "an object"),
        ] {
            let field: Field = parse(json.as_bytes(), "x").unwrap();
            assert_eq!(field.into_secret(SecretName::ApiToken).unwrap_err(), BadValue::Type(kind), "{json}");
        }
        let field: Field = parse(b"\"token-\\u0030123456789\"", "x").unwrap();
        assert_eq!(field.into_secret(SecretName::ApiToken).unwrap().expose(), b"token-0123456789");
        assert!(parse::<Field>(b"\"trunc", "x").is_err());
    }

    #[test]
    fn a_version_that_is_no_version_is_left_out() {
        let version = |json: &str| parse::<Field>(json.as_bytes(), "x").unwrap().into_version();
        assert_eq!(version("\"2026-11-30\""), Some("2026-11-30".into()));
        assert_eq!(version("\"a b\\n\""), None);
        assert_eq!(version("7"), Some("7".into()));
        assert_eq!(version("{}"), None);
    }
}
