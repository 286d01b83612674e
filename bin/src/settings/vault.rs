//! A HashiCorp Vault or an OpenBao as the configuration describes it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ciqadamq_core::Secret;
use ciqadamq_secrets::{Credential, KvVersion, Login, SetupError, Source, Vault, VaultConfig};

use crate::config::{Config, VaultAuth};

pub fn source(
    config: &Config,
    address: String,
    timeout: Duration,
    poll: Duration,
) -> Result<Arc<dyn Source>, SetupError> {
    Ok(Arc::new(Vault::new(vault_config(config, address, timeout, poll))?))
}

fn vault_config(config: &Config, address: String, timeout: Duration, poll: Duration) -> VaultConfig {
    let vault = &config.secrets.vault;
    let given = |value: &Option<Secret>, file: &Option<PathBuf>| match (value, file) {
        (Some(value), _) => Some(Credential::Value(value.clone())),
        (None, file) => file.clone().map(Credential::File),
    };
    // What must be there was checked; an empty value is refused by the vault.
    let or_empty = |credential: Option<Credential>| credential.unwrap_or(Credential::Value(Secret::new("")));
    let mount = |usual: &str| vault.auth_mount.clone().unwrap_or_else(|| usual.into());
    let login = match vault.auth {
        VaultAuth::Token => Login::Token(or_empty(given(&vault.token, &vault.token_file))),
        VaultAuth::AppRole => Login::AppRole {
            mount: mount("approle"),
            role_id: or_empty(given(&vault.role_id, &vault.role_id_file)),
            secret_id: given(&vault.secret_id, &vault.secret_id_file),
        },
        VaultAuth::Kubernetes => Login::Kubernetes {
            mount: mount("kubernetes"),
            role: vault.kubernetes_role.clone().unwrap_or_default(),
            jwt_file: vault.kubernetes_jwt_file.clone(),
        },
    };
    VaultConfig {
        address,
        namespace: vault.namespace.clone(),
        mount: vault.mount.clone(),
        path: vault.path.clone(),
        field: vault.field.clone(),
        kv_version: if vault.kv_version == 1 { KvVersion::V1 } else { KvVersion::V2 },
        login,
        timeout,
        poll,
        ca_file: config.secrets.ca_file.clone(),
    }
}
