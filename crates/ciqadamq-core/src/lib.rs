//! The domain of ciqadamq: who a user is, what that user may do, and which session belongs to whom.
//!
//! This crate decides and remembers; it does not talk. It knows neither rmqtt nor HTTP nor the disk, so every rule in
//! it can be tested as a function. The plugin crates translate between it and the outside, and meet each other only
//! in the traits defined here, which the launcher wires:
//!
//! | here | implemented by | used by |
//! | --- | --- | --- |
//! | [`UserDirectory`] | `ciqadamq-user-store` | auth, REST |
//! | [`UserObserver`] | auth | the user store, on every change |
//! | [`PasswordHashing`] | auth | REST |
//! | [`SessionControl`] | auth | REST |
//! | [`RetainedQuota`] | `ciqadamq-retain` | topic-acl |
//! | [`Principals`] | a plain map, filled by auth | topic-acl, REST |
//! | [`InternalService`] | whoever answers other nodes | REST, which mounts it |
//! | [`Peers`] | `ciqadamq-peers` | whoever asks other nodes |
//! | [`LocalOwners`] | auth | whoever knows the other nodes |
//! | [`RemoteOwners`] | `ciqadamq-cluster` | auth |
//! | [`Arrivals`] | `ciqadamq-session-store` | `ciqadamq-cluster` |
//! | [`Waiting`] | `ciqadamq-session-store` | auth |
//! | [`ClusterPart`] | whoever is replicated | REST |
//! | [`AccessRules`] | pure functions | auth (wills), topic-acl, REST |
//! | [`SecretSource`], [`SecretRefresh`] | `ciqadamq-secrets` | REST, and whoever calls other nodes |
//!
//! **The model in one paragraph.** Every change of a user gets a [`Revision`], counting up. A record carries the
//! revision from which its rights are valid ([`User::valid_from`]); a session carries the revision at which its
//! client logged in. A session may act if and only if its user exists, is enabled, and `valid_from` is not younger
//! than that login. So a deletion, a new password or a lost flag ends every older session by arithmetic, a re-created
//! user inherits nothing, and a node that was away needs no list of what it missed.

mod access;
mod arrivals;
mod budget;
mod causes;
mod cluster;
mod command;
mod directory;
mod excerpt;
mod health;
mod internal;
mod meter;
mod moves;
mod owners;
mod principal;
mod retained;
mod secret;
mod secrets;
mod sessions;
mod topic;
mod user;

/// Target of log events that say who did what, or was refused what: the names of `event` are stable, see
/// `docs/security.md`.
pub const AUDIT: &str = "audit";

/// What a refusal of a malformed packet says, for whoever tells the client (MQTT 5.0 reason code 0x81).
pub const MALFORMED: &str = "malformed packet";

pub use access::{
    AccessRules, AccessRulesError, Grant, LEVELS_MAX, PREFIXES_MAX, PUBLISH_TOPICS_MAX, PublishRefusal, Subject,
    SubscribeRefusal, TopicTemplate,
};
pub use arrivals::{Arrival, Arrivals};
pub use budget::LogBudget;
pub use causes::with_causes;
pub use cluster::{ClusterPart, ClusterParts, MembersError, RaftPeer, RaftRole, RaftView};
pub use command::{Applied, Command, Decision, Rejection, UserPatch, decide};
pub use directory::{DirectoryError, DirectoryStatus, ExecuteError, UserDirectory, UserObserver, UserPage, UserQuery};
pub use excerpt::excerpt;
pub use health::{Condition, Health};
pub use internal::{
    INTERNAL_BODY_BYTES_MAX, InternalService, InternalServices, Lane, NodeId, PeerError, Peers, Reachability,
    ServiceError,
};
pub use meter::{Meter, Rate};
pub use moves::{MoveTag, Moves, OtherMoves};
pub use owners::{LocalOwners, RemoteOwners};
pub use principal::{Principal, Principals, TooManySessions};
pub use retained::{RetainedCopies, RetainedCopy, RetainedQuota};
pub use secret::Secret;
pub use secrets::{LookedAgain, SecretName, SecretRefresh, SecretSource};
pub use sessions::{HashError, PasswordHashing, SessionControl, SessionInfo, SessionQuery, Waiting};
pub use topic::{
    FilterFault, FilterPrefix, TopicNameFault, filter_contains, filter_matches, has_malformed_properties,
    is_valid_filter, split_prefix, topic_name_fault,
};
pub use user::{InvalidName, PASSWORD_BYTES_MAX, PasswordHash, Revision, User, UserChange, UserId, Username};
