//! Why a secret could not be read. Nothing that a server said is repeated here: it may be the secret.

use std::time::Duration;

use thiserror::Error;

use crate::value::BadValue;

/// Why a source gave no value. Completes the sentence "SOURCE ...".
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReadError {
    /// no connection, or it broke
    #[error("cannot be reached: {0}")]
    Unreachable(String),
    /// no whole answer in time
    #[error("does not answer within {} s", .0.as_secs_f32())]
    Timeout(Duration),
    /// 503
    #[error("is sealed or not in service (503)")]
    Sealed,
    /// 403
    #[error("does not let this node read it (403)")]
    Forbidden,
    /// the credential for the source itself is not accepted
    #[error("does not accept the login: {0}")]
    Login(&'static str),
    /// 429
    #[error("takes no more requests from this node for now (429)")]
    RateLimited {
        /// as long as it asks us to stay away
        retry_after: Option<Duration>,
    },
    /// any other status
    #[error("answers with status {0}")]
    Status(u16),
    /// 3xx to another host
    #[error("redirects to another host")]
    Redirect,
    /// nothing is mounted at the configured path
    #[error("has no KV engine at the configured mount")]
    NoMount,
    /// more than a secret can need
    #[error("answers with more than {0} bytes")]
    TooLarge(usize),
    /// not what the API says
    #[error("answers with something that is not {0}")]
    Nonsense(&'static str),
    /// a value, but no usable one
    #[error("gives no usable value: {0}")]
    Value(#[from] BadValue),
    /// a file of ours
    #[error("cannot be used: {0}")]
    File(String),
}

impl ReadError {
    /// A word for metrics: few, and fixed.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "unreachable",
            Self::Timeout(_) => "timeout",
            Self::Sealed => "sealed",
            Self::Forbidden | Self::Login(_) => "forbidden",
            Self::RateLimited { .. } => "rate_limited",
            Self::Status(_) | Self::Redirect | Self::NoMount => "refused",
            Self::TooLarge(_) | Self::Nonsense(_) | Self::Value(_) => "nonsense",
            Self::File(_) => "file",
        }
    }

    /// What the operator can do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Unreachable(_) | Self::Timeout(_) => "start it, or correct its address (VAULT_ADDR)",
            Self::Sealed => "unseal it",
            Self::Forbidden => "allow this node's address, or its token's policy, to read the secret",
            Self::Login(_) => "give the node a valid token or role",
            Self::RateLimited { .. } => "wait, and raise its limit for this node",
            Self::Status(_) => "look into its log, and check its address (VAULT_ADDR)",
            Self::Redirect => "set the address of the active server itself (VAULT_ADDR)",
            Self::NoMount => "correct secrets.vault.mount",
            Self::TooLarge(_) | Self::Nonsense(_) => {
                "check that its address (VAULT_ADDR) is the vault's and not another server's"
            }
            Self::Value(_) => "store a random value (openssl rand -hex 32)",
            Self::File(_) => "correct the file",
        }
    }
}
