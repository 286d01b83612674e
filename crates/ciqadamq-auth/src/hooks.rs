//! The hooks, and nothing but their translation.

use std::sync::Arc;

use async_trait::async_trait;
use rmqtt::hook::{Handler, HookResult, Parameter, Priority, Register, ReturnType, Type};
use rmqtt::types::{AuthResult, ConnectInfo, LastWill};

use crate::login::{Login, Refusal};
use crate::ownership::{Ownership, tag_of};

/// Before `rmqtt-auth-http` (100) and `rmqtt-auth-jwt` (50): a user of ours is judged by nobody else.
pub const PRIORITY: Priority = 200;

pub(crate) async fn add(register: &dyn Register, ownership: &Arc<Ownership>) {
    for hook in [Type::ClientAuthenticate, Type::SessionTerminated] {
        register.add_priority(hook, PRIORITY, Box::new(Hooks(ownership.clone()))).await;
    }
}

struct Hooks(Arc<Ownership>);

#[async_trait]
impl Handler for Hooks {
    async fn hook(&self, param: &Parameter, acc: Option<HookResult>) -> ReturnType {
        match param {
            Parameter::ClientAuthenticate(connect) => self.authenticate(connect, acc).await,
            Parameter::SessionTerminated(session, _) => {
                self.0.forget(&session.id);
                (true, acc)
            }
            _ => (true, acc),
        }
    }
}

impl Hooks {
    async fn authenticate(&self, connect: &ConnectInfo, acc: Option<HookResult>) -> ReturnType {
        let will = connect.last_will();
        let login = Login {
            username: connect.username().map(|name| &**name),
            password: connect.password().map(|password| &**password),
            client_id: connect.client_id(),
            address: connect.ipaddress().map(|address| address.ip()),
            will_topic: will.as_ref().map(|will| match will {
                LastWill::V3(will) => &*will.topic,
                LastWill::V5(will) => &*will.topic,
            }),
            tag: tag_of(connect.id()),
        };
        let is_foreign = async |client_id: &str, userid: &str| self.0.is_foreign(client_id, userid).await;
        let verdict = self.0.judge.judge(&login, is_foreign).await;
        match verdict {
            Ok(principal) => {
                self.0.expect(principal);
                // Not the engine's superuser flag, which skips the access hooks: even a superuser may not publish to a
                // wildcard, and a flag that is taken away must count at once.
                allow()
            }
            // Whoever is not ours may be let in by another authentication plugin, if the operator enabled one. It must not
            // hear of a refusal: it would take that for the last word.
            Err(Refusal::UnknownUser | Refusal::MissingCredentials) if self.0.defer_unknown => (true, acc),
            Err(Refusal::Busy | Refusal::DirectoryUnavailable) if self.0.leave_to_guard(login.tag).await => allow(),
            Err(refusal) if refusal.is_credentials() => refuse(AuthResult::BadUsernameOrPassword),
            Err(_) => refuse(AuthResult::NotAuthorized),
        }
    }
}

fn allow() -> ReturnType {
    (false, Some(HookResult::AuthResult(AuthResult::Allow(false, None))))
}

fn refuse(result: AuthResult) -> ReturnType {
    (false, Some(HookResult::AuthResult(result)))
}

/// Lets everybody in as a superuser: `auth.disabled`, for tests.
pub(crate) struct Open;

#[async_trait]
impl Handler for Open {
    async fn hook(&self, _: &Parameter, _: Option<HookResult>) -> ReturnType {
        (false, Some(HookResult::AuthResult(AuthResult::Allow(true, None))))
    }
}
