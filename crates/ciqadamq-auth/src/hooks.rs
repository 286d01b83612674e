//! The hooks, and nothing but their translation.

use std::sync::Arc;

use async_trait::async_trait;
use ciqadamq_core::has_malformed_properties;
use rmqtt::codec::types::MQTT_LEVEL_5;
use rmqtt::hook::{Handler, HookResult, Parameter, Priority, Register, ReturnType, Type};
use rmqtt::types::{AuthResult, ConnectInfo, LastWill};

use crate::farewell::Word;
use crate::login::{Login, Refusal, WillOf};
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
        let judging = self.0.judging(connect.id());
        let will = connect.last_will();
        let login = Login {
            username: connect.username().map(|name| &**name),
            password: connect.password().map(|password| &**password),
            client_id: connect.client_id(),
            address: connect.ipaddress().map(|address| address.ip()),
            will: will.as_ref().map(will_of),
            tag: tag_of(connect.id()),
            gone: &judging.gone,
        };
        let is_v5 = connect.proto_ver() == MQTT_LEVEL_5;
        let username = login.username.unwrap_or_default();
        let is_foreign = async |client_id: &str, userid: &str| self.0.is_foreign(client_id, username, userid).await;
        let verdict = self.0.judge.judge(&login, is_foreign).await;
        match verdict {
            Ok(principal) => {
                self.0.expect(principal, is_v5);
                judging.let_in();
                // Not the engine's superuser flag, which skips the access hooks: even a superuser may not publish to a
                // wildcard, and a flag that is taken away must count at once.
                allow()
            }
            // Whoever is not ours may be let in by another authentication plugin, if the operator enabled one. It must not
            // hear of a refusal: it would take that for the last word.
            Err(Refusal::UnknownUser | Refusal::MissingCredentials) if self.0.defer_unknown => (true, acc),
            Err(Refusal::Busy | Refusal::DirectoryUnavailable) if self.0.leave_to_guard(login.tag).await => allow(),
            Err(Refusal::InvalidClientId) => {
                // The engine knows no such answer.
                let word = if is_v5 { Word::Connack5(0x85) } else { Word::Connack3(2) };
                self.0.answer(connect.id(), word).await;
                refuse(AuthResult::NotAuthorized)
            }
            Err(refusal) if refusal.is_credentials() => refuse(AuthResult::BadUsernameOrPassword),
            Err(_) => refuse(AuthResult::NotAuthorized),
        }
    }
}

fn will_of<'a>(will: &'a LastWill<'_>) -> WillOf<'a> {
    match will {
        LastWill::V3(will) => WillOf { topic: &will.topic, retain: will.retain, is_malformed: false },
        LastWill::V5(will) => {
            let pairs = will.user_properties.iter().flat_map(|(name, value)| [&**name, &**value]);
            let texts = pairs.chain(will.content_type.as_deref());
            let is_text = will.is_utf8_payload != Some(true) || std::str::from_utf8(&will.message).is_ok();
            let is_malformed = !is_text || has_malformed_properties(texts, will.response_topic.as_deref());
            WillOf { topic: &will.topic, retain: will.retain, is_malformed }
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
