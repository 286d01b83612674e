//! The secrets of a node by name, and how other parts ask for them.

use async_trait::async_trait;

use crate::Secret;

/// A secret that a node needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SecretName {
    /// the management token of the REST API
    ApiToken,
    /// the key of the fast verifier
    Pepper,
    /// the token of `/internal/*`, which the nodes use among themselves
    ReplToken,
}

impl SecretName {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::ApiToken, Self::Pepper, Self::ReplToken];

    /// The name in a vault.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ApiToken => "ciqada/api-token",
            Self::Pepper => "ciqada/pepper",
            Self::ReplToken => "ciqada/repl-token",
        }
    }

    /// The last level of the name: what a file is called, and what `{name}` stands for in a path.
    pub fn short(self) -> &'static str {
        match self {
            Self::ApiToken => "api-token",
            Self::Pepper => "pepper",
            Self::ReplToken => "repl-token",
        }
    }

    /// The environment variable that holds the secret where there is no vault, or where it does not answer at start.
    pub fn variable(self) -> &'static str {
        match self {
            Self::ApiToken => "API_TOKEN",
            Self::Pepper => "AUTH_PEPPER",
            Self::ReplToken => "REPL_TOKEN",
        }
    }
}

impl std::fmt::Display for SecretName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The secrets in force on this node.
pub trait SecretSource: Send + Sync {
    /// The value in force; `None` if there is none. Cheap: a read lock and a copy of a few bytes.
    fn current(&self, name: SecretName) -> Option<Secret>;

    /// What this node presents to `/internal/*` of other nodes: the replication token, else the management token.
    ///
    /// `None` while it is not known whether there is a replication token. Read it anew for every connection, not once:
    /// it rotates. Whoever accepts it takes the one before for a while too, so a peer that has not heard of a rotation
    /// yet is no stranger.
    fn peer_token(&self) -> Option<Secret>;

    /// What another node may prove that it knows, where it does not show it to `/internal/*` but computes with it: what
    /// [`peer_token`](Self::peer_token) gives, and then what that was before, for as long as `/internal/*` takes it. Two at most.
    /// Empty while it is not known whether there is a replication token: then nobody is let in.
    fn peer_tokens(&self) -> Vec<Secret>;
}

/// What became of a second look at a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookedAgain {
    /// the source was asked, after the call; what it said is in force
    Asked,
    /// the source could not be asked, or did not answer; the last good value stays in force
    NoAnswer,
    /// too many callers wait already; nothing was asked
    Busy,
}

/// Asks where the secrets come from whether one has changed.
#[async_trait]
pub trait SecretRefresh: Send + Sync {
    /// A value was presented that is not the one in force: has it rotated?
    ///
    /// Returns when the source was asked once more, after this call; or when `known` says yes, which is asked again
    /// each time the source has answered. The source is asked at most once in a while, and by one caller for all, so
    /// this may take as long as that while and an answer take together. It is bounded, and so is the number of callers that wait.
    async fn look_again(&self, name: SecretName, known: &(dyn Fn() -> bool + Send + Sync)) -> LookedAgain;
}
