//! The access rule: no row per user, a few lines of configuration for all.
//!
//! A user may subscribe whatever is wholly contained in `+/{userid}/#` or in a fan-out prefix, an admin also in the
//! admin prefixes; may publish to the configured topics and nowhere else. A superuser may do what the protocol allows.

use std::sync::Arc;

use thiserror::Error;

use crate::topic::{
    FilterFault, FilterPrefix, TopicNameFault, filter_contains, has_more_levels, is_valid_filter, is_valid_share_name,
    split_prefix, topic_name_fault,
};

/// Most entries of `acl.publish_topics`: each is looked at on every publish.
pub const PUBLISH_TOPICS_MAX: usize = 64;
/// Most fan-out or admin prefixes.
pub const PREFIXES_MAX: usize = 64;
/// Most levels of a topic name or filter, unless [`AccessRules::with_levels_max`] says otherwise.
pub const LEVELS_MAX: usize = 128;

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// login name
    pub username: &'a str,
    /// person
    pub userid: &'a str,
    /// the session's client id
    pub client_id: &'a str,
    /// no access rule applies
    pub superuser: bool,
    /// admin prefixes
    pub admin: bool,
}

/// By which rule something is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grant {
    /// no access rule applies
    Superuser,
    /// an entry of `acl.publish_topics`
    PublishTopic(Arc<str>),
    /// `+/{userid}/#`
    OwnTopics,
    /// `{prefix}/#` of `acl.fanout_prefixes`
    FanoutPrefix(Arc<str>),
    /// `{prefix}/#` of `acl.admin_prefixes`
    AdminPrefix(Arc<str>),
}

impl Grant {
    /// Stable name for logs and the API.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Superuser => "superuser",
            Self::PublishTopic(_) => "publish_topic",
            Self::OwnTopics => "own_topics",
            Self::FanoutPrefix(_) => "fanout_prefix",
            Self::AdminPrefix(_) => "admin_prefix",
        }
    }
}

impl std::fmt::Display for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Superuser => f.write_str("superuser"),
            Self::PublishTopic(entry) => write!(f, "acl.publish_topics entry `{entry}`"),
            Self::OwnTopics => f.write_str("own topics `+/{userid}/#`"),
            Self::FanoutPrefix(prefix) => write!(f, "fan-out prefix `{prefix}/#`"),
            Self::AdminPrefix(prefix) => write!(f, "admin prefix `{prefix}/#`"),
        }
    }
}

/// Why a publish is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PublishRefusal {
    /// not a topic name
    #[error(transparent)]
    TopicName(#[from] TopicNameFault),
    /// no rule allows it
    #[error("no rule allows publishing to this topic")]
    NotGranted,
    /// addressed to a client id instead of subscribers
    #[error("messages to a single client id are for superusers")]
    Targeted,
    /// a Retained Message, which are for superusers (`acl.retain`)
    #[error("retained messages are for superusers")]
    RetainNotAllowed,
    /// one Retained Message more than a user may leave (`limits.retained_per_user`)
    #[error("the user has as many retained messages as it may")]
    TooManyRetained,
    /// a property that the standard forbids, which a strict subscriber would be disconnected for
    #[error("a string property holds U+0000, or the response topic a wildcard")]
    Malformed,
    /// said to be UTF-8 and is not
    #[error("the payload is not UTF-8, as its format indicator says")]
    PayloadFormat,
    /// the user lost the right to act
    #[error("the session's user was withdrawn")]
    Withdrawn,
    /// the client said DISCONNECT before
    #[error("it came after a DISCONNECT")]
    Left,
    /// nobody knows who stands behind the session
    #[error("the session belongs to no known user")]
    Unknown,
}

impl PublishRefusal {
    /// Stable name for counters and logs.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::TopicName(_) => "invalid_topic",
            Self::NotGranted => "not_granted",
            Self::Targeted => "targeted",
            Self::RetainNotAllowed => "retain_not_allowed",
            Self::TooManyRetained => "too_many_retained",
            Self::Malformed => "malformed_properties",
            Self::PayloadFormat => "payload_format",
            Self::Withdrawn => "withdrawn",
            Self::Left => "after_disconnect",
            Self::Unknown => "unknown_user",
        }
    }
}

/// Why a subscription is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SubscribeRefusal {
    /// not a topic filter
    #[error(transparent)]
    Filter(#[from] FilterFault),
    /// begins with `$`
    #[error("filters that begin with `$` are reserved")]
    Reserved,
    /// `$exclusive` or `$limit`, which are off
    #[error("this subscription prefix is not enabled")]
    PrefixDisabled,
    /// no rule contains it
    #[error("no rule contains this filter")]
    NotGranted,
    /// one subscription more than a session may have (`limits.subscriptions_per_session`)
    #[error("the session has as many subscriptions as it may")]
    TooMany,
    /// the user lost the right to act
    #[error("the session's user was withdrawn")]
    Withdrawn,
    /// the client said DISCONNECT before
    #[error("it came after a DISCONNECT")]
    Left,
    /// nobody knows who stands behind the session
    #[error("the session belongs to no known user")]
    Unknown,
}

