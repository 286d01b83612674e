//! What may be a secret's value: pure, and the same for every source.
//!
//! A vault, a proxy in front of it, or a template that was rendered without its data may answer with anything. What is
//! not plausible is refused here, so that it never takes the place of a good value, and never opens anything.

use ciqadamq_core::{Secret, SecretName};
use thiserror::Error;

/// Longest value in bytes.
pub const VALUE_BYTES_MAX: usize = 4096;
/// Shortest pepper in bytes.
pub const PEPPER_BYTES_MIN: usize = 16;
/// Shortest token in bytes.
pub const TOKEN_BYTES_MIN: usize = 16;

/// Tokens that nobody chose: they were copied from an example. In lower case.
pub const TOKEN_PLACEHOLDERS: &[&str] = &[
    "changeme",
    "change-me",
    "change_me",
    "changemechangeme",
    "change-me-please",
    "changeme-changeme",
    "your-secret-token",
    "your-token-here",
    "your-api-token",
    "replace-with-a-random-token",
    "replace-me-with-a-random-token",
    "insert-token-here",
];

/// The same for peppers.
pub const PEPPER_PLACEHOLDERS: &[&str] =
    &["changemechangeme", "change-me-please", "0123456789abcdef", "1234567890123456", "aaaaaaaaaaaaaaaa"];

/// What programs print when they have no value. In lower case.
const NOTHING: &[&str] =
    &["<no value>", "<nil>", "nil", "null", "(null)", "none", "undefined", "nan", "true", "false", "[object object]"];

/// Why a value is not usable. Never holds the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BadValue {
    /// nothing in it
    #[error("the value is empty")]
    Empty,
    /// more than [`VALUE_BYTES_MAX`] bytes
    #[error("the value is longer than {VALUE_BYTES_MAX} bytes")]
    TooLong,
    /// fewer bytes than it takes that nobody guesses it
    #[error("the value has fewer than {0} characters")]
    TooShort(usize),
    /// would not survive in a header
    #[error("the value has a space or a character that is not printable ASCII")]
    Characters,
    /// not UTF-8, a control character, or space around it
    #[error("the value has a control character, or space around it, or is no text")]
    Text,
    /// `<no value>`, `null` and the like
    #[error("the value is what a program prints when it has none (`<no value>`, `null`)")]
    Nothing,
    /// HTML, or a template that nobody filled in
    #[error("the value is markup or an unfilled template")]
    Markup,
    /// copied from an example
    #[error("the value is a placeholder that anybody can guess")]
    Placeholder,
    /// not a string
    #[error("the value is {0}, not a string")]
    Type(&'static str),
    /// no such field
    #[error("the answer has no value")]
    Missing,
}

/// Judges a value. One line end at its end is left out: files have it, and so have values that were piped into a vault.
pub fn check(name: SecretName, raw: &[u8]) -> Result<Secret, BadValue> {
    let value = raw.strip_suffix(b"\n").map_or(raw, |rest| rest.strip_suffix(b"\r").unwrap_or(rest));
    let text = std::str::from_utf8(value).map_err(|_| BadValue::Text)?;
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(BadValue::Empty);
    }
    if value.len() > VALUE_BYTES_MAX {
        return Err(BadValue::TooLong);
    }
    let is_one_of = |list: &[&str]| list.iter().any(|entry| trimmed.eq_ignore_ascii_case(entry));
    if is_one_of(NOTHING) {
        return Err(BadValue::Nothing);
    }
    if is_markup(trimmed) {
        return Err(BadValue::Markup);
    }
    let placeholders = match name {
        SecretName::Pepper => PEPPER_PLACEHOLDERS,
        SecretName::ApiToken | SecretName::ReplToken => TOKEN_PLACEHOLDERS,
    };
    if is_one_of(placeholders) {
        return Err(BadValue::Placeholder);
    }
    match name {
        SecretName::Pepper if text.chars().any(char::is_control) || text != trimmed => Err(BadValue::Text),
        SecretName::Pepper if text.len() < PEPPER_BYTES_MIN => Err(BadValue::TooShort(PEPPER_BYTES_MIN)),
        SecretName::Pepper => Ok(Secret::new(value)),
        // A token stands in a header.
        SecretName::ApiToken | SecretName::ReplToken if !value.iter().all(u8::is_ascii_graphic) => {
            Err(BadValue::Characters)
        }
        SecretName::ApiToken | SecretName::ReplToken if text.len() < TOKEN_BYTES_MIN => {
            Err(BadValue::TooShort(TOKEN_BYTES_MIN))
        }
        SecretName::ApiToken | SecretName::ReplToken => Ok(Secret::new(value)),
    }
}

