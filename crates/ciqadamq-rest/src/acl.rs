//! `/api/v1/acl/check`: asks the access rule what it would say.

use ciqadamq_core::{AccessRules, Subject};
use salvo::Depot;
use salvo::http::Request;
use salvo::oapi::{ToSchema, endpoint};
use serde::Serialize;

use crate::app::Call;
use crate::body::read_object;
use crate::error::ApiError;
use crate::json::Object;
use crate::reply::{Answer, Reply};

/// What is to be done to the topic.
#[derive(Clone, Copy, ToSchema)]
#[salvo(schema(name = Action, rename_all = "snake_case"))]
pub(crate) enum Action {
    /// `topic` is a topic name
    Publish,
    /// `topic` is a topic filter as it stands in a SUBSCRIBE, with its `$share` or other prefix
    Subscribe,
}

/// A question to the access rule.
#[derive(ToSchema)]
#[salvo(schema(name = AccessQuestion))]
pub(crate) struct AccessQuestion {
    /// login name of an existing user
    username: String,
    /// client id, for rules that hold `{clientid}`; empty when left out
    #[salvo(schema(required = false))]
    clientid: String,
    /// what is to be done
    action: Action,
    /// topic name or topic filter
    topic: String,
}

impl AccessQuestion {
    fn read(mut object: Object) -> Result<Self, ApiError> {
        let question = Self {
            username: object.required_string("username")?,
            clientid: object.string("clientid")?.unwrap_or_default(),
            action: match object.required_string("action")?.as_str() {
                "publish" => Action::Publish,
                "subscribe" => Action::Subscribe,
                _ => return Err(ApiError::field("action", "`action` must be `publish` or `subscribe`")),
            },
            topic: object.required_string("topic")?,
        };
        object.finish()?;
        Ok(question)
    }
}

/// The answer of the access rule.
#[derive(Debug, Serialize, ToSchema)]
#[salvo(schema(name = AccessVerdict))]
pub(crate) struct AccessVerdict {
    /// whether it would be allowed now
    allowed: bool,
    /// stable name of the rule that allows or of the reason to refuse
    rule: &'static str,
    /// the same for people
    reason: String,
}

impl AccessVerdict {
    fn of(rules: &AccessRules, subject: &Subject<'_>, action: Action, topic: &str) -> Self {
        let verdict = match action {
            Action::Publish => {
                rules.may_publish(subject, topic).map_err(|refusal| (refusal.as_str(), refusal.to_string()))
            }
            Action::Subscribe => {
                rules.may_subscribe(subject, topic).map_err(|refusal| (refusal.as_str(), refusal.to_string()))
            }
        };
        match verdict {
            Ok(grant) => Self { allowed: true, rule: grant.as_str(), reason: grant.to_string() },
            Err((rule, reason)) => Self { allowed: false, rule, reason },
        }
    }
}

/// Ask the access rule
///
/// Whether this user would be allowed this action on this topic, and by which rule. 404 if there is no such user.
#[endpoint(
    operation_id = "check_access", tags("acl"),
    request_body = AccessQuestion,
    responses((status_code = 200, description = "the verdict", body = AccessVerdict))
)]
pub(crate) async fn check_access(req: &mut Request, depot: &mut Depot) -> Answer {
    let call = Call::of(depot)?;
    let config = &call.app.config;
    let question = AccessQuestion::read(read_object(req, config.body_bytes_max, config.request_timeout).await?)?;
    let user = call.user(&question.username)?.ok_or_else(ApiError::no_such_user)?;
    let subject = Subject {
        username: user.username.as_str(),
        userid: user.userid.as_str(),
        client_id: &question.clientid,
        superuser: user.superuser,
        admin: user.admin,
    };
    let verdict = if user.disabled {
        AccessVerdict { allowed: false, rule: "user_disabled", reason: "the user may not log in".into() }
    } else if !config.acl_enabled {
        AccessVerdict { allowed: true, rule: "acl_disabled", reason: "the access rule is off on this node".into() }
    } else {
        AccessVerdict::of(&call.app.deps.rules, &subject, question.action, &question.topic)
    };
    Reply::json(&verdict)
}
