//! hyperion-vault: `GET {VAULT_ADDR}/v1/secrets/{name}`, the name one percent-encoded segment; reads carry no token.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use ciqadamq_core::SecretName;
use percent_encoding::utf8_percent_encode;
use reqwest::header::{ACCEPT, HeaderValue};
use reqwest::{Method, Request, Url};

use crate::error::ReadError;
use crate::http::{Http, SetupError, UNRESERVED, base, parse_address};
use crate::json::{Fields, parse};
use crate::source::{Found, Pace, Source};
use crate::value::BadValue;

/// A vault that is asked too often locks the node out.
pub(crate) const AT_LEAST: Duration = Duration::from_secs(5);

/// A hyperion-vault.
pub struct Hyperion {
    http: Http,
    base: String,
    poll: Duration,
}

impl Hyperion {
    /// A client of the vault at `address`; nothing is sent yet.
    pub fn new(address: &str, timeout: Duration, poll: Duration, ca_file: Option<&Path>) -> Result<Self, SetupError> {
        Ok(Self { http: Http::new(timeout, ca_file)?, base: base(&parse_address(address)?), poll })
    }

    fn url(&self, name: SecretName) -> Result<Url, ReadError> {
        let url = format!("{}/v1/secrets/{}", self.base, utf8_percent_encode(name.as_str(), UNRESERVED));
        Url::parse(&url).map_err(|_| ReadError::Unreachable("its address is no URL".into()))
    }
}

#[async_trait]
impl Source for Hyperion {
    async fn read(&self, name: SecretName) -> Result<Found, ReadError> {
        let mut request = Request::new(Method::GET, self.url(name)?);
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        let answer = self.http.send(request).await?;
        if answer.status == 404 {
            return Ok(Found::Absent);
        }
        answer.check_status()?;
        read_answer(name, &answer.body)
    }

    fn describe(&self, name: SecretName) -> String {
        format!("hyperion-vault at {} (secret {name})", self.base)
    }

    fn kind(&self) -> &'static str {
        "hyperion-vault"
    }

    fn pace(&self) -> Pace {
        Pace { at_least: AT_LEAST, poll: self.poll }
    }
}

/// `{"name", "version", "value", ...}`; whatever else is in it is for others.
fn read_answer(name: SecretName, body: &[u8]) -> Result<Found, ReadError> {
    let mut fields: Fields = parse(body, "hyperion-vault's JSON object")?;
    // An answer about another secret must not become this one.
    if let Some(told) = fields.remove("name")
        && !told.is_text(name.as_str())
    {
        return Err(ReadError::Nonsense("about the secret that was asked for"));
    }
    let version = fields.remove("version").and_then(crate::json::Field::into_version);
    let value = fields.remove("value").ok_or(BadValue::Missing)?;
    Ok(Found::Value { secret: value.into_secret(name)?, version })
}

#[cfg(test)]
mod tests {
    use super::*;
    use SecretName::ApiToken;

    fn read(body: &str) -> Result<Found, ReadError> {
        read_answer(ApiToken, body.as_bytes())
    }

    #[test]
    fn the_name_is_one_encoded_segment_below_the_address() {
        let url = |address| {
            let wait = Duration::from_secs(1);
            Hyperion::new(address, wait, wait, None).unwrap().url(ApiToken).unwrap().to_string()
        };
        assert_eq!(url("http://vault:8200"), "http://vault:8200/v1/secrets/ciqada%2Fapi-token");
        assert_eq!(url("http://vault:8200/"), "http://vault:8200/v1/secrets/ciqada%2Fapi-token");
        assert_eq!(url("https://v/prefix/"), "https://v/prefix/v1/secrets/ciqada%2Fapi-token");
    }

    #[test]
    fn value_and_version_are_taken_and_the_rest_is_left() {
        let body =
            r#"{"name":"ciqada/api-token","version":3,"value":"token-0123456789\n","created_at":null,"x":{"y":[1]}}"#;
        let Ok(Found::Value { secret, version }) = read(body) else { panic!() };
        assert_eq!((secret.expose(), version.as_deref()), (&b"token-0123456789"[..], Some("3")));
        assert!(read(r#"{"value":"token-0123456789"}"#).is_ok());
    }

    #[test]
    fn garbage_is_an_error_that_repeats_nothing_of_it() {
        for body in [
            "{}",
            r#"{"value":null}"#,
            r#""""#,
            r#""hunter2hunter2""#,
            "5",
            r#"{"value":5}"#,
            r#"{"value":""}"#,
            r#"{"value":["hunter2hunter2"]}"#,
            r#"{"value":"hunter2 hunter2"}"#,
            r#"{"value":"hunter2hunter2"#,
            r#"{"name":"ciqada/pepper","value":"hunter2hunter2"}"#,
            r#"{"value":"hunter2hunter2"} trailing"#,
            "<html>hunter2</html>",
            "[]",
            "",
            "\u{0}",
        ] {
            let error = read(body).unwrap_err();
            assert_eq!(error.kind(), "nonsense", "{body}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
