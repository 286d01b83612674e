//! The REST API as a backend uses it.

use std::net::SocketAddr;

use serde_json::Value;

use crate::http::{Response, request};
use crate::wait::eventually;

/// One node's API with a token.
#[derive(Debug, Clone)]
pub struct Rest {
    /// where
    pub addr: SocketAddr,
    /// management token
    pub token: String,
}

impl Rest {
    /// A request with the token, and JSON if there is any.
    ///
    /// # Panics
    /// If nobody answers.
    #[track_caller]
    pub fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Response {
        let bearer = format!("Bearer {}", self.token);
        let body = body.map(|body| body.to_string().into_bytes());
        let mut headers = vec![("Authorization", bearer.as_str())];
        if body.is_some() {
            headers.push(("Content-Type", "application/json"));
        }
        request(self.addr, method, path, &headers, body.as_deref()).unwrap_or_else(|e| panic!("{method} {path}: {e}"))
    }

    /// GET
    #[track_caller]
    pub fn get(&self, path: &str) -> Response {
        self.call("GET", path, None)
    }

    /// POST
    #[track_caller]
    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.call("POST", path, Some(body))
    }

    /// PATCH
    #[track_caller]
    pub fn patch(&self, path: &str, body: &Value) -> Response {
        self.call("PATCH", path, Some(body))
    }

    /// DELETE
    #[track_caller]
    pub fn delete(&self, path: &str) -> Response {
        self.call("DELETE", path, None)
    }

    /// Changes a user.
    ///
    /// # Panics
    /// If that is refused.
    #[track_caller]
    pub fn change_user(&self, username: &str, change: &Value) {
        let response = self.patch(&user_path(username), change);
        assert!((200..300).contains(&response.status), "{change}: {} {}", response.status, response.text());
    }

    /// Deletes a user.
    ///
    /// # Panics
    /// If that is refused.
    #[track_caller]
    pub fn delete_user(&self, username: &str) {
        let response = self.delete(&user_path(username));
        assert_eq!(response.status, 204, "{}", response.text());
    }

    /// The session of a client id, if there is one.
    #[track_caller]
    pub fn session(&self, client_id: &str) -> Option<Value> {
        let response = self.get("/api/v1/sessions?limit=1000");
        assert_eq!(response.status, 200, "{}", response.text());
        let body = response.json();
        let sessions = body["sessions"].as_array().unwrap_or_else(|| panic!("no list of sessions: {body}"));
        sessions.iter().find(|session| session["clientid"] == client_id).cloned()
    }

    /// Waits until the session of a client id is there and offline.
    #[track_caller]
    pub fn wait_offline(&self, client_id: &str) -> Value {
        eventually(&format!("{client_id} is offline"), || self.session(client_id).filter(|s| s["online"] == false))
    }

    /// Waits until there is no session with that client id.
    #[track_caller]
    pub fn wait_gone(&self, client_id: &str) {
        eventually(&format!("{client_id} is gone"), || self.session(client_id).is_none().then_some(()));
    }

    /// The value of a metric, summed over the series that have all these `key="value"` labels.
    #[track_caller]
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let text = self.get("/metrics").text();
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .filter(|line| line.split(['{', ' ']).next() == Some(name))
            .filter(|line| labels.iter().all(|label| line.contains(label)))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }
}

/// The path of a user, percent-encoded.
pub(crate) fn user_path(username: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encoded = username.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") });
    format!("/api/v1/users/{}", encoded.collect::<String>())
}
