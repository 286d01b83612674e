//! Where in a vault the secrets are, and how a node proves who it is.

use std::path::PathBuf;
use std::time::Duration;

use ciqadamq_core::{Secret, SecretName};

use crate::files::read_bounded;

/// Settings of a Vault or an OpenBao. Built by the launcher, which validates the values.
#[derive(Debug, Clone)]
pub struct VaultConfig {
    /// `http://HOST:PORT` or `https://HOST:PORT`
    pub address: String,
    /// a namespace, if there are any
    pub namespace: Option<String>,
    /// path of the KV engine
    pub mount: String,
    /// path of a secret in it; `{name}` stands for `api-token`, `pepper` or `repl-token`
    pub path: String,
    /// field with the value; `{name}` as above
    pub field: String,
    /// which KV engine
    pub kv_version: KvVersion,
    /// how the node logs in
    pub login: Login,
    /// for one secret, login included
    pub timeout: Duration,
    /// how often it is asked without a reason
    pub poll: Duration,
    /// certificates of the authority that the vault's comes from, PEM
    pub ca_file: Option<PathBuf>,
}

impl VaultConfig {
    pub(super) fn path(&self, name: SecretName) -> String {
        self.path.replace("{name}", name.short())
    }

    pub(super) fn field(&self, name: SecretName) -> String {
        self.field.replace("{name}", name.short())
    }
}

/// Version of the KV engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvVersion {
    /// one value a secret
    V1,
    /// counts versions
    V2,
}

impl KvVersion {
    pub(super) fn number(self) -> u8 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }
}

/// A credential for the vault, given or in a file. A file is read anew each time it is needed.
#[derive(Debug, Clone)]
pub enum Credential {
    /// the value
    Value(Secret),
    /// a file with it
    File(PathBuf),
}

impl Credential {
    /// The credential; blocks for a file.
    pub(super) fn get(&self) -> Result<Secret, String> {
        let secret = match self {
            Self::Value(secret) => secret.clone(),
            Self::File(path) => {
                let wrong = |why: String| format!("`{}`: {why}", path.display());
                read_bounded(path).map_err(|error| wrong(error.into()))?
            }
        };
        let text = secret.expose().trim_ascii();
        if text.is_empty() || !text.iter().all(u8::is_ascii_graphic) {
            let place = match self {
                Self::Value(_) => "a credential for the vault".to_owned(),
                Self::File(path) => format!("`{}`", path.display()),
            };
            return Err(format!("{place} is empty or has a character that is not printable ASCII"));
        }
        Ok(Secret::new(text))
    }
}

/// How the node proves who it is.
#[derive(Debug, Clone)]
pub enum Login {
    /// a token
    Token(Credential),
    /// AppRole
    AppRole {
        /// path of the auth method
        mount: String,
        /// role id
        role_id: Credential,
        /// secret id; `None` for roles that ask for none
        secret_id: Option<Credential>,
    },
    /// the service account of the pod
    Kubernetes {
        /// path of the auth method
        mount: String,
        /// role
        role: String,
        /// file with the service account's token
        jwt_file: PathBuf,
    },
}

impl Login {
    /// What it is called in logs.
    pub(super) fn method(&self) -> &'static str {
        match self {
            Self::Token(_) => "token",
            Self::AppRole { .. } => "approle",
            Self::Kubernetes { .. } => "kubernetes",
        }
    }
}
