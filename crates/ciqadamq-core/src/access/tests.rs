use super::*;
use proptest::prelude::*;

fn rules() -> AccessRules {
    let list = |items: &[&str]| items.iter().map(|s| s.to_string()).collect::<Vec<_>>();
    AccessRules::new(
        &list(&["chatsync", "updates", "in/{userid}/x", "dev/{clientid}", "by/{username}"]),
        &list(&["fanout", "news/all"]),
        &list(&["adminfanout"]),
    )
    .unwrap()
}

const A: Subject<'static> =
    Subject { username: "tok-a", userid: "ua", client_id: "dev1", superuser: false, admin: false };

#[test]
fn a_user_publishes_to_the_configured_topics_and_nowhere_else() {
    let rules = rules();
    for topic in ["chatsync", "updates", "in/ua/x", "dev/dev1", "by/tok-a"] {
        assert!(matches!(rules.may_publish(&A, topic), Ok(Grant::PublishTopic(_))), "{topic}");
    }
    for topic in [
        "chatsync/x",
        "/chatsync",
        "chat/ua/m/all",
        "in/ub/x",
        "in/ua",
        "dev/dev2",
        "$SYS/x",
        "Chatsync",
        "fanout/all",
        "chatsync/",
    ] {
        assert_eq!(rules.may_publish(&A, topic), Err(PublishRefusal::NotGranted), "{topic}");
    }
    for topic in ["", "#", "in/+/x", "chatsync\0"] {
        assert!(matches!(rules.may_publish(&A, topic), Err(PublishRefusal::TopicName(_))), "{topic:?}");
    }
}

#[test]
fn a_client_id_that_looks_like_a_pattern_stays_one_literal_level() {
    let rules = rules();
    for client_id in ["#", "+", "a/b", "%c", "{userid}", ""] {
        let subject = Subject { client_id, ..A };
        for topic in ["dev/x", "dev/a/b", "dev/ua", "in/ub/x", "dev/dev1"] {
            assert!(rules.may_publish(&subject, topic).is_err(), "{client_id:?} {topic}");
        }
    }
}

#[test]
fn a_user_subscribes_own_topics_and_fanout() {
    let rules = rules();
    for filter in ["chat/ua/m/all", "+/ua/#", "chat/ua/+/all", "chat/ua"] {
        assert_eq!(rules.may_subscribe(&A, filter), Ok(Grant::OwnTopics), "{filter}");
    }
    for filter in ["fanout/#", "fanout/x", "fanout/+/y", "fanout", "news/all/x"] {
        assert!(matches!(rules.may_subscribe(&A, filter), Ok(Grant::FanoutPrefix(_))), "{filter}");
    }
    for filter in ["#", "+/+/#", "chat/+/m", "chat/ub/m/all", "adminfanout/#", "news/#", "fanout2/x", "+/x", "chatsync"]
    {
        assert_eq!(rules.may_subscribe(&A, filter), Err(SubscribeRefusal::NotGranted), "{filter}");
    }
    let admin = Subject { admin: true, ..A };
    assert!(matches!(rules.may_subscribe(&admin, "adminfanout/x"), Ok(Grant::AdminPrefix(_))));
    assert!(rules.may_subscribe(&admin, "chat/ub/m").is_err());
}

#[test]
fn shared_subscriptions_are_judged_by_the_filter_inside() {
    let rules = rules();
    assert_eq!(rules.may_subscribe(&A, "$share/g/chat/ua/#"), Ok(Grant::OwnTopics));
    for filter in ["$share/g/chat/ub/#", "$share/g/#", "$share/g/+/ub/x"] {
        assert_eq!(rules.may_subscribe(&A, filter), Err(SubscribeRefusal::NotGranted), "{filter}");
    }
    for filter in ["$SHARE/g/chat/ua/x", "$queue/chat/ua/x", "$SYS/ua/x", "$share/g/$SYS/#", "$x/ua/#"] {
        assert_eq!(rules.may_subscribe(&A, filter), Err(SubscribeRefusal::Reserved), "{filter}");
    }
    assert_eq!(rules.may_subscribe(&A, "$exclusive/chat/ua/x"), Err(SubscribeRefusal::PrefixDisabled));
    let on = rules.clone().with_limit_prefixes(true);
    assert_eq!(on.may_subscribe(&A, "$exclusive/chat/ua/x"), Ok(Grant::OwnTopics));
    assert_eq!(on.may_subscribe(&A, "$limit/1/chat/ub/x"), Err(SubscribeRefusal::NotGranted));
    assert!(on.may_subscribe(&A, "$share/g/$share/h/chat/ua/x").is_err());
}

