//! Whose session has a client id: what the part that lets clients in and the part that knows the other nodes ask
//! each other.

use async_trait::async_trait;

/// The sessions of this node, as the cluster asks for them.
#[async_trait]
pub trait LocalOwners: Send + Sync {
    /// The person whose session has this client id here. Who is no user of the directory is named by what no userid can
    /// be. `None`: there is no session, or its user lost the right to it.
    async fn owner(&self, client_id: &str) -> Option<String>;

    /// The person behind a login name, in the same words.
    fn person(&self, username: &str) -> String;
}

/// The sessions of the other nodes, as asked before a client is let in.
#[async_trait]
pub trait RemoteOwners: Send + Sync {
    /// Whether another node has a session with this client id that belongs to somebody else than `userid`, who logs in
    /// as `username`. What cannot be found out is a yes.
    async fn is_foreign(&self, client_id: &str, username: &str, userid: &str) -> bool;
}
