//! A real OpenBao server in development mode: in memory, on a free port, gone with the test.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http::{Response, request};
use crate::{eventually, free_addresses, programs, random_token};

/// A running server.
#[derive(Debug)]
pub struct OpenBao {
    /// a token that may do everything
    pub root: String,
    addr: SocketAddr,
    tls: bool,
    dir: TempDir,
    child: Child,
}

impl OpenBao {
    /// Starts one; `None` if it is not installed.
    ///
    /// # Panics
    /// If it does not get ready, or is not installed and `CIQADAMQ_REQUIRE_CLIENTS=1`.
    pub fn start() -> Option<Self> {
        Self::launch(false)
    }

    /// The same with TLS, and an authority of its own.
    ///
    /// # Panics
    /// As [`OpenBao::start`].
    pub fn start_tls() -> Option<Self> {
        Self::launch(true)
    }

    fn launch(tls: bool) -> Option<Self> {
        let mut command = programs::openbao()?;
        let dir = tempfile::Builder::new().prefix("openbao-").tempdir().unwrap();
        // It takes the next port too.
        let [addr, _] = free_addresses();
        let root = random_token();
        let log = File::create(dir.path().join("log")).unwrap();
        command.args(["server", if tls { "-dev-tls" } else { "-dev" }, "-dev-no-store-token"]);
        if tls {
            command.arg(format!("-dev-tls-cert-dir={}", dir.path().display()));
        }
        command.arg(format!("-dev-root-token-id={root}")).arg(format!("-dev-listen-address={addr}"));
        command.env("HOME", dir.path()).current_dir(dir.path());
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().unwrap();
        let bao = Self { root, addr, tls, dir, child };
        // The keys are printed when everything is up.
        eventually("OpenBao is up", || bao.log().contains("Root Token:").then_some(()));
        Some(bao)
    }

    /// What `VAULT_ADDR` is set to.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.addr)
    }

    /// The authority's certificate, with TLS.
    pub fn ca_file(&self) -> PathBuf {
        self.dir.path().join("vault-ca.pem")
    }

    /// A request with the root token.
    ///
    /// # Panics
    /// If it is refused, or with TLS.
    #[track_caller]
    pub fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let response = self.try_call(method, path, &[], body);
        assert!(response.status < 300, "{method} {path}: {} {}", response.status, response.text());
        if response.body.is_empty() { Value::Null } else { response.json() }
    }

    /// Whether it takes this now; a new engine needs a moment.
    #[track_caller]
    pub fn accepts(&self, path: &str, body: &Value) -> bool {
        self.try_call("POST", path, &[], body).status < 300
    }

    /// A request in a namespace.
    ///
    /// # Panics
    /// If it is refused.
    #[track_caller]
    pub fn call_in(&self, namespace: &str, method: &str, path: &str, body: &Value) {
        let response = self.try_call(method, path, &[("X-Vault-Namespace", namespace)], body);
        assert!(response.status < 300, "{method} {path}: {} {}", response.status, response.text());
    }

    #[track_caller]
    fn try_call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> Response {
        let mut all = vec![("X-Vault-Token", self.root.as_str())];
        all.extend(headers);
        let body = body.to_string();
        request(self.addr, method, &format!("/v1/{path}"), &all, Some(body.as_bytes())).unwrap()
    }

    /// Stores a value as `ciqada/{name}` in the KV engine, version 2, that is there from the start.
    #[track_caller]
    pub fn put(&self, name: &str, value: &str) {
        self.call("POST", &format!("secret/data/ciqada/{name}"), &json!({"data": {"value": value}}));
    }

    /// A policy that allows to read `path`, and everything below it.
    #[track_caller]
    pub fn allow_reading(&self, policy: &str, path: &str) {
        let rules = format!("path \"{path}/*\" {{ capabilities = [\"read\"] }}");
        self.call("PUT", &format!("sys/policies/acl/{policy}"), &json!({"policy": rules}));
    }

    /// An AppRole with that policy, whose tokens live that long (`"5s"`): role id and secret id.
    #[track_caller]
    pub fn app_role(&self, policy: &str, ttl: &str, max_ttl: &str) -> (String, String) {
        self.call("POST", "sys/auth/approle", &json!({"type": "approle"}));
        let role = json!({"token_policies": [policy], "token_ttl": ttl, "token_max_ttl": max_ttl});
        self.call("POST", "auth/approle/role/node", &role);
        let role_id = self.call("GET", "auth/approle/role/node/role-id", &json!({}))["data"]["role_id"].clone();
        let secret_id = self.call("POST", "auth/approle/role/node/secret-id", &json!({}))["data"]["secret_id"].clone();
        (role_id.as_str().unwrap().into(), secret_id.as_str().unwrap().into())
    }

    /// Seals it: it answers 503 from here on.
    #[track_caller]
    pub fn seal(&self) {
        self.call("PUT", "sys/seal", &json!({}));
    }

    /// Unseals it.
    ///
    /// # Panics
    /// If its key is not where it is printed.
    #[track_caller]
    pub fn unseal(&self) {
        let log = self.log();
        let key = log.lines().find_map(|line| line.trim().strip_prefix("Unseal Key:")).expect("an unseal key");
        self.call("PUT", "sys/unseal", &json!({"key": key.trim()}));
        // It takes requests when it is active again.
        eventually("OpenBao is unsealed", || {
            let answer = self.try_call("GET", "sys/mounts", &[], &json!({}));
            (answer.status == 200).then_some(())
        });
    }

    /// What it printed. In development mode the root token is in it.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for OpenBao {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
