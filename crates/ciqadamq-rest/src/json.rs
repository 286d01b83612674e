//! Strict reading of a JSON object: no key twice, none unknown, no `null` for a value, and every complaint names its
//! field.
//!
//! serde's derive would take an array for a struct and `null` for an absent option, and its messages quote the value
//! they complain about, which may be a password.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::error::ApiError;

/// How much of an unknown key is quoted back.
const QUOTED_CHARS_MAX: usize = 64;

/// The fields of an object that were not taken yet.
#[derive(Debug)]
pub(crate) struct Object {
    fields: Map<String, Value>,
    /// `user.` for an object inside another
    path: String,
}

/// Reads a whole body as one object.
pub(crate) fn parse_object(bytes: &[u8]) -> Result<Object, ApiError> {
    if bytes.starts_with(b"\xef\xbb\xbf") {
        return Err(ApiError::bad_request("the body begins with a byte order mark; send UTF-8 without one"));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|e| ApiError::bad_request(format!("the body is not UTF-8 at byte {}", e.valid_up_to())))?;
    if text.trim_ascii().is_empty() {
        return Err(ApiError::bad_request("the body is empty; send a JSON object"));
    }
    let duplicate = RefCell::new(None);
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = Strict(&duplicate).deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    if let Some(key) = duplicate.into_inner() {
        return Err(ApiError::field(quoted(&key), format!("`{}` stands there twice", quoted(&key))));
    }
    match value {
        Ok(Value::Object(fields)) => Ok(Object { fields, path: String::new() }),
        Ok(other) => Err(ApiError::bad_request(format!("a JSON object is expected, not {}", kind(&other)))),
        Err(e) => Err(ApiError::bad_request(format!("the body is not valid JSON: {e}"))),
    }
}

impl Object {
    fn take(&mut self, key: &str) -> (String, Option<Value>) {
        (format!("{}{key}", self.path), self.fields.remove(key))
    }

    /// A string, if the key is there.
    pub(crate) fn string(&mut self, key: &str) -> Result<Option<String>, ApiError> {
        match self.take(key) {
            (_, None) => Ok(None),
            (_, Some(Value::String(s))) => Ok(Some(s)),
            (path, Some(other)) => Err(wrong_type(path, "a string", &other)),
        }
    }

    /// A string that must be there.
    pub(crate) fn required_string(&mut self, key: &str) -> Result<String, ApiError> {
        self.string(key)?.ok_or_else(|| self.missing(key))
    }

    /// A boolean, if the key is there.
    pub(crate) fn boolean(&mut self, key: &str) -> Result<Option<bool>, ApiError> {
        match self.take(key) {
            (_, None) => Ok(None),
            (_, Some(Value::Bool(b))) => Ok(Some(b)),
            (path, Some(other)) => Err(wrong_type(path, "true or false", &other)),
        }
    }

    /// A whole number within bounds that must be there.
    pub(crate) fn required_number(&mut self, key: &str, min: u64, max: u64) -> Result<u64, ApiError> {
        match self.take(key) {
            (_, None) => Err(self.missing(key)),
            (path, Some(Value::Number(n))) => n.as_u64().filter(|n| (min..=max).contains(n)).ok_or_else(|| {
                ApiError::field(path.clone(), format!("`{path}` must be a whole number from {min} to {max}"))
            }),
            (path, Some(other)) => Err(wrong_type(path, "a number", &other)),
        }
    }

    /// An object that must be there.
    pub(crate) fn required_object(&mut self, key: &str) -> Result<Self, ApiError> {
        match self.take(key) {
            (_, None) => Err(self.missing(key)),
            (path, Some(Value::Object(fields))) => Ok(Self { fields, path: format!("{path}.") }),
            (path, Some(other)) => Err(wrong_type(path, "an object", &other)),
        }
    }

    /// The full name of a field of this object, for errors.
    pub(crate) fn path_of(&self, key: &str) -> String {
        format!("{}{key}", self.path)
    }

