//! An HTTP client for servers that are trusted with secrets and with nothing else.
//!
//! Bounded: one deadline for connection, head and body together; at most [`ANSWER_BYTES_MAX`] of an answer; redirects only
//! within scheme, host and port that were configured. No proxy from the environment: the secret passes nobody in between.
//! Certificates are always verified.

use std::path::Path;
use std::time::Duration;

use ciqadamq_core::with_causes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::redirect::{Attempt, Policy};
use reqwest::{Certificate, Client, Request, Url};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::error::ReadError;

/// Longest answer that is read.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// In a segment of a path everything else is encoded (RFC 3986 section 2.3), the slash of a name above all.
pub(crate) const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// Redirects followed within the same server.
const REDIRECTS_MAX: usize = 3;
/// A wait that a server asks for is believed up to this.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// Why there is no client.
#[derive(Debug, Error)]
pub enum SetupError {
    /// the address is none
    #[error("{0}")]
    Address(String),
    /// the file with certificates
    #[error("`{path}`: {reason}")]
    CaFile {
        /// the file
        path: String,
        /// what is wrong
        reason: String,
    },
    /// the source was not compiled in
    #[error("this build is without HashiCorp Vault and OpenBao; build it with the feature `vault`")]
    NotInThisBuild,
    /// the library
    #[error("HTTP client cannot be set up: {0}")]
    Client(String),
}

/// An answer, read whole.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<Duration>,
    pub(crate) body: Zeroizing<Vec<u8>>,
}

/// The client. Clones share connections.
#[derive(Clone)]
pub(crate) struct Http {
    client: Client,
    timeout: Duration,
}

impl Http {
    pub(crate) fn new(timeout: Duration, ca_file: Option<&Path>) -> Result<Self, SetupError> {
        let mut builder = Client::builder()
            .no_proxy()
            .connect_timeout(timeout)
            .pool_max_idle_per_host(4)
            .pool_idle_timeout(Duration::from_secs(30))
            .redirect(Policy::custom(within_one_server))
            .user_agent(concat!("ciqadamq/", env!("CARGO_PKG_VERSION")));
        if let Some(path) = ca_file {
            let wrong = |reason: String| SetupError::CaFile { path: path.display().to_string(), reason };
            let pem = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
            let certificates = Certificate::from_pem_bundle(&pem).map_err(|_| wrong("is no PEM file".into()))?;
            if certificates.is_empty() {
                return Err(wrong("has no certificate".into()));
            }
            // Whoever names an authority means that one and no other.
            builder = builder.tls_built_in_root_certs(false);
            for certificate in certificates {
                builder = builder.add_root_certificate(certificate);
            }
        }
        let client = builder.build().map_err(|error| SetupError::Client(error.to_string()))?;
        Ok(Self { client, timeout })
    }

    /// Sends a request and reads the answer; both within the timeout.
    pub(crate) async fn send(&self, request: Request) -> Result<Answer, ReadError> {
        tokio::time::timeout(self.timeout, self.exchange(request))
            .await
            .unwrap_or(Err(ReadError::Timeout(self.timeout)))
    }

    async fn exchange(&self, request: Request) -> Result<Answer, ReadError> {
        let failed = |error: reqwest::Error| match error {
            e if e.is_redirect() => ReadError::Redirect,
            e if e.is_timeout() => ReadError::Timeout(self.timeout),
            e => ReadError::Unreachable(with_causes(&e.without_url())),
        };
        let mut response = self.client.execute(request).await.map_err(failed)?;
        let status = response.status().as_u16();
        if response.status().is_redirection() {
            return Err(ReadError::Redirect);
        }
        let retry_after = retry_after(response.headers());
        // Reserved at once: a buffer that grows leaves copies behind.
        let mut body = Zeroizing::new(Vec::with_capacity(ANSWER_BYTES_MAX));
        if response.content_length().is_some_and(|length| length > ANSWER_BYTES_MAX as u64) {
            return Err(ReadError::TooLarge(ANSWER_BYTES_MAX));
        }
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(ReadError::TooLarge(ANSWER_BYTES_MAX));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Answer { status, retry_after, body })
    }
}

impl Answer {
    /// What statuses mean that every vault uses alike; `Ok` for 2xx.
    pub(crate) fn check_status(&self) -> Result<(), ReadError> {
        match self.status {
            200..=299 => Ok(()),
            403 => Err(ReadError::Forbidden),
            429 => Err(ReadError::RateLimited { retry_after: self.retry_after }),
            503 => Err(ReadError::Sealed),
            status => Err(ReadError::Status(status)),
        }
    }
}

/// Reads an address of a vault. Nothing in it may be a secret, for it is shown.
pub fn parse_address(text: &str) -> Result<Url, SetupError> {
    let wrong = |why: &str| SetupError::Address(format!("{why}; give http://HOST:PORT or https://HOST:PORT"));
    let url = Url::parse(text).map_err(|_| wrong("is no URL"))?;
    match () {
        () if !matches!(url.scheme(), "http" | "https") => Err(wrong("is neither http nor https")),
        () if url.host_str().is_none_or(str::is_empty) => Err(wrong("names no host")),
        () if !url.username().is_empty() || url.password().is_some() => Err(wrong("has a user or a password in it")),
        () if url.query().is_some() || url.fragment().is_some() => Err(wrong("has a query or a fragment")),
        () => Ok(url),
    }
}

/// The address without a slash at its end, to append paths to.
pub(crate) fn base(url: &Url) -> String {
    url.as_str().trim_end_matches('/').to_owned()
}

fn within_one_server(attempt: Attempt<'_>) -> reqwest::redirect::Action {
    let origin = |url: &Url| (url.scheme().to_owned(), url.host_str().map(str::to_owned), url.port_or_known_default());
    let same = attempt.previous().first().is_some_and(|first| origin(first) == origin(attempt.url()));
    if same && attempt.previous().len() <= REDIRECTS_MAX { attempt.follow() } else { attempt.stop() }
}

/// Seconds only: a date depends on two clocks.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let secs: u64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(secs).min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_server_and_nothing_secret() {
        for good in ["http://127.0.0.1:8200", "https://vault.example/", "https://vault.example/prefix"] {
            assert!(!base(&parse_address(good).unwrap()).ends_with('/'));
        }
        for bad in
            ["", "vault:8200", "ftp://vault", "http://", "http://u:p@vault", "http://vault/?token=x", "http://v/#x"]
        {
            let error = parse_address(bad).unwrap_err().to_string();
            assert!(error.contains("http://HOST:PORT") && !error.contains("u:p"), "{bad}: {error}");
        }
    }

    #[test]
    fn a_wait_in_seconds_is_believed_within_reason() {
        let wait = |text: &str| retry_after(&HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]));
        assert_eq!(wait("7"), Some(Duration::from_secs(7)));
        assert_eq!(wait("999999999"), Some(RETRY_AFTER_MAX));
        assert_eq!(wait("Fri, 31 Dec 1999 23:59:59 GMT"), None);
        assert_eq!(wait("-1"), None);
    }
}