impl SubscribeRefusal {
    /// Stable name for counters and logs.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Filter(_) => "invalid_filter",
            Self::Reserved => "reserved",
            Self::PrefixDisabled => "prefix_disabled",
            Self::NotGranted => "not_granted",
            Self::TooMany => "too_many_subscriptions",
            Self::Withdrawn => "withdrawn",
            Self::Left => "after_disconnect",
            Self::Unknown => "unknown_user",
        }
    }
}

/// What is wrong with a configured entry.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AccessRulesError {
    /// an entry of `acl.publish_topics`
    #[error("acl.publish_topics: `{entry}`: {reason}")]
    PublishTopic {
        /// the entry
        entry: String,
        /// what is wrong
        reason: String,
    },
    /// an entry of `acl.fanout_prefixes` or `acl.admin_prefixes`
    #[error("{key}: `{entry}`: {reason}")]
    Prefix {
        /// the configuration key
        key: &'static str,
        /// the entry
        entry: String,
        /// what is wrong
        reason: String,
    },
    /// more entries than are looked at
    #[error("{key}: at most {max} entries")]
    TooMany {
        /// the configuration key
        key: &'static str,
        /// the bound
        max: usize,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplateLevel {
    Literal(Box<str>),
    UserId,
    Username,
    ClientId,
}

/// A topic name in which a whole level may be `{userid}`, `{username}` or `{clientid}`.
///
/// The value is compared as one literal level: a client id with `/` or `+` in it reaches no other topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicTemplate {
    text: Arc<str>,
    levels: Vec<TemplateLevel>,
}

impl TopicTemplate {
    /// Reads an entry.
    pub fn new(text: &str) -> Result<Self, String> {
        if let Some(fault) = topic_name_fault(text) {
            return Err(fault.to_string());
        }
        let levels = text.split('/').map(|level| match level {
            "{userid}" => Ok(TemplateLevel::UserId),
            "{username}" => Ok(TemplateLevel::Username),
            "{clientid}" => Ok(TemplateLevel::ClientId),
            level if level.contains(['{', '}']) => {
                Err(format!("`{level}`: a placeholder is a whole level, one of {{userid}}, {{username}}, {{clientid}}"))
            }
            level => Ok(TemplateLevel::Literal(level.into())),
        });
        Ok(Self { text: text.into(), levels: levels.collect::<Result<_, _>>()? })
    }

    /// Whether `topic` is this template filled in for `subject`.
    pub fn matches(&self, subject: &Subject<'_>, topic: &str) -> bool {
        let mut actual = topic.split('/');
        self.levels.iter().all(|level| {
            actual.next().is_some_and(|actual| match level {
                TemplateLevel::Literal(text) => actual == &**text,
                TemplateLevel::UserId => actual == subject.userid,
                TemplateLevel::Username => actual == subject.username,
                TemplateLevel::ClientId => actual == subject.client_id,
            })
        }) && actual.next().is_none()
    }
}

#[derive(Debug, Clone)]
struct Prefix {
    name: Arc<str>,
    filter: String,
}

/// The access rule as configured. Immutable; every verdict is a pure function of it.
#[derive(Debug, Clone)]
pub struct AccessRules {
    publish_topics: Vec<TopicTemplate>,
    fanout: Vec<Prefix>,
    admin: Vec<Prefix>,
    limit_prefixes: bool,
    levels_max: usize,
    retain_for_superusers: bool,
}

impl AccessRules {
    /// Reads the lists of the configuration; all problems at once.
    pub fn new(
        publish_topics: &[String],
        fanout_prefixes: &[String],
        admin_prefixes: &[String],
    ) -> Result<Self, Vec<AccessRulesError>> {
        let mut errors = Vec::new();
        if publish_topics.len() > PUBLISH_TOPICS_MAX {
            errors.push(AccessRulesError::TooMany { key: "acl.publish_topics", max: PUBLISH_TOPICS_MAX });
        }
        let mut templates = Vec::new();
        for entry in publish_topics {
            match TopicTemplate::new(entry) {
                Ok(template) => templates.push(template),
                Err(reason) => errors.push(AccessRulesError::PublishTopic { entry: entry.clone(), reason }),
            }
        }
        let fanout = prefixes("acl.fanout_prefixes", fanout_prefixes, &mut errors);
        let admin = prefixes("acl.admin_prefixes", admin_prefixes, &mut errors);
        if errors.is_empty() {
            Ok(Self {
                publish_topics: templates,
                fanout,
                admin,
                limit_prefixes: false,
                levels_max: LEVELS_MAX,
                retain_for_superusers: false,
            })
        } else {
            Err(errors)
        }
    }

    /// Allows the subscription prefixes `$exclusive/` and `$limit/{n}/`, which are off by default.
    #[must_use]
    pub fn with_limit_prefixes(mut self, on: bool) -> Self {
        self.limit_prefixes = on;
        self
    }

    /// Bounds the levels of topic names and filters, superusers' included: the engine walks them recursively.
    #[must_use]
    pub fn with_levels_max(mut self, levels: usize) -> Self {
        self.levels_max = levels.max(1);
        self
    }

