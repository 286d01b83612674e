use super::*;
use proptest::prelude::*;

#[test]
fn topic_names_with_wildcards_or_nul_are_faulty() {
    assert_eq!(topic_name_fault(""), Some(TopicNameFault::Empty));
    for name in ["+", "#", "a/+", "a/#", "a+b", "a#"] {
        assert_eq!(topic_name_fault(name), Some(TopicNameFault::Wildcard), "{name}");
    }
    assert_eq!(topic_name_fault("a\0b"), Some(TopicNameFault::Nul));
    assert_eq!(topic_name_fault(&"x".repeat(65_536)), Some(TopicNameFault::TooLong));
    for name in ["a", "/", "a//b", "$SYS/x", "ä/ö", &"x".repeat(65_535), &"/".repeat(1_000)] {
        assert_eq!(topic_name_fault(name), None);
    }
}

#[test]
fn wildcards_stand_alone_and_the_hash_stands_last() {
    for good in ["#", "+", "a/+/b", "+/+/#", "/", "//#", "a/#", "$share"] {
        assert_eq!(is_valid_filter(good), Ok(()), "{good}");
    }
    for bad in ["a+", "+a", "a#", "#/a", "a/#/b", "a/b+/c", "##", "++"] {
        assert_eq!(is_valid_filter(bad), Err(FilterFault::Wildcard), "{bad}");
    }
    assert_eq!(is_valid_filter(""), Err(FilterFault::Empty));
    assert_eq!(is_valid_filter("a\0"), Err(FilterFault::Nul));
}

#[test]
fn prefixes_are_taken_off_once_and_only_when_well_formed() {
    assert_eq!(split_prefix("a/b"), Ok((None, "a/b")));
    assert_eq!(split_prefix("$share/g/a/b"), Ok((Some(FilterPrefix::Share("g")), "a/b")));
    assert_eq!(split_prefix("$share/g//"), Ok((Some(FilterPrefix::Share("g")), "/")));
    assert_eq!(split_prefix("$exclusive/a"), Ok((Some(FilterPrefix::Exclusive), "a")));
    assert_eq!(split_prefix("$limit/3/a"), Ok((Some(FilterPrefix::Limit(3)), "a")));
    // not prefixes: ordinary filters that begin with `$`
    for plain in ["$SHARE/g/a", "$queue/a", "$SYS/#", "$shared/g/a"] {
        assert_eq!(split_prefix(plain), Ok((None, plain)));
    }
    for bad in [
        "$share",
        "$share/g",
        "$share/g/",
        "$share//a",
        "$share/g+/a",
        "$share/#/a",
        "$limit/x/a",
        "$limit/1",
        "$exclusive",
        "$exclusive/",
    ] {
        assert_eq!(split_prefix(bad), Err(FilterFault::Prefix), "{bad}");
    }
    for nested in [
        "$share/g/$share/h/a",
        "$share/g/$exclusive/a",
        "$exclusive/$exclusive/a",
        "$limit/1/$share/g/a",
        "$share/g/$share",
    ] {
        assert_eq!(split_prefix(nested), Err(FilterFault::NestedPrefix), "{nested}");
    }
}

#[test]
fn leading_wildcards_do_not_see_dollar_topics() {
    for filter in ["#", "+/x", "+/#"] {
        assert!(!filter_matches(filter, "$SYS/x"), "{filter}");
    }
    assert!(filter_matches("$SYS/#", "$SYS/x"));
    assert!(filter_matches("a/+", "a/$b"));
    assert!(!filter_contains("#", "$SYS/x") && !filter_contains("+/#", "$SYS/#"));
}

#[test]
fn containment_is_of_filters_and_not_of_what_they_match_today() {
    let own = "+/ua/#";
    for inside in ["chat/ua/m", "chat/ua/+/all", "+/ua/#", "+/ua/+", "chat/ua/#", "chat/ua", "/ua", "+/ua"] {
        assert!(filter_contains(own, inside), "{inside}");
    }
    for outside in ["#", "+/+/#", "chat/+/m", "chat/ub/m", "ua/#", "chat/#", "+", "+/#", "$x/ua/m", "ua", "a/b/ua"] {
        assert!(!filter_contains(own, outside), "{outside}");
    }
}

#[test]
fn an_open_filter_does_not_reach_the_empty_topic_which_is_none() {
    for (grant, filter) in [("+/#", "#"), ("#", "#"), ("/+/#", "/#"), ("+/+/#", "/#"), ("/#", "/#")] {
        assert!(filter_contains(grant, filter), "{grant} {filter}");
    }
    for (grant, filter) in [("+/+/#", "#"), ("/+/+/#", "/#"), ("a/+/#", "a/#"), ("//#", "/#")] {
        assert!(!filter_contains(grant, filter), "{grant} {filter}");
    }
}

fn level() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "", "$s", "+"])
}

fn filter() -> impl Strategy<Value = String> {
    (prop::collection::vec(level(), 0..4), any::<bool>()).prop_filter_map("empty", |(mut levels, open)| {
        if open {
            levels.push("#");
        }
        let text = levels.join("/");
        (!text.is_empty()).then_some(text)
    })
}

/// All topics over an alphabet that has one letter no filter uses: a `+` stands for at least that one.
fn topics() -> Vec<String> {
    let alphabet = ["a", "b", "", "$s", "other"];
    let mut all: Vec<Vec<&str>> = vec![vec![]];
    let mut topics = Vec::new();
    // One level more than the deepest filter, so that a `#` has something to reach.
    for _ in 0..5 {
        all = all.iter().flat_map(|t| alphabet.iter().map(move |l| [t.as_slice(), &[l]].concat())).collect();
        topics.extend(all.iter().map(|t| t.join("/")).filter(|t| !t.is_empty()));
    }
    topics
}

/// Matching as the standard words it, written as differently as possible: recursion over vectors.
fn reference_match(filter: &[&str], topic: &[&str]) -> bool {
    match (filter, topic) {
        (["#"], _) => true,
        ([], []) => true,
        (["+", f @ ..], [_, t @ ..]) => reference_match(f, t),
        ([x, f @ ..], [y, t @ ..]) => x == y && reference_match(f, t),
        _ => false,
    }
}

fn reference(filter: &str, topic: &str) -> bool {
    let (f, t): (Vec<_>, Vec<_>) = (filter.split('/').collect(), topic.split('/').collect());
    !(topic.starts_with('$') && matches!(f[0], "+" | "#")) && reference_match(&f, &t)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_filter_is_contained_if_and_only_if_every_topic_it_matches_is_granted(grant in filter(), filter in filter()) {
        let escapes = topics().into_iter().find(|t| reference(&filter, t) && !reference(&grant, t));
        prop_assert_eq!(filter_contains(&grant, &filter), escapes.is_none(), "{:?} escapes", escapes);
    }

    #[test]
    fn matching_agrees_with_the_reference(filter in filter()) {
        for topic in topics() {
            prop_assert_eq!(filter_matches(&filter, &topic), reference(&filter, &topic), "{} {}", filter, topic);
        }
    }

    #[test]
    fn no_text_makes_the_parsers_panic(text in "\\PC*", other in "[a+#/$]{0,12}") {
        let _: Result<(), FilterFault> = is_valid_filter(&text);
        let _: Option<TopicNameFault> = topic_name_fault(&text);
        if let Ok((_, rest)) = split_prefix(&other) {
            let _: bool = filter_contains(rest, &other);
        }
    }
}