#[test]
fn a_superuser_is_bound_by_the_protocol_alone() {
    let rules = rules();
    let root = Subject { superuser: true, ..A };
    for topic in ["chat/ub/m/all", "$SYS/x"] {
        assert_eq!(rules.may_publish(&root, topic), Ok(Grant::Superuser));
    }
    for filter in ["#", "$SYS/#", "$share/g/#"] {
        assert_eq!(rules.may_subscribe(&root, filter), Ok(Grant::Superuser));
    }
    assert!(rules.may_publish(&root, "a/+").is_err() && rules.may_publish(&root, "").is_err());
    assert!(rules.may_subscribe(&root, "a#").is_err() && rules.may_subscribe(&root, "$share/+/x").is_err());
}

#[test]
fn every_bad_entry_of_the_configuration_is_named() {
    let list = |items: &[&str]| items.iter().map(|s| s.to_string()).collect::<Vec<_>>();
    let errors =
        AccessRules::new(&list(&["ok", "a/+", "x{userid}", "{nobody}"]), &list(&["#", "a/"]), &list(&["$SYS"]))
            .unwrap_err();
    assert_eq!(errors.len(), 6, "{errors:?}");
}

#[test]
fn automatic_filters_are_all_allowed() {
    let rules = rules();
    let admin = Subject { admin: true, ..A };
    let filters = rules.automatic_filters(&admin);
    assert_eq!(filters, ["+/ua/#", "fanout/#", "news/all/#", "adminfanout/#"]);
    assert!(filters.iter().all(|f| rules.may_subscribe(&admin, f).is_ok()));
}

proptest! {
    #[test]
    fn own_topics_are_exactly_what_the_grant_contains(
        filter in prop::collection::vec(prop::sample::select(vec!["ua", "ub", "chat", "", "$s", "+", "#"]), 1..5)
    ) {
        let filter = filter.join("/");
        prop_assume!(is_valid_filter(&filter).is_ok());
        prop_assert_eq!(own_topics_contain("ua", &filter), filter_contains("+/ua/#", &filter));
    }
}

#[test]
fn deep_names_and_filters_are_refused_even_to_a_superuser() {
    let root = Subject { superuser: true, ..A };
    let deep = |levels: usize| vec!["x"; levels].join("/");
    let rules = rules().with_levels_max(10);
    assert!(rules.may_publish(&root, &deep(10)).is_ok());
    assert_eq!(
        rules.may_publish(&root, &deep(11)),
        Err(PublishRefusal::TopicName(crate::TopicNameFault::TooManyLevels))
    );
    assert!(rules.may_subscribe(&root, &deep(10)).is_ok());
    assert_eq!(rules.may_subscribe(&root, &deep(11)), Err(SubscribeRefusal::Filter(crate::FilterFault::TooManyLevels)));
    // Empty levels are levels.
    assert!(rules.may_subscribe(&A, &format!("chat/ua{}", "/".repeat(9))).is_err());
    assert!(rules.may_subscribe(&A, &format!("chat/ua{}", "/".repeat(8))).is_ok());
    assert!(rules.may_subscribe(&A, &format!("$share/g/chat/ua{}", "/".repeat(9))).is_err());
}

#[test]
fn the_retain_flag_may_be_for_superusers_only() {
    let root = Subject { superuser: true, ..A };
    assert!(rules().may_retain(&A).is_ok());
    let strict = rules().with_retain_for_superusers(true);
    assert_eq!(strict.may_retain(&A), Err(PublishRefusal::RetainNotAllowed));
    assert!(strict.may_retain(&root).is_ok());
}
