//! HashiCorp Vault and OpenBao: a KV engine, version 1 or 2, read with a token or a role.
//!
//! The requests are `vaultrs`' endpoints. They are sent by a client of ours ([`call`]) instead of the one that comes with
//! it, which reads answers of any length, follows redirects anywhere and puts answers into its errors. What is waited for
//! and what is wiped is decided here.

mod call;
mod config;
mod session;

use std::time::Duration;

use async_trait::async_trait;
use ciqadamq_core::{Secret, SecretName};
use serde::Deserialize;
use vaultrs::api::{kv1::requests::GetSecretRequest, kv2::requests::ReadSecretRequest};

use crate::error::ReadError;
use crate::http::{Answer, SetupError};
use crate::hyperion::AT_LEAST;
use crate::json::{Field, Fields, parse};
use crate::source::{Found, Pace, Source};
use crate::value::BadValue;

use call::Api;
pub use config::{Credential, KvVersion, Login, VaultConfig};
use session::Session;

/// What the answers should have been.
const KV: &str = "a vault's answer about a secret";

/// A Vault or an OpenBao.
pub struct Vault {
    config: VaultConfig,
    api: Api,
    session: Session,
}

impl Vault {
    /// A client of the vault; nothing is sent yet.
    pub fn new(config: VaultConfig) -> Result<Self, SetupError> {
        let api = Api::new(&config)?;
        let session = Session::new(config.login.clone());
        Ok(Self { config, api, session })
    }

    /// Reads with a token; once more with another one if that is refused and another can be had.
    async fn read_in_time(&self, name: SecretName) -> Result<Found, ReadError> {
        let token = self.session.token(&self.api).await?;
        match self.read_with(name, &token).await {
            Err(ReadError::Forbidden) if self.session.give_up(&token).await => {
                let token = self.session.token(&self.api).await?;
                self.read_with(name, &token).await
            }
            outcome => outcome,
        }
    }

    async fn read_with(&self, name: SecretName, token: &Secret) -> Result<Found, ReadError> {
        let (mount, path) = (self.config.mount.clone(), self.config.path(name));
        let answer = match self.config.kv_version {
            KvVersion::V1 => self.api.call(GetSecretRequest { mount, path }, Some(token)).await?,
            KvVersion::V2 => self.api.call(ReadSecretRequest { mount, path, version: None }, Some(token)).await?,
        };
        read_answer(name, self.config.kv_version, &self.config.field(name), &answer)
    }
}

#[async_trait]
impl Source for Vault {
    async fn read(&self, name: SecretName) -> Result<Found, ReadError> {
        // Login, read and a second try together.
        let timeout = self.config.timeout;
        tokio::time::timeout(timeout, self.read_in_time(name)).await.unwrap_or(Err(ReadError::Timeout(timeout)))
    }

    fn describe(&self, name: SecretName) -> String {
        let Self { config, api, .. } = self;
        let namespace = config.namespace.as_deref().map(|n| format!(", namespace {n}")).unwrap_or_default();
        let (mount, path, field) = (&config.mount, config.path(name), config.field(name));
        format!(
            "vault at {} (KV v{}, {mount}/{path}, field `{field}`{namespace})",
            api.base,
            config.kv_version.number()
        )
    }

    fn kind(&self) -> &'static str {
        "vault"
    }

    fn pace(&self) -> Pace {
        Pace { at_least: AT_LEAST, poll: self.config.poll }
    }

    async fn upkeep(&self) -> Option<Duration> {
        self.session.upkeep(&self.api).await
    }
}

#[derive(Deserialize)]
struct Enveloped<T> {
    data: Option<T>,
}

#[derive(Deserialize)]
struct Versioned {
    data: Option<Fields>,
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct Metadata {
    version: Option<Field>,
}

fn read_answer(name: SecretName, version: KvVersion, field: &str, answer: &Answer) -> Result<Found, ReadError> {
    if answer.status == 404 {
        // A version that was deleted is a 404 too.
        let no_mount = answer.body.windows(NO_HANDLER.len()).any(|window| window == NO_HANDLER);
        return if no_mount { Err(ReadError::NoMount) } else { Ok(Found::Absent) };
    }
    answer.check_status()?;
    let (fields, version) = match version {
        KvVersion::V1 => (parse::<Enveloped<Fields>>(&answer.body, KV)?.data, None),
        KvVersion::V2 => {
            let inner = parse::<Enveloped<Versioned>>(&answer.body, KV)?.data.ok_or(ReadError::Nonsense(KV))?;
            let version = inner.metadata.and_then(|metadata| metadata.version).and_then(Field::into_version);
            (inner.data, version)
        }
    };
    let mut fields = fields.ok_or(ReadError::Nonsense(KV))?;
    let value = fields.remove(field).ok_or(BadValue::Missing)?;
    Ok(Found::Value { secret: value.into_secret(name)?, version })
}

const NO_HANDLER: &[u8] = b"no handler for route";

#[cfg(test)]
mod tests {
    use super::*;
    use SecretName::ApiToken;

    fn read(version: KvVersion, status: u16, body: &str) -> Result<Found, ReadError> {
        let answer = Answer { status, retry_after: None, body: body.as_bytes().to_vec().into() };
        read_answer(ApiToken, version, "value", &answer)
    }

    #[test]
    fn both_versions_of_the_engine_are_understood() {
        let v2 = r#"{"request_id":"x","data":{"data":{"value":"token-0123456789","n":1},"metadata":{"version":7}},"warnings":null}"#;
        let Ok(Found::Value { secret, version }) = read(KvVersion::V2, 200, v2) else { panic!() };
        assert_eq!((secret.expose(), version.as_deref()), (&b"token-0123456789"[..], Some("7")));
        let v1 = r#"{"data":{"value":"token-0123456789"}}"#;
        assert!(matches!(read(KvVersion::V1, 200, v1), Ok(Found::Value { version: None, .. })));
        let deleted = r#"{"data":{"data":null,"metadata":{"version":7,"deletion_time":"x"}}}"#;
        assert!(matches!(read(KvVersion::V2, 404, deleted), Ok(Found::Absent)));
        assert!(matches!(read(KvVersion::V2, 404, r#"{"errors":[]}"#), Ok(Found::Absent)));
        let no_mount = r#"{"errors":["no handler for route \"x/data/y\". route entry not found."]}"#;
        assert_eq!(read(KvVersion::V2, 404, no_mount).unwrap_err(), ReadError::NoMount);
    }

    #[test]
    fn garbage_is_an_error_that_repeats_nothing_of_it() {
        for body in [
            "",
            "{}",
            "5",
            "\"hunter2\"",
            "<html>hunter2</html>",
            r#"{"data":{}}"#,
            r#"{"data":null}"#,
            r#"{"data":{"data":{}}}"#,
            r#"{"data":{"data":{"other":"hunter2hunter2"}}}"#,
            r#"{"data":{"data":{"value":null}}}"#,
            r#"{"data":{"data":{"value":5}}}"#,
            r#"{"data":{"data":{"value":"hunter2 hunter2"}}}"#,
            r#"{"data":{"data":{"value":"hunter2hunter2"#,
        ] {
            let error = read(KvVersion::V2, 200, body).unwrap_err();
            assert_eq!(error.kind(), "nonsense", "{body}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
        assert_eq!(read(KvVersion::V2, 503, r#"{"errors":["Vault is sealed"]}"#).unwrap_err(), ReadError::Sealed);
        assert_eq!(read(KvVersion::V2, 403, r#"{"errors":["permission denied"]}"#).unwrap_err(), ReadError::Forbidden);
    }
}
