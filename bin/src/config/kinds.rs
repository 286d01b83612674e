//! How one value is read from TOML or from an environment variable, and how it is shown again.
//!
//! A kind says what it accepts in its error, so that the operator needs no manual to correct a value.

use std::fmt::{Debug, Display};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use ciqadamq_core::Secret;
use ipnet::IpNet;
use toml_edit::Value;

use super::model::{DbUrl, LogFilter};

/// A value as it was given.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// in a file
    Toml(&'a Value),
    /// in an environment variable
    Text(&'a str),
}

impl<'a> Input<'a> {
    fn text(self, wanted: &str) -> Result<&'a str, String> {
        match self {
            Self::Text(text) => Ok(text),
            Self::Toml(Value::String(s)) => Ok(s.value()),
            Self::Toml(other) => Err(format!("expects {wanted}, has {}", a_type(other))),
        }
    }
}

fn a_type(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a string",
        Value::Integer(_) => "an integer",
        Value::Float(_) => "a float",
        Value::Boolean(_) => "a boolean",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::InlineTable(_) => "a table",
    }
}

/// A way to read and show values of one type.
pub trait Kind {
    /// the type
    type Out;
    /// Reads a value; the error says what is wrong and what would be right.
    fn read(&self, input: Input<'_>) -> Result<Self::Out, String>;
    /// The value as TOML; `None` if nothing is set.
    fn show(&self, value: &Self::Out) -> Option<String>;
}

/// `true` or `false`; in the environment also `1` and `0`.
pub struct Bool;

impl Kind for Bool {
    type Out = bool;
    fn read(&self, input: Input<'_>) -> Result<bool, String> {
        match input {
            Input::Toml(Value::Boolean(b)) => Ok(*b.value()),
            Input::Toml(other) => Err(format!("expects true or false, has {}", a_type(other))),
            Input::Text("true" | "1") => Ok(true),
            Input::Text("false" | "0") => Ok(false),
            Input::Text(other) => Err(format!("expects `true`, `1`, `false` or `0`, has `{}`", excerpt(other))),
        }
    }
    fn show(&self, value: &bool) -> Option<String> {
        Some(value.to_string())
    }
}

/// An integer within bounds, both included.
pub struct Int<T>(pub T, pub T);

impl<T: Copy + Display + PartialOrd + TryFrom<i64>> Kind for Int<T> {
    type Out = T;
    fn read(&self, input: Input<'_>) -> Result<T, String> {
        let Self(min, max) = self;
        let number = match input {
            Input::Toml(Value::Integer(i)) => Some(*i.value()),
            Input::Toml(other) => return Err(format!("expects an integer from {min} to {max}, has {}", a_type(other))),
            Input::Text(text) => text.parse().ok(),
        };
        let wrong = || match input {
            Input::Toml(value) => value.to_string().trim().to_owned(),
            Input::Text(text) => format!("`{}`", excerpt(text)),
        };
        number
            .and_then(|n| T::try_from(n).ok())
            .filter(|n| min <= n && n <= max)
            .ok_or_else(|| format!("expects an integer from {min} to {max}, has {}", wrong()))
    }
    fn show(&self, value: &T) -> Option<String> {
        Some(value.to_string())
    }
}

/// Bytes: an integer, or a string with a unit (`"512KB"`, `"1MB"`; 1 KB = 1024 bytes).
pub struct Size(pub u32, pub u32);

impl Kind for Size {
    type Out = u32;
    fn read(&self, input: Input<'_>) -> Result<u32, String> {
        let Self(min, max) = *self;
        let wanted = format!("a size from {} to {}, such as \"1MB\"", show_size(min), show_size(max));
        let bytes = match input {
            Input::Toml(Value::Integer(i)) => u64::try_from(*i.value()).ok(),
            other => parse_size(other.text(&wanted)?),
        };
        bytes
            .and_then(|n| u32::try_from(n).ok())
            .filter(|n| (min..=max).contains(n))
            .ok_or_else(|| format!("expects {wanted}"))
    }
    fn show(&self, value: &u32) -> Option<String> {
        Some(format!("\"{}\"", show_size(*value)))
    }
}

fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let factor = match text[digits..].trim().to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KB" | "KIB" => 1024,
        "M" | "MB" | "MIB" => 1024 * 1024,
        "G" | "GB" | "GIB" => 1024 * 1024 * 1024,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(factor)
}