fn is_markup(text: &str) -> bool {
    let wrapped = |open: &str, close: &str| text.starts_with(open) && text.ends_with(close);
    let tag = text
        .strip_prefix('<')
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '!' || c == '?'));
    tag || wrapped("{{", "}}") || wrapped("${", "}") || wrapped("<%", "%>")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use SecretName::{ApiToken, Pepper, ReplToken};

    #[test]
    fn garbage_is_refused_for_every_secret() {
        for (bad, why) in [
            ("", BadValue::Empty),
            ("\n", BadValue::Empty),
            (" \t\r\n", BadValue::Empty),
            ("<no value>", BadValue::Nothing),
            ("NULL\n", BadValue::Nothing),
            ("undefined", BadValue::Nothing),
            ("<!DOCTYPE html><html><body>it works</body></html>", BadValue::Markup),
            ("<html>\n<h1>503</h1>\n</html>", BadValue::Markup),
            ("<?xml version=\"1.0\"?>", BadValue::Markup),
            ("{{ with secret \"ciqada\" }}{{ end }}", BadValue::Markup),
            ("${API_TOKEN_FROM_SOMEWHERE}", BadValue::Markup),
            ("ChangeMeChangeMe", BadValue::Placeholder),
        ] {
            for name in [ApiToken, Pepper, ReplToken] {
                assert_eq!(check(name, bad.as_bytes()).unwrap_err(), why, "{name}: {bad:?}");
            }
        }
        assert_eq!(check(ApiToken, &vec![b'x'; 4097]).unwrap_err(), BadValue::TooLong);
        assert_eq!(check(Pepper, b"\xff\xfe0123456789abcdefgh").unwrap_err(), BadValue::Text);
    }

    #[test]
    fn a_token_fits_into_a_header_and_neither_it_nor_a_pepper_is_short() {
        for bad in ["two words", "a\nb", "é", "tab\t"] {
            assert_eq!(check(ApiToken, bad.as_bytes()).unwrap_err(), BadValue::Characters, "{bad:?}");
        }
        for name in [ApiToken, Pepper, ReplToken] {
            assert_eq!(check(name, b"0f8a-0f8a-0f8a-\n").unwrap_err(), BadValue::TooShort(16), "{name}");
            assert_eq!(check(name, b"0f8a-0f8a-0f8a-0\n").unwrap().len(), 16, "{name}");
        }
        assert_eq!(check(Pepper, b" 0123456789abcdef0").unwrap_err(), BadValue::Text);
        assert_eq!(check(Pepper, b"a pepper may have spaces").unwrap().expose(), b"a pepper may have spaces");
        assert_eq!(check(ReplToken, &[b'x'; 4096]).unwrap().len(), 4096);
    }

    #[test]
    fn one_line_end_is_left_out() {
        for raw in ["token-0123456789", "token-0123456789\n", "token-0123456789\r\n"] {
            assert_eq!(check(ApiToken, raw.as_bytes()).unwrap().expose(), b"token-0123456789");
        }
        assert!(check(ApiToken, b"token-0123456789\n\n").is_err());
    }

    proptest! {
        #[test]
        fn what_is_accepted_can_be_used(raw in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(token) = check(ApiToken, &raw) {
                prop_assert!(token.len() >= TOKEN_BYTES_MIN && token.expose().iter().all(u8::is_ascii_graphic));
            }
            if let Ok(pepper) = check(Pepper, &raw) {
                prop_assert!(pepper.len() >= PEPPER_BYTES_MIN);
            }
        }
    }
}
