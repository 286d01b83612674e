//! Topic Names and Topic Filters: what is well-formed, what matches, and what contains what.
//!
//! MQTT 5.0 §4.7, which 3.1.1 shares. Everything works level by level on the strings themselves, without allocation:
//! the publish path runs through here.

use thiserror::Error;

/// Longest topic name or filter, in bytes (a length prefix has two).
const BYTES_MAX: usize = 65_535;

/// Why a Topic Name may not be published to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TopicNameFault {
    /// no character at all (MQTT-4.7.3-1)
    #[error("empty topic name")]
    Empty,
    /// `+` or `#` (MQTT-3.3.2-2)
    #[error("wildcard in a topic name")]
    Wildcard,
    /// U+0000 (MQTT-4.7.3-2)
    #[error("U+0000 in a topic name")]
    Nul,
    /// over 65,535 bytes (MQTT-4.7.3-3)
    #[error("topic name too long")]
    TooLong,
    /// more levels than `limits.topic_levels`
    #[error("too many levels in a topic name")]
    TooManyLevels,
}

/// Why a Topic Filter is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FilterFault {
    /// no character at all
    #[error("empty topic filter")]
    Empty,
    /// `#` not alone in the last level, or `+` not alone in its level (MQTT-4.7.1-1, -2)
    #[error("misplaced wildcard in a topic filter")]
    Wildcard,
    /// U+0000
    #[error("U+0000 in a topic filter")]
    Nul,
    /// over 65,535 bytes
    #[error("topic filter too long")]
    TooLong,
    /// more levels than `limits.topic_levels`
    #[error("too many levels in a topic filter")]
    TooManyLevels,
    /// `$share` without a valid Share Name and a filter behind it (MQTT-4.8.2-1, -2), or `$limit` without a number
    #[error("malformed subscription prefix")]
    Prefix,
    /// a prefix behind a prefix
    #[error("nested subscription prefix")]
    NestedPrefix,
}

/// The fault of a topic name, if it has one.
pub fn topic_name_fault(name: &str) -> Option<TopicNameFault> {
    if name.is_empty() {
        return Some(TopicNameFault::Empty);
    }
    if name.len() > BYTES_MAX {
        return Some(TopicNameFault::TooLong);
    }
    name.bytes().find_map(|b| match b {
        b'+' | b'#' => Some(TopicNameFault::Wildcard),
        0 => Some(TopicNameFault::Nul),
        _ => None,
    })
}

/// Whether the text properties of a message hold what the standard forbids: U+0000 (MQTT-1.5.4-2), or a wildcard in the
/// Response Topic (MQTT-3.3.2-14). A strict subscriber would have to close its connection over it.
pub fn has_malformed_properties<'a>(texts: impl IntoIterator<Item = &'a str>, response_topic: Option<&str>) -> bool {
    texts.into_iter().any(|text| text.bytes().any(|b| b == 0))
        || response_topic.is_some_and(|topic| topic_name_fault(topic).is_some())
}

/// Whether a topic name or filter has more than `max` levels. Free for what is shorter than that.
pub(crate) fn has_more_levels(topic: &str, max: usize) -> bool {
    topic.len() >= max && topic.bytes().filter(|b| *b == b'/').count() >= max
}

/// Whether `filter` (without a `$share/...` prefix) is a Topic Filter.
pub fn is_valid_filter(filter: &str) -> Result<(), FilterFault> {
    if filter.is_empty() {
        return Err(FilterFault::Empty);
    }
    if filter.len() > BYTES_MAX {
        return Err(FilterFault::TooLong);
    }
    if filter.bytes().any(|b| b == 0) {
        return Err(FilterFault::Nul);
    }
    let mut levels = filter.split('/').peekable();
    while let Some(level) = levels.next() {
        let wild = level.bytes().any(|b| b == b'+' || b == b'#');
        if wild && level.len() > 1 || level == "#" && levels.peek().is_some() {
            return Err(FilterFault::Wildcard);
        }
    }
    Ok(())
}

/// What may stand before a Topic Filter in a SUBSCRIBE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterPrefix<'a> {
    /// `$share/{Share Name}/`
    Share(&'a str),
    /// `$exclusive/`: one subscriber at a time
    Exclusive,
    /// `$limit/{n}/`: at most n subscribers
    Limit(usize),
}

const PREFIXES: [&str; 3] = ["$share", "$exclusive", "$limit"];

/// Takes a subscription prefix off a filter. The rest is not checked, except that it must not begin with a prefix.
pub fn split_prefix(raw: &str) -> Result<(Option<FilterPrefix<'_>>, &str), FilterFault> {
    let (first, rest) = raw.split_once('/').unwrap_or((raw, ""));
    let (prefix, filter) = match first {
        "$share" => {
            let (name, filter) = rest.split_once('/').ok_or(FilterFault::Prefix)?;
            if !is_valid_share_name(name) {
                return Err(FilterFault::Prefix);
            }
            (FilterPrefix::Share(name), filter)
        }
        "$exclusive" => (FilterPrefix::Exclusive, rest),
        "$limit" => {
            let (n, filter) = rest.split_once('/').ok_or(FilterFault::Prefix)?;
            (FilterPrefix::Limit(n.parse().map_err(|_| FilterFault::Prefix)?), filter)
        }
        _ => return Ok((None, raw)),
    };
    if filter.is_empty() {
        return Err(FilterFault::Prefix);
    }
    if PREFIXES.contains(&filter.split('/').next().unwrap_or_default()) {
        return Err(FilterFault::NestedPrefix);
    }
    Ok((Some(prefix), filter))
}

/// A Share Name has at least one character and none of `/ + #` (MQTT-4.8.2-1, -2).
pub(crate) fn is_valid_share_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '+', '#', '\0'])
}

/// Whether `filter` matches `topic`. Both must be well-formed.
///
/// A wildcard in the first level does not match a topic that begins with `$` (MQTT-4.7.2-1).
pub fn filter_matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let (mut filter, mut topic) = (filter.split('/'), topic.split('/'));
    loop {
        match (filter.next(), topic.next()) {
            (Some("#"), _) => return true,
            (Some("+"), Some(_)) => {}
            (Some(f), Some(t)) if f == t => {}
            (None, None) => return true,
            _ => return false,
        }
    }
}

/// Whether every topic that `filter` can match is matched by `grant`. Both must be well-formed.
pub fn filter_contains(grant: &str, filter: &str) -> bool {
    if filter.starts_with('$') && grant.starts_with(['+', '#']) {
        return false;
    }
    // A topic name is not empty, so `#` reaches nothing that `+/#` does not, nor `/#` anything beyond `/+/#`.
    let filter = match filter {
        "#" => "+/#",
        "/#" => "/+/#",
        filter => filter,
    };
    let (mut grant, mut filter) = (grant.split('/'), filter.split('/'));
    loop {
        match (grant.next(), filter.next()) {
            // Also at the end of the filter: `a/#` matches `a`.
            (Some("#"), _) => return true,
            // Levels that are open towards the end fit only into levels that are.
            (_, Some("#")) => return false,
            (Some("+"), Some(_)) => {}
            (Some(g), Some(f)) if g == f => {}
            (None, None) => return true,
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests;
