//! The body of a REST request.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/ciqadamq-rest/src/json.rs"]
mod json;

/// As much of the API's error as its reader needs; the real one brings an HTTP server along.
#[allow(dead_code)]
mod error {
    #[derive(Debug)]
    pub(crate) struct ApiError {
        pub(crate) field: Option<String>,
        pub(crate) error: String,
    }

    impl ApiError {
        pub(crate) fn bad_request(error: impl Into<String>) -> Self {
            Self { field: None, error: error.into() }
        }
        pub(crate) fn field(field: impl Into<String>, error: impl Into<String>) -> Self {
            Self { field: Some(field.into()), error: error.into() }
        }
    }
}

use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    match json::parse_object(data) {
        Ok(mut object) => {
            let reference: Value = serde_json::from_slice(data).expect("accepted, so JSON");
            let fields = reference.as_object().expect("accepted, so an object");
            for (key, value) in fields {
                match value {
                    Value::String(text) => {
                        assert_eq!(object.string(key).expect("a string").as_deref(), Some(text.as_str()));
                    }
                    Value::Bool(flag) => assert_eq!(object.boolean(key).expect("a boolean"), Some(*flag)),
                    // Of any other type: refused by whoever asks for a string.
                    _ => assert!(object.string(key).is_err()),
                }
            }
            object.finish().expect("everything was taken");
        }
        Err(error) => {
            assert!(!error.error.is_empty());
            assert!(error.error.len() < 1024 && error.field.is_none_or(|field| field.len() < 1024));
        }
    }
});
