//! The settings of official plugins: a file of the operator's, or built-in ones that are safe.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use ciqadamq_core::Secret;
use toml_edit::{DocumentMut, Item, Value};
use tracing::info;

use super::PLUGINS;
use crate::config::Config;

const HTTP_API: &str = "rmqtt-http-api";
const AUTH_JWT: &str = "rmqtt-auth-jwt";

/// The plugins that keep something on disk with built-in settings, and where: below the directory of the database.
const STORES: &[(&str, &str)] = &[("rmqtt-retainer", "retain"), ("rmqtt-session-storage", "session")];

/// The engine's own override of this one setting.
const HTTP_API_TOKEN_VARIABLE: &str = "RMQTT_PLUGIN_RMQTT_HTTP_API_HTTP_BEARER_TOKEN";

/// The file with the bearer token of rmqtt-http-api, next to the database.
pub const HTTP_API_TOKEN_FILE: &str = "http-api-token";

/// Problems in the settings of the plugins that start: the configuration key, and what is wrong.
pub fn check(config: &Config) -> Vec<(&'static str, String)> {
    let on = PLUGINS.iter().filter(|plugin| plugin.starts(config));
    on.filter_map(|plugin| Some(("plugins.enable", problem(config, plugin.name, plugin.needs_file)?))).collect()
}

fn problem(config: &Config, name: &str, needs_file: bool) -> Option<String> {
    let Some(path) = file_of(config, name) else {
        return needs_file.then(|| {
            format!("`{name}` does nothing useful without {name}.toml in plugins.dir; copy it from configs/plugins")
        });
    };
    let document = match read(&path) {
        Ok(document) => document,
        Err(error) => return Some(format!("`{name}`: {error:#}")),
    };
    let text = |key: &str| document.get(key).and_then(Item::as_str).unwrap_or_default();
    let path = path.display();
    if name == HTTP_API && text("http_bearer_token").len() < 16 && std::env::var_os(HTTP_API_TOKEN_VARIABLE).is_none() {
        return Some(format!(
            "`{name}`: `{path}` has no http_bearer_token of at least 16 characters, so anybody could steer the broker; set one \
             (openssl rand -hex 32), or remove the file: then one is made"
        ));
    }
    let by_key_file = text("encrypt") == "public-key";
    if name == AUTH_JWT && !by_key_file && text("hmac_secret").len() < 16 {
        return Some(format!(
            "`{name}`: `{path}` has no hmac_secret of at least 16 characters, so anybody could sign tokens; set one, or \
             encrypt = \"public-key\" and public_key"
        ));
    }
    None
}

/// The settings of every plugin that has no file of its own, by plugin name, for `plugins_config_map`.
///
/// `token` gives the token kept in a file and makes it at first use; it is asked only if rmqtt-http-api starts.
pub fn prepare(
    config: &Config,
    token: impl FnOnce(&Path) -> anyhow::Result<Secret>,
) -> anyhow::Result<HashMap<String, String>> {
    let mut settings = HashMap::new();
    for (name, below) in STORES.iter().filter(|(name, _)| starts(config, name) && file_of(config, name).is_none()) {
        let path = config.db.data_dir().join(below);
        private_dir(&path).with_context(|| format!("directory `{}` of {name}", path.display()))?;
    }
    let built_in = PLUGINS.iter().filter(|plugin| file_of(config, plugin.name).is_none());
    for plugin in built_in.filter(|plugin| plugin.name != HTTP_API) {
        if let Some(text) = defaults(plugin.name, &config.db.data_dir()) {
            settings.insert(plugin.name.to_owned(), text);
        }
    }
    if config.plugins.starts(HTTP_API, false) && file_of(config, HTTP_API).is_none() {
        let path = config.db.data_dir().join(HTTP_API_TOKEN_FILE);
        let token = token(&path).with_context(|| format!("bearer token of {HTTP_API} in `{}`", path.display()))?;
        let token = std::str::from_utf8(token.expose()).context("token file is not UTF-8")?;
        info!(path = %path.display(), "bearer token of rmqtt-http-api");
        settings.insert(HTTP_API.into(), http_api(token));
    }
    Ok(settings)
}

fn starts(config: &Config, name: &str) -> bool {
    PLUGINS.iter().any(|plugin| plugin.name == name && plugin.starts(config))
}

/// Makes a directory that only its owner may look into: the plugins would let everybody.
fn private_dir(path: &Path) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    match builder.create(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        result => result,
    }
}

/// `NAME.toml` in `plugins.dir`, if it is there.
fn file_of(config: &Config, name: &str) -> Option<PathBuf> {
    let path = config.plugins.dir.as_ref()?.join(format!("{name}.toml"));
    path.is_file().then_some(path)
}

fn read(path: &Path) -> anyhow::Result<DocumentMut> {
    let text = std::fs::read_to_string(path).with_context(|| format!("`{}` cannot be read", path.display()))?;
    // The parser's own text shows the line, which may hold a secret.
    text.parse::<DocumentMut>().map_err(|error| {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
        anyhow::anyhow!("`{}` line {line} is no valid TOML: {}", path.display(), error.message().replace('\n', "; "))
    })
}

/// Loopback and a token: the plugin's own defaults are every address and no token.
fn http_api(token: &str) -> String {
    format!("http_laddr = \"127.0.0.1:6060\"\nhttp_bearer_token = {}\n", Value::from(token))
}

/// `None`: the plugin's own defaults are fine, or it needs a file.
pub(super) fn defaults(name: &str, data: &Path) -> Option<String> {
    let path = |below: &str| Value::from(data.join(below).display().to_string()).to_string();
    let text = match name {
        // No retained_message_ttl: it would override the publisher's. How long without one is up to ciqadamq-expiry.
        "rmqtt-retainer" => format!(
            "max_retained_messages = 0\nmax_payload_size = \"1MB\"\n[storage]\ntype = \"sled\"\n\
             [storage.sled]\npath = {}\ncache_capacity = \"64MB\"\n",
            path("retain/{node}")
        ),
        "rmqtt-session-storage" => format!(
            "[storage]\ntype = \"sled\"\n[storage.sled]\npath = {}\ncache_capacity = \"64MB\"\n",
            path("session/{node}")
        ),
        // The plugin's own default is 3 GB.
        "rmqtt-message-storage" => "[storage]\ntype = \"ram\"\n[storage.ram]\ncache_capacity = \"256MB\"\n\
             cache_max_count = 1000000\nencode = true\n"
            .into(),
        "rmqtt-shared-subscription" => "strategy = \"round_robin\"\n".into(),
        "rmqtt-delayed" => "publish_max = 100000\npublish_immediate = true\n".into(),
        "rmqtt-p2p-messaging" => "mode = \"prefix\"\n".into(),
        "rmqtt-sys-topic" => "publish_qos = 1\npublish_interval = \"1m\"\n".into(),
        // Its own default allows everything to everybody, over our heads.
        "rmqtt-acl" => "rules = [[\"deny\", \"all\"]]\n".into(),
        _ => return None,
    };
    Some(text)
}
