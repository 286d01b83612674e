//! A small client of the REST API.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ciqadamq_core::{Secret, SecretName, with_causes};
use ciqadamq_secrets::Found;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, StatusCode, Url};
use serde_json::Value;

use super::Failure;
use crate::cli::{ApiArgs, Global, reachable};
use crate::config::{self, Config};

/// In a path segment or a query everything else is encoded.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A write waits for a quorum.
const TIMEOUT: Duration = Duration::from_secs(60);
/// A token is short; a wrong file may be anything.
const TOKEN_BYTES_MAX: u64 = 4096;

/// One node's API and the token for it.
pub struct Api {
    base: String,
    token: Option<String>,
    client: reqwest::Client,
}

impl Api {
    /// Finds address and token: what the command line says, else the local configuration.
    pub fn open(global: &Global, args: &ApiArgs) -> Result<Self, Failure> {
        // With both given, a machine without a configuration, or with a broken one, will do.
        let local = match (&args.api, &args.token_file) {
            (Some(_), Some(_)) => None,
            _ => Some(local(global)?),
        };
        let base = match (&args.api, &local) {
            (Some(url), _) => url.clone(),
            (None, Some(local)) => base(local),
            (None, None) => return Err(Failure::Usage("give --api URL".into())),
        };
        let token = match (&args.token_file, &local) {
            (Some(file), _) => token_from(file)?,
            (None, Some(local)) => match management_token(local)? {
                Some(token) => String::from_utf8_lossy(token.expose()).into_owned(),
                None => token_from(&local.db.api_token_file())?,
            },
            (None, None) => return Err(Failure::Usage("give --token-file FILE".into())),
        };
        Self::new(&base, Some(token))
    }

    /// The same for what needs no token.
    pub fn open_without_token(global: &Global, url: Option<&str>) -> Result<Self, Failure> {
        match url {
            Some(url) => Self::new(url, None),
            None => Self::new(&base(&local(global)?), None),
        }
    }

    fn new(base: &str, token: Option<String>) -> Result<Self, Failure> {
        let url = Url::parse(base).map_err(|error| Failure::Usage(format!("--api `{base}`: {error}")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Failure::Usage(format!("--api `{base}`: give http://HOST:PORT or https://HOST:PORT")));
        }
        // The token goes to the node and to nobody in between, whatever http_proxy says.
        let client = reqwest::Client::builder()
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            // The token goes to the node that was named and nowhere else.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| Failure::Usage(format!("HTTP client cannot be set up: {error}")))?;
        Ok(Self { base: base.trim_end_matches('/').to_owned(), token, client })
    }

    /// Sends a request; the body of a good answer, `Null` if there is none.
    pub async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let mut request = self.client.request(method, format!("{}{path}", self.base));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let unreachable =
            |error: reqwest::Error| Failure::Unreachable(format!("{}: {}", self.base, with_causes(&error)));
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let text = response.text().await.map_err(unreachable)?;
        if !status.is_success() {
            return Err(refusal(status, &text));
        }
        if text.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_str(&text).map_err(|_| {
            Failure::Refused(format!("{} does not answer as a ciqadamq node does; check --api", self.base))
        })
    }
}

/// The local configuration.
fn local(global: &Global) -> Result<Config, Failure> {
    let loaded = config::load_values(&global.overrides(), &crate::official::names());
    Ok(loaded.map_err(|problems| Failure::Usage(problems.to_string()))?.config)
}

/// Where a node of this configuration has its API, for callers on its machine.
fn base(local: &Config) -> String {
    format!("http://{}", reachable(local.api.addr))
}

/// The token as a node of this configuration would find it; `None` if it makes its own.
fn management_token(local: &Config) -> Result<Option<Secret>, Failure> {
    let wrong = |error: &dyn std::fmt::Display| Failure::Usage(format!("management token: {error}; give --token-file"));
    let setup = crate::settings::secrets(local).map_err(|error| wrong(&error))?;
    let Some(source) = setup.source else { return Ok(setup.configured.api_token) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| wrong(&error))?;
    match (runtime.block_on(source.read(SecretName::ApiToken)), setup.configured.api_token) {
        (Ok(Found::Value { secret, .. }), _) => Ok(Some(secret)),
        (_, Some(configured)) => Ok(Some(configured)),
        (Ok(Found::Absent), None) => {
            let place = source.describe(SecretName::ApiToken);
            Err(Failure::Usage(format!("management token: {place} has none; give --token-file")))
        }
        (Err(error), None) => {
            let place = source.describe(SecretName::ApiToken);
            Err(Failure::Unreachable(format!("management token: {place} {error}; {}", error.remedy())))
        }
    }
}

/// One segment of a path, or one value of a query.
pub fn encode(text: &str) -> String {
    utf8_percent_encode(text, UNRESERVED).to_string()
}

fn refusal(status: StatusCode, text: &str) -> Failure {
    if status == StatusCode::UNAUTHORIZED {
        return Failure::Refused("the node does not take this token; give the right one with --token-file".into());
    }
    let body: Value = serde_json::from_str(text).unwrap_or_default();
    match body["error"].as_str() {
        Some(error) => Failure::Refused(error.to_owned()),
        None => Failure::Refused(format!("the node answers {status}; check --api")),
    }
}

fn token_from(file: &Path) -> Result<String, Failure> {
    let shown: PathBuf = file.into();
    let wrong = |text: String| Failure::Usage(format!("token file `{}`: {text}", shown.display()));
    let bytes = read_bounded(file, TOKEN_BYTES_MAX)
        .map_err(|error| wrong(format!("{error}; give --token-file, or run where the node's database is")))?;
    let text = String::from_utf8(bytes).map_err(|_| wrong("is no text".into()))?;
    match text.trim() {
        "" => Err(wrong("is empty".into())),
        token => Ok(token.to_owned()),
    }
}

/// A file's content, or an error if it is longer than `max`.
pub fn read_bounded(file: &Path, max: u64) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(file)?.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(std::io::Error::other(format!("is longer than {max} bytes")));
    }
    Ok(bytes)
}