    /// Leaves the retain flag to superusers.
    #[must_use]
    pub fn with_retain_for_superusers(mut self, on: bool) -> Self {
        self.retain_for_superusers = on;
        self
    }

    /// Whether `subject` may set the retain flag of a message or Will that it may publish.
    pub fn may_retain(&self, subject: &Subject<'_>) -> Result<(), PublishRefusal> {
        if self.retain_for_superusers && !subject.superuser {
            return Err(PublishRefusal::RetainNotAllowed);
        }
        Ok(())
    }

    /// Whether `subject` may publish to `topic`, and have a Will there.
    pub fn may_publish(&self, subject: &Subject<'_>, topic: &str) -> Result<Grant, PublishRefusal> {
        if let Some(fault) = topic_name_fault(topic) {
            return Err(fault.into());
        }
        if has_more_levels(topic, self.levels_max) {
            return Err(TopicNameFault::TooManyLevels.into());
        }
        if subject.superuser {
            return Ok(Grant::Superuser);
        }
        self.publish_topics
            .iter()
            .find(|template| template.matches(subject, topic))
            .map(|template| Grant::PublishTopic(template.text.clone()))
            .ok_or(PublishRefusal::NotGranted)
    }

    /// Whether `subject` may subscribe `raw_filter`, as it stands in the SUBSCRIBE.
    pub fn may_subscribe(&self, subject: &Subject<'_>, raw_filter: &str) -> Result<Grant, SubscribeRefusal> {
        let (prefix, filter) = split_prefix(raw_filter)?;
        self.may_subscribe_split(subject, prefix, filter)
    }

    /// The same for a filter whose prefix was already taken off.
    pub fn may_subscribe_split(
        &self,
        subject: &Subject<'_>,
        prefix: Option<FilterPrefix<'_>>,
        filter: &str,
    ) -> Result<Grant, SubscribeRefusal> {
        is_valid_filter(filter)?;
        if has_more_levels(filter, self.levels_max) {
            return Err(FilterFault::TooManyLevels.into());
        }
        match prefix {
            Some(FilterPrefix::Share(name)) if !is_valid_share_name(name) => return Err(FilterFault::Prefix.into()),
            Some(FilterPrefix::Exclusive | FilterPrefix::Limit(_)) if !self.limit_prefixes => {
                return Err(SubscribeRefusal::PrefixDisabled);
            }
            _ => {}
        }
        if !matches!(split_prefix(filter), Ok((None, _))) {
            return Err(FilterFault::NestedPrefix.into());
        }
        if subject.superuser {
            return Ok(Grant::Superuser);
        }
        if filter.starts_with('$') {
            return Err(SubscribeRefusal::Reserved);
        }
        if own_topics_contain(subject.userid, filter) {
            return Ok(Grant::OwnTopics);
        }
        if let Some(prefix) = containing(&self.fanout, filter) {
            return Ok(Grant::FanoutPrefix(prefix));
        }
        if let Some(prefix) = containing(&self.admin, filter).filter(|_| subject.admin) {
            return Ok(Grant::AdminPrefix(prefix));
        }
        Err(SubscribeRefusal::NotGranted)
    }

    /// The filters a client of `subject` is subscribed to by the server, if automatic subscription is on.
    pub fn automatic_filters(&self, subject: &Subject<'_>) -> Vec<String> {
        let own = format!("+/{}/#", subject.userid);
        let admin = if subject.admin { &self.admin[..] } else { &[] };
        std::iter::once(own).chain(self.fanout.iter().chain(admin).map(|p| p.filter.clone())).collect()
    }
}

/// `filter_contains("+/{userid}/#", filter)` without building the grant.
fn own_topics_contain(userid: &str, filter: &str) -> bool {
    let mut levels = filter.split('/');
    let first = levels.next().unwrap_or_default();
    first != "#" && !first.starts_with('$') && levels.next() == Some(userid)
}

fn containing(prefixes: &[Prefix], filter: &str) -> Option<Arc<str>> {
    prefixes.iter().find(|p| filter_contains(&p.filter, filter)).map(|p| p.name.clone())
}

fn prefixes(key: &'static str, entries: &[String], errors: &mut Vec<AccessRulesError>) -> Vec<Prefix> {
    if entries.len() > PREFIXES_MAX {
        errors.push(AccessRulesError::TooMany { key, max: PREFIXES_MAX });
    }
    let mut prefixes = Vec::new();
    for entry in entries {
        let reason = match topic_name_fault(entry) {
            Some(fault) => Some(fault.to_string()),
            None if entry.starts_with('$') => Some("prefixes that begin with `$` are reserved".into()),
            None if entry.ends_with('/') => Some("leave out the `/` at the end; `/#` is added".into()),
            None => None,
        };
        match reason {
            Some(reason) => errors.push(AccessRulesError::Prefix { key, entry: entry.clone(), reason }),
            None => prefixes.push(Prefix { name: entry.as_str().into(), filter: format!("{entry}/#") }),
        }
    }
    prefixes
}

#[cfg(test)]
mod tests;
