//! The configuration file of a test's broker.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A value as it stands in TOML.
#[derive(Debug, Clone)]
pub struct Toml(pub String);

impl From<&str> for Toml {
    fn from(text: &str) -> Self {
        // A JSON string is a TOML string.
        Self(serde_json::Value::from(text).to_string())
    }
}

impl From<String> for Toml {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<bool> for Toml {
    fn from(value: bool) -> Self {
        Self(value.to_string())
    }
}

impl From<i64> for Toml {
    fn from(value: i64) -> Self {
        Self(value.to_string())
    }
}

impl<const N: usize> From<[&str; N]> for Toml {
    fn from(list: [&str; N]) -> Self {
        Self(format!("[{}]", list.map(|text| Self::from(text).0).join(", ")))
    }
}

/// What differs from the harness's defaults.
///
/// Those are: free ports on the loopback address, a database in the test's directory, a token, and cheap password hashes
/// with a brake that a test does not meet by accident.
#[derive(Debug, Clone, Default)]
pub struct BrokerOptions {
    pub(crate) keys: BTreeMap<String, Toml>,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) minimal: bool,
    pub(crate) own_token: bool,
    pub(crate) outside_token: Option<String>,
    pub(crate) uid: Option<u32>,
}

impl BrokerOptions {
    /// The harness's defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only listeners, API address, token and database: everything else is as an operator has it.
    #[must_use]
    pub fn minimal(mut self) -> Self {
        self.minimal = true;
        self
    }

    /// No token in the configuration: the broker makes one.
    #[must_use]
    pub fn own_token(mut self) -> Self {
        self.own_token = true;
        self
    }

    /// No token in the configuration: the broker gets this one from elsewhere.
    #[must_use]
    pub fn outside_token(mut self, token: &str) -> Self {
        self.outside_token = Some(token.into());
        self
    }

    /// Sets a key, such as `acl.on_deny`.
    #[must_use]
    pub fn set(mut self, key: &str, value: impl Into<Toml>) -> Self {
        self.keys.insert(key.into(), value.into());
        self
    }

    /// Adds arguments to the command line.
    #[must_use]
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    /// Adds an environment variable; nothing but `PATH` is inherited.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// The file, with `own` keys set unless the test did.
    pub(crate) fn render(&self, own: &[(&str, Toml)]) -> String {
        let mut keys = self.keys.clone();
        for (key, value) in own {
            keys.entry((*key).into()).or_insert_with(|| value.clone());
        }
        if !self.minimal {
            let cheap: [(&str, i64); 4] = [
                ("auth.argon2.m_cost", 64),
                ("auth.argon2.t_cost", 1),
                ("auth.brake_failures_per_user", 10_000),
                ("auth.brake_failures_per_address", 100_000),
            ];
            for (key, value) in cheap {
                keys.entry(key.into()).or_insert_with(|| value.into());
            }
        }
        let mut sections: BTreeMap<&str, Vec<(&str, &Toml)>> = BTreeMap::new();
        for (key, value) in &keys {
            let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
            sections.entry(section).or_default().push((name, value));
        }
        let mut text = String::new();
        for (section, keys) in sections {
            if !section.is_empty() {
                writeln!(text, "\n[{section}]").unwrap();
            }
            for (name, value) in keys {
                writeln!(text, "{name} = {}", value.0).unwrap();
            }
        }
        text
    }
}
