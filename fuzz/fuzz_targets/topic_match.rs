//! Topics and filters against a naive reference.
#![no_main]

use ciqadamq_core::{
    AccessRules, Grant, Subject, filter_contains, filter_matches, is_valid_filter, split_prefix, topic_name_fault,
};
use libfuzzer_sys::{Corpus, fuzz_target};

/// MQTT 5.0 §4.7, word by word.
fn matches(filter: &[&str], topic: &[&str]) -> bool {
    match (filter.split_first(), topic.split_first()) {
        (Some((&"#", _)), _) => true,
        (Some((f, filter)), Some((t, topic))) => (*f == "+" || f == t) && matches(filter, topic),
        (None, None) => true,
        _ => false,
    }
}

fn reference(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && (filter.starts_with('+') || filter.starts_with('#')) {
        return false;
    }
    matches(&filter.split('/').collect::<Vec<_>>(), &topic.split('/').collect::<Vec<_>>())
}

/// Topics that a filter matches, enough of them that one is outside of every grant that does not contain the filter: a
/// wildcard level becomes one that stands in no grant, or an empty one, and `#` becomes none to many of them.
fn witnesses(filter: &str, depth: usize) -> Vec<String> {
    let levels: Vec<&str> = filter.split('/').collect();
    let is_open = levels.last() == Some(&"#");
    let fixed = if is_open { &levels[..levels.len() - 1] } else { &levels[..] };
    let mut all = Vec::new();
    for fill in ["\u{1}", ""] {
        let head: Vec<&str> = fixed.iter().map(|level| if *level == "+" { fill } else { level }).collect();
        for more in 0..=(if is_open { depth } else { 0 }) {
            let topic = head.iter().copied().chain(std::iter::repeat_n(fill, more)).collect::<Vec<_>>().join("/");
            // An empty name is none, and `#` with nothing before it needs a level.
            if topic_name_fault(&topic).is_none() && (!head.is_empty() || more > 0) {
                all.push(topic);
            }
        }
    }
    all
}

fn rule() -> AccessRules {
    let list = |items: &[&str]| items.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    AccessRules::new(
        &list(&["chatsync", "in/{userid}", "dev/{clientid}/x"]),
        &list(&["fanout", "a/b"]),
        &list(&["adm"]),
    )
    .expect("a good rule")
}

fn access(raw: &str, topic: &str, userid: &str, client_id: &str, flags: u8) {
    let subject = Subject { username: "name", userid, client_id, superuser: flags & 1 != 0, admin: flags & 2 != 0 };
    let rules = rule();
    if let Ok(grant) = rules.may_subscribe(&subject, raw) {
        let (_, filter) = split_prefix(raw).expect("granted, so well-formed");
        is_valid_filter(filter).expect("granted, so a filter");
        if grant != Grant::Superuser {
            let own = format!("+/{userid}/#");
            let grants = [own.as_str(), "fanout/#", "a/b/#", "adm/#"];
            let grants = if subject.admin { &grants[..] } else { &grants[..3] };
            for topic in witnesses(filter, 6) {
                assert!(grants.iter().any(|grant| reference(grant, &topic)), "{raw:?} reaches {topic:?}");
                assert!(!topic.starts_with('$'));
            }
        }
    }
    if let Ok(grant) = rules.may_publish(&subject, topic) {
        assert!(topic_name_fault(topic).is_none());
        let allowed = ["chatsync".to_owned(), format!("in/{userid}"), format!("dev/{client_id}/x")];
        assert!(grant == Grant::Superuser || allowed.iter().any(|t| t == topic), "{topic:?} by {grant:?}");
    }
}

fuzz_target!(|data: &[u8]| -> Corpus {
    let Ok(text) = std::str::from_utf8(data) else { return Corpus::Reject };
    let mut parts = text.splitn(6, '\n');
    let (grant, filter, topic) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    let (userid, client_id) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    let flags = parts.next().and_then(|p| p.bytes().next()).unwrap_or(0);

    if is_valid_filter(filter).is_ok() && topic_name_fault(topic).is_none() {
        assert_eq!(filter_matches(filter, topic), reference(filter, topic), "{filter:?} {topic:?}");
    }
    // The reference's fresh level must not stand in the grant.
    if is_valid_filter(grant).is_ok() && is_valid_filter(filter).is_ok() && !grant.contains('\u{1}') {
        let contains = filter_contains(grant, filter);
        let depth = grant.split('/').count() + 1;
        let outside = witnesses(filter, depth).into_iter().find(|topic| !reference(grant, topic));
        assert_eq!(contains, outside.is_none(), "{grant:?} contains {filter:?}: {contains}, outside: {outside:?}");
    }
    if ciqadamq_core::UserId::new(userid).is_ok() && !filter.contains('\u{1}') {
        access(filter, topic, userid, client_id, flags);
    }
    Corpus::Keep
});