fn show_size(bytes: u32) -> String {
    match bytes {
        n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{}MB", n >> 20),
        n if n >= 1 << 10 && n % (1 << 10) == 0 => format!("{}KB", n >> 10),
        n => format!("{n}B"),
    }
}

/// An IP address and a port.
pub struct Addr;

impl Kind for Addr {
    type Out = SocketAddr;
    fn read(&self, input: Input<'_>) -> Result<SocketAddr, String> {
        let wanted = "an IP address and a port, such as \"0.0.0.0:1883\" or \"[::]:1883\"";
        let text = input.text(wanted)?;
        text.parse().map_err(|_| format!("expects {wanted}, has `{}`", excerpt(text)))
    }
    fn show(&self, value: &SocketAddr) -> Option<String> {
        Some(format!("\"{value}\""))
    }
}

/// A value that may be left out or switched off with an empty string.
pub struct Opt<K>(pub K);

impl<K: Kind> Kind for Opt<K> {
    type Out = Option<K::Out>;
    fn read(&self, input: Input<'_>) -> Result<Self::Out, String> {
        match input {
            Input::Text("") => Ok(None),
            Input::Toml(Value::String(s)) if s.value().is_empty() => Ok(None),
            other => self.0.read(other).map(Some),
        }
    }
    fn show(&self, value: &Self::Out) -> Option<String> {
        value.as_ref().and_then(|value| self.0.show(value))
    }
}

/// A path, relative to the working directory.
pub struct FilePath;

impl Kind for FilePath {
    type Out = PathBuf;
    fn read(&self, input: Input<'_>) -> Result<PathBuf, String> {
        match input.text("a path")? {
            "" => Err("expects a path, is empty".into()),
            text if text.chars().any(char::is_control) => Err("expects a path, has a control character".into()),
            text => Ok(text.into()),
        }
    }
    fn show(&self, value: &PathBuf) -> Option<String> {
        Some(quote(&value.display().to_string()))
    }
}

/// Address of a vault: a URL without anything secret in it.
pub struct HttpServer;

impl Kind for HttpServer {
    type Out = String;
    fn read(&self, input: Input<'_>) -> Result<String, String> {
        let text = input.text("a URL, such as \"https://vault.example:8200\"")?;
        // The text is not repeated: somebody may have put a password into it.
        ciqadamq_secrets::parse_address(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
    }
    fn show(&self, value: &String) -> Option<String> {
        Some(quote(value))
    }
}

/// A path or a name in a vault; may hold `{name}`.
pub struct VaultPath;

impl Kind for VaultPath {
    type Out = String;
    fn read(&self, input: Input<'_>) -> Result<String, String> {
        let text = input.text("a path in the vault, such as \"ciqada/{name}\"")?;
        match ciqadamq_secrets::path_problem(text) {
            Some(problem) => Err(problem.into()),
            None => Ok(text.to_owned()),
        }
    }
    fn show(&self, value: &String) -> Option<String> {
        Some(quote(value))
    }
}

/// What the API takes as a token.
const SECRET_BYTES_MAX: usize = ciqadamq_secrets::value::VALUE_BYTES_MAX;

/// Something secret: a least length, and values that somebody copied from an example.
pub struct Hidden {
    /// in bytes
    pub min: usize,
    /// only printable ASCII without spaces
    pub graphic_only: bool,
    /// refused whatever their length, in lower case
    pub placeholders: &'static [&'static str],
}