    /// Refuses what was not taken.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        match self.fields.keys().next() {
            None => Ok(()),
            Some(key) => {
                let path = quoted(&self.path_of(key));
                Err(ApiError::field(path.clone(), format!("`{path}` is not a known field")))
            }
        }
    }

    fn missing(&self, key: &str) -> ApiError {
        let path = self.path_of(key);
        ApiError::field(path.clone(), format!("`{path}` is missing"))
    }
}

fn wrong_type(path: String, expected: &str, actual: &Value) -> ApiError {
    let error = format!("`{path}` must be {expected}, not {}", kind(actual));
    ApiError::field(path, error)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn quoted(key: &str) -> String {
    key.chars().take(QUOTED_CHARS_MAX).flat_map(char::escape_debug).collect()
}

/// Builds a [`Value`] and remembers a key that came twice, at any depth.
#[derive(Clone, Copy)]
struct Strict<'a>(&'a RefCell<Option<String>>);

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(self)?;
            if object.insert(key.clone(), value).is_some() {
                self.0.borrow_mut().get_or_insert(key);
            }
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn refusal(body: &[u8]) -> String {
        format!("{:?}", parse_object(body).unwrap_err())
    }

    #[test]
    fn only_one_plain_object_is_taken() {
        for body in [
            &b""[..],
            b" \n",
            b"{",
            b"}",
            b"[]",
            b"null",
            b"true",
            b"1",
            b"\"x\"",
            b"{} {}",
            b"{}x",
            b"{\"a\":1,}",
            b"{'a':1}",
            b"{\"a\":NaN}",
            b"\xef\xbb\xbf{}",
            b"{\"a\":\"\xff\"}",
            b"\xff",
            br#"{"a":"\ud800"}"#,
            br#"{"a":"\udc00\ud800"}"#,
            br#"{"a":"\q"}"#,
            b"{\"a\":\"\n\"}",
            b"{\"a\":1e999}",
        ] {
            let refusal = parse_object(body).expect_err(&String::from_utf8_lossy(body));
            assert_eq!(refusal.status, 400);
        }
    }

    #[test]
    fn deep_nesting_is_refused_without_a_deep_stack() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(30_000), "]".repeat(30_000));
        assert!(refusal(deep.as_bytes()).contains("recursion limit"));
        let deep = "{\"a\":".repeat(10_000);
        assert!(refusal(deep.as_bytes()).contains("recursion limit"));
    }

    #[test]
    fn a_key_may_come_once_at_any_depth() {
        assert!(refusal(br#"{"a":1,"a":1}"#).contains("twice"));
        assert!(refusal(br#"{"a":1,"\u0061":2}"#).contains("twice"));
        assert!(refusal(br#"{"u":{"b":1,"b":2}}"#).contains("twice"));
        assert!(refusal(br#"{"u":[{"b":1,"b":2}]}"#).contains("twice"));
    }

    #[test]
    fn unknown_fields_and_null_are_named() {
        let mut object = parse_object(br#"{"a":null,"user":{"b":1}}"#).unwrap();
        assert!(format!("{:?}", object.string("a").unwrap_err()).contains("not null"));
        let inner = object.required_object("user").unwrap();
        assert!(format!("{:?}", inner.finish().unwrap_err()).contains("user.b"));
        object.finish().unwrap();
    }

    #[test]
    fn a_refusal_never_quotes_a_value() {
        for body in [
            br#"{"password":"hunter2""#.as_slice(),
            br#"{"password":"hunter2","password":"hunter2"}"#,
            br#"{"password":"hunter2\ud800"}"#,
        ] {
            assert!(!refusal(body).contains("hunter2"));
        }
        let mut object = parse_object(br#"{"superuser":"hunter2"}"#).unwrap();
        assert!(!format!("{:?}", object.boolean("superuser").unwrap_err()).contains("hunter2"));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_an_object_or_a_400(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
            if let Err(refusal) = parse_object(&bytes) {
                assert_eq!(refusal.status, 400);
            }
        }
    }
}
