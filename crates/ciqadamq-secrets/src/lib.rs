//! The secrets of a node, by name and version, and word of their changes.
//!
//! A node needs three: `ciqada/api-token`, `ciqada/pepper` and `ciqada/repl-token`. They come from one [`Source`]: a
//! hyperion-vault ([`Hyperion`]), a HashiCorp Vault or an OpenBao (feature `vault`), files ([`Files`]); or from the configuration
//! alone. What a source answers is judged in one place ([`value`]), whatever the source.
//!
//! **At start** each secret is read, and read again with growing pauses while that fails and the time lasts. Then the configured
//! value takes its place; if there is none, a node does not start without a management token, keeps `/internal/` closed
//! without a replication token, and hashes every password without a pepper.
//!
//! **While the node runs** the two tokens are read every now and then, and when somebody presents one that is not known
//! ([`ciqadamq_core::SecretRefresh`]). What cannot be read changes nothing: the last good value stays in force, the trouble is
//! logged once, counted, and shown in `/ready`. The pepper is read once.
//!
//! **What is deliberately absent.** No cache on disk. No writing to a vault. No proxy from the environment, no redirect to
//! another server, no switch that leaves a certificate unverified. No text of a server in a log or an error: it may be the secret.

mod error;
mod files;
mod http;
mod hyperion;
mod inspect;
mod json;
mod metrics;
mod path;
mod secrets;
mod slot;
mod source;
mod start;
pub mod value;
#[cfg(feature = "vault")]
mod vault;

pub use error::ReadError;
pub use files::Files;
pub use http::{SetupError, parse_address};
pub use hyperion::Hyperion;
pub use inspect::{Finding, State, inspect};
pub use path::path_problem;
pub use secrets::{Configured, Secrets, Setup};
pub use source::{Found, Pace, Source};
pub use start::StartError;
#[cfg(feature = "vault")]
pub use vault::{Credential, KvVersion, Login, Vault, VaultConfig};