impl Kind for Hidden {
    type Out = Secret;
    fn read(&self, input: Input<'_>) -> Result<Secret, String> {
        let text = input.text("a string")?;
        let lower = text.trim().to_ascii_lowercase();
        if self.placeholders.iter().any(|p| lower == *p) {
            return Err("is a placeholder that anybody can guess; choose a random one (openssl rand -hex 32)".into());
        }
        if text.len() < self.min {
            return Err(format!(
                "has {} characters, needs at least {}; choose a random one (openssl rand -hex 32)",
                text.len(),
                self.min
            ));
        }
        if text.len() > SECRET_BYTES_MAX {
            return Err(format!(
                "is longer than {SECRET_BYTES_MAX} bytes; 64 random ones are plenty (openssl rand -hex 32)"
            ));
        }
        if self.graphic_only && !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(
                "has a space or a character that is not printable ASCII; choose another (openssl rand -hex 32)".into(),
            );
        }
        if text.chars().any(|c| c.is_control()) || text != text.trim() {
            return Err("has a control character, or space around it; remove it".into());
        }
        Ok(Secret::new(text))
    }
    fn show(&self, _: &Secret) -> Option<String> {
        Some("\"(redacted)\"".into())
    }
}

/// One of a few words.
pub struct Choice<T: 'static>(pub &'static [(&'static str, T)]);

impl<T: Copy + PartialEq> Kind for Choice<T> {
    type Out = T;
    fn read(&self, input: Input<'_>) -> Result<T, String> {
        let words: Vec<String> = self.0.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        let wanted = words.join(" or ");
        let text = input.text(&wanted)?;
        let found = self.0.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| format!("expects {wanted}, has `{}`", excerpt(text)))
    }
    fn show(&self, value: &T) -> Option<String> {
        self.0.iter().find(|(_, v)| v == value).map(|(word, _)| format!("\"{word}\""))
    }
}

/// A list of strings; in the environment separated by commas.
pub struct List;

impl Kind for List {
    type Out = Vec<String>;
    fn read(&self, input: Input<'_>) -> Result<Vec<String>, String> {
        let wanted = "a list of strings, such as [\"a\", \"b\"]";
        match input {
            Input::Text(text) => Ok(text.split(',').map(|s| s.trim().to_owned()).filter(|s| !s.is_empty()).collect()),
            Input::Toml(Value::Array(list)) => list
                .iter()
                .map(|item| item.as_str().map(str::to_owned))
                .collect::<Option<_>>()
                .ok_or_else(|| format!("expects {wanted}, has an entry that is no string")),
            Input::Toml(other) => Err(format!("expects {wanted}, has {}", a_type(other))),
        }
    }
    fn show(&self, value: &Vec<String>) -> Option<String> {
        let items: Vec<String> = value.iter().map(|s| quote(s)).collect();
        Some(format!("[{}]", items.join(", ")))
    }
}

/// Most networks of one list: each new connection is compared with all.
const NETWORKS_MAX: usize = 64;

/// A list of IP addresses and networks.
pub struct Networks;

impl Kind for Networks {
    type Out = Vec<IpNet>;
    fn read(&self, input: Input<'_>) -> Result<Self::Out, String> {
        let network = |entry: &String| {
            let parsed = entry.parse::<IpNet>().or_else(|_| entry.parse::<IpAddr>().map(IpNet::from));
            parsed.map(|network| network.trunc()).map_err(|_| {
                let wanted = "expects addresses and networks, such as [\"10.0.0.7\", \"10.1.0.0/24\"]";
                format!("{wanted}, has `{}`", excerpt(entry))
            })
        };
        let networks = List.read(input)?.iter().map(network).collect::<Result<Vec<_>, _>>()?;
        match networks.len() {
            ..=NETWORKS_MAX => Ok(networks),
            many => Err(format!("has {many} entries, may have {NETWORKS_MAX}; name larger networks")),
        }
    }
    fn show(&self, value: &Self::Out) -> Option<String> {
        List.show(&value.iter().map(ToString::to_string).collect())
    }
}

/// A list of addresses of nodes: `id@` and what `rest` accepts.
pub struct NodeList {
    /// what stands before host and port, `http://` or nothing
    pub scheme: &'static str,
}

impl Kind for NodeList {
    type Out = Vec<String>;
    fn read(&self, input: Input<'_>) -> Result<Vec<String>, String> {
        let entries = List.read(input)?;
        let mut ids = Vec::new();
        for entry in &entries {
            let wrong = || {
                let has = excerpt(entry);
                format!("expects entries `id@{}host:port` with an id from 1 to 65535, has `{has}`", self.scheme)
            };
            let (id, rest) = entry.split_once('@').ok_or_else(wrong)?;
            let id = u16::from_str(id).ok().filter(|id| *id > 0).ok_or_else(wrong)?;
            // https:// will do where http:// does.
            let rest = match self.scheme {
                "" => Some(rest),
                scheme => rest.strip_prefix(scheme).or_else(|| rest.strip_prefix("https://")),
            };
            let (host, port) = rest.and_then(|rest| rest.rsplit_once(':')).ok_or_else(wrong)?;
            if host.is_empty() || host.contains(['/', ' ', '@']) || u16::from_str(port).map_or(true, |p| p == 0) {
                return Err(wrong());
            }
            if ids.contains(&id) {
                return Err(format!("names node {id} twice; each node has one entry"));
            }
            ids.push(id);
        }
        Ok(entries)
    }
    fn show(&self, value: &Vec<String>) -> Option<String> {
        List.show(value)
    }
}

/// `sled://PATH`.
pub struct Database;

impl Kind for Database {
    type Out = DbUrl;
    fn read(&self, input: Input<'_>) -> Result<DbUrl, String> {
        let wanted = "\"sled://PATH\"";
        let text = input.text(wanted)?;
        match text.split_once("://") {
            Some(("sled", path)) if !path.is_empty() && !path.contains('\0') => Ok(DbUrl { path: path.into() }),
            Some(("sled", _)) => {
                Err("names no path; write sled:// and the directory, such as \"sled://data/users\"".into())
            }
            Some(("redb", _)) => {
                Err("redb is not read by this version; export the users with the running ciqadamq 1.0 (GET \
                 /internal/users-full), set \"sled://data/users\" here, start, and send each user to POST \
                 /internal/replicate as {\"op\":\"upsert\",\"user\":{...}}"
                    .into())
            }
            _ => Err(format!("expects {wanted}, such as \"sled://data/users\"")),
        }
    }
    fn show(&self, value: &DbUrl) -> Option<String> {
        Some(quote(&format!("sled://{}", value.path.display())))
    }
}

/// A filter of `tracing`.
pub struct Filter;

impl Kind for Filter {
    type Out = LogFilter;
    fn read(&self, input: Input<'_>) -> Result<LogFilter, String> {
        let wanted = "a log filter, such as \"info\" or \"warn,ciqadamq_auth=debug\"";
        let text = input.text(wanted)?;
        if text.trim().is_empty() {
            return Err(format!("expects {wanted}, is empty"));
        }
        match tracing_subscriber::EnvFilter::builder().parse(text) {
            Ok(_) => Ok(LogFilter(text.to_owned())),
            Err(error) => Err(format!("expects {wanted}: {error}")),
        }
    }
    fn show(&self, value: &LogFilter) -> Option<String> {
        Some(quote(&value.0))
    }
}

/// As a TOML string.
fn quote(text: &str) -> String {
    Value::from(text).to_string()
}

/// A wrong value may be anything: shown in one line, not longer than a line.
pub fn excerpt(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars().take(60) {
        match c {
            // As it was written.
            '"' | '\'' | '\\' => shown.push(c),
            c => shown.extend(c.escape_debug()),
        }
    }
    if text.chars().nth(60).is_some() {
        shown.push_str("...");
    }
    shown
}
