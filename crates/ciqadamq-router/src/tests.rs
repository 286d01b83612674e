//! The router against the engine's own, and against many at once.

use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;

use async_trait::async_trait;
use futures::channel::mpsc::unbounded;
use proptest::prelude::*;
use rmqtt::codec::types::QoS;
use rmqtt::codec::v5::RetainHandling;
use rmqtt::context::ServerContext;
use rmqtt::net::Builder;
use rmqtt::router::{DefaultRouter, Router};
use rmqtt::session::Session;
use rmqtt::subscribe::SharedSubscription;
use rmqtt::types::*;

use crate::memo::{Counts, Memo};
use crate::recipients::Member;
use crate::router::RememberingRouter;

const FILTERS: &[&str] = &[
    "a", "b", "a/b", "a/+", "+/b", "+", "#", "+/#", "a/#", "a/b/#", "a/b/c", "+/+/c", "a//c", "+/+", "/", "/a",
    "$SYS/#", "$SYS/a", "$SYS/+", "u1/x", "+/x",
];
const TOPICS: &[&str] = &["a", "b", "a/b", "a/b/c", "a//c", "/", "/a", "$SYS/a", "$SYS/a/b", "u1/x", "u2/x", "c/c/c"];
const CLIENTS: usize = 6;
const GROUPS: &[&str] = &["g", "h"];

#[derive(Debug, Clone)]
enum Step {
    Subscribe { filter: usize, client: usize, options: SubscriptionOptions },
    Unsubscribe { filter: usize, client: usize, is_predecessor: bool },
    Online { client: usize, online: bool },
    Publish { topic: usize, client: usize },
}

fn options() -> impl Strategy<Value = SubscriptionOptions> {
    let group = prop_oneof![3 => Just(None), 1 => prop::sample::select(GROUPS).prop_map(|group| Some(group.into()))];
    let id = prop::option::of(1u32..5).prop_map(|id| id.and_then(NonZeroU32::new));
    let qos = prop::sample::select(vec![QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]);
    let limit = prop::option::of(1usize..3);
    (any::<bool>(), qos, group, limit, any::<bool>(), id).prop_map(
        |(v5, qos, group, limit_subs, no_local, id)| match v5 {
            true => SubscriptionOptions::V5(SubOptionsV5 {
                qos,
                shared_group: group,
                limit_subs,
                no_local,
                retain_as_published: false,
                retain_handling: RetainHandling::AtSubscribe,
                id,
            }),
            false => SubscriptionOptions::V3(SubOptionsV3 { qos, shared_group: group, limit_subs }),
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let (filter, client, topic) = (0..FILTERS.len(), 0..CLIENTS, 0..TOPICS.len());
    prop_oneof![
        4 => (filter.clone(), client.clone(), options())
            .prop_map(|(filter, client, options)| Step::Subscribe { filter, client, options }),
        3 => (filter, client.clone(), prop::bool::weighted(0.1))
            .prop_map(|(filter, client, is_predecessor)| Step::Unsubscribe { filter, client, is_predecessor }),
        1 => (client.clone(), any::<bool>()).prop_map(|(client, online)| Step::Online { client, online }),
        6 => (topic, client).prop_map(|(topic, client)| Step::Publish { topic, client }),
    ]
}

/// The engine, with a choice among the members of a shared subscription that does not depend on their order.
async fn engine() -> ServerContext {
    struct First;

    #[async_trait]
    impl SharedSubscription for First {
        fn is_supported(&self) -> bool {
            true
        }
        async fn choice(
            &self,
            _: &ServerContext,
            _: &SharedGroup,
            _: &Id,
            _: &TopicName,
            members: &[Member],
        ) -> Option<(usize, IsOnline)> {
            let online = members.iter().enumerate().filter(|(_, member)| member.4 == Some(true));
            let first = online.min_by_key(|(_, member)| member.1.clone());
            let any = || members.iter().enumerate().min_by_key(|(_, member)| member.1.clone());
            first.or_else(any).map(|(at, member)| (at, member.4 == Some(true)))
        }
    }

    let scx = ServerContext::new().node_id(1).busy_check_enable(false).build().await;
    *scx.extends.shared_subscription_mut().await = Box::new(First);
    scx
}

fn id(node: NodeId, name: &str, lid: ListenerId) -> Id {
    Id::new(node, lid, None, None, ClientId::from(name), None)
}

/// Who comes with this Client Identifier when `before` is a moment ago.
fn later(before: &Id, of: Id) -> Id {
    loop {
        let id = id(of.node_id, &of.client_id, of.lid);
        if id.create_time > before.create_time {
            return id;
        }
        std::thread::yield_now();
    }
}

async fn set_online(scx: &ServerContext, id: &Id, online: bool) {
    let connection = Arc::new(ConnectInfo::from(id.clone()));
    let listener = Arc::new(Builder::new());
    let fitter = scx.extends.fitter_mgr().await.create(connection.clone(), id.clone(), listener.clone());
    let subscriptions = SessionSubs::new();
    let session = Session::new(
        id.clone(),
        scx.clone(),
        10,
        listener,
        fitter,
        None,
        NonZeroU16::MIN,
        0,
        connection,
        false,
        false,
        online,
        0,
        subscriptions,
        None,
        None,
    );
    let mut entry = scx.extends.shared().await.entry(id.clone());
    entry.set(session.await.unwrap(), SessionTx::new(unbounded().0)).await.unwrap();
}

/// A result without what has no meaning: the order, and which of a v5 client's subscriptions its options come from.
fn comparable(relations: SubRelationsMap) -> Vec<String> {
    let mut all: Vec<_> = relations
        .into_iter()
        .flat_map(|(node, relations)| relations.into_iter().map(move |relation| (node, relation)))
        .map(|(node, (filter, client, options, mut identifiers, mut group))| {
            identifiers.iter_mut().for_each(|ids| ids.sort());
            group.iter_mut().for_each(|(_, _, members)| members.sort());
            let options = options.is_v3().then_some((filter, options));
            format!("{node} {client} {options:?} {identifiers:?} {group:?}")
        })
        .collect();
    all.sort();
    all
}

/// The highest QoS that a v5 client has for a topic, if its subscriptions are all its own.
async fn highest_qos(router: &dyn Router, publisher: &Id, topic: &str, client: &str) -> Option<u8> {
    let mut highest = None;
    for route in router.get(topic).await.unwrap() {
        let subscribers = router.relations().get(&route.topic)?;
        let Some((id, options)) = subscribers.get(client) else { continue };
        if options.has_shared_group() || options.is_v3() {
            return None;
        }
        if options.no_local() != Some(true) || id != publisher {
            highest = highest.max(Some(options.qos_value()));
        }
    }
    highest
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn it_routes_as_the_engine_does(steps in prop::collection::vec(step(), 1..120)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let scx = engine().await;
            let memo = Arc::new(Memo::new());
            let (ours, theirs) = (RememberingRouter::new(scx.clone(), memo), DefaultRouter::new(Some(scx.clone())));
            // The last one lives on another node.
            let all = || (0..CLIENTS).map(|n| id(if n == CLIENTS - 1 { 2 } else { 1 }, &format!("c{n}"), 1));
            let predecessors: Vec<_> = all().collect();
            let ids: Vec<_> = all().map(|id| later(&predecessors[CLIENTS - 1], id)).collect();
            for step in steps {
                match step {
                    Step::Subscribe { filter, client, options } => {
                        ours.add(FILTERS[filter], ids[client].clone(), options.clone()).await.unwrap();
                        theirs.add(FILTERS[filter], ids[client].clone(), options).await.unwrap();
                    }
                    Step::Unsubscribe { filter, client, is_predecessor } => {
                        let id = if is_predecessor { predecessors[client].clone() } else { ids[client].clone() };
                        let removed = ours.remove(FILTERS[filter], id.clone()).await.unwrap();
                        prop_assert_eq!(removed, theirs.remove(FILTERS[filter], id).await.unwrap());
                    }
                    Step::Online { client, online } => set_online(&scx, &ids[client], online).await,
                    Step::Publish { topic, client } => {
                        let topic = TopicName::from(TOPICS[topic]);
                        let publisher = &ids[client];
                        let found = ours.matches(publisher.clone(), &topic).await.unwrap();
                        let expected = theirs.matches(publisher.clone(), &topic).await.unwrap();
                        for (_, client, options, _, _) in found.values().flatten() {
                            if let Some(qos) = highest_qos(&theirs, publisher, &topic, client).await {
                                prop_assert_eq!(options.qos_value(), qos);
                            }
                        }
                        prop_assert_eq!(comparable(found), comparable(expected));
                    }
                }
            }
            prop_assert_eq!(ours.topics_tree().await, theirs.topics_tree().await);
            prop_assert_eq!(ours.topics().count(), theirs.topics().count());
            prop_assert_eq!(ours.routes().count(), theirs.routes().count());
            Ok(())
        })?;
    }
}

async fn gets(router: &RememberingRouter, topic: &str, client: &str) -> bool {
    let relations = router.matches(id(1, "publisher", 1), &topic.into()).await.unwrap();
    relations.values().flatten().any(|(_, client_id, _, _, _)| client_id == client)
}

/// Each client subscribes and unsubscribes a filter of its own and one that all have, so that first and last subscribers come
/// and go all the time, while all publish to the same topics.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_subscription_is_seen_by_every_publish_that_begins_after_it() {
    const OWN: [&str; 4] = ["chat/u1/#", "+/u1/m", "#", "chat/+/m"];
    const ALL: &str = "chat/u1/m";
    let scx = engine().await;
    let router = Arc::new(RememberingRouter::new(scx, Arc::new(Memo::new())));
    let clients = OWN.map(|own| {
        let router = router.clone();
        tokio::spawn(async move {
            let client = id(1, own, 1);
            for round in 0..1500 {
                for filter in [own, ALL] {
                    router.add(filter, client.clone(), SubscriptionOptions::default()).await.unwrap();
                    assert!(gets(&router, "chat/u1/m", own).await, "round {round}: {filter} is not seen");
                    assert!(
                        router.remove(filter, client.clone()).await.unwrap(),
                        "round {round}: {filter} was not there"
                    );
                    assert!(!gets(&router, "chat/u1/m", own).await, "round {round}: {filter} is still there");
                }
            }
        })
    });
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!((router.topics_tree().await, router.topics().count(), router.routes().count()), (0, 0, 0));
    assert!(router.relations().is_empty());
}

#[tokio::test]
async fn a_v5_client_gets_one_copy_at_the_highest_qos_with_all_identifiers() {
    let router = RememberingRouter::new(engine().await, Arc::new(Memo::new()));
    for (n, filter) in (1..).zip(["#", "a/+", "a/b"]) {
        let qos = if filter == "a/+" { QoS::ExactlyOnce } else { QoS::AtMostOnce };
        let options = SubOptionsV5 {
            qos,
            shared_group: None,
            limit_subs: None,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::AtSubscribe,
            id: NonZeroU32::new(n),
        };
        router.add(filter, id(1, "phone", 1), SubscriptionOptions::V5(options)).await.unwrap();
    }
    let relations = router.matches(id(1, "p", 1), &"a/b".into()).await.unwrap();
    let [(filter, client, options, Some(identifiers), None)] = &relations[&1][..] else { panic!("{relations:?}") };
    let mut identifiers: Vec<_> = identifiers.iter().map(|id| id.get()).collect();
    identifiers.sort();
    assert_eq!(
        (&**filter, &**client, options.qos(), &*identifiers),
        ("a/+", "phone", QoS::ExactlyOnce, &[1, 2, 3][..])
    );
}

#[tokio::test]
async fn who_comes_and_goes_among_others_costs_no_search() {
    let memo = Arc::new(Memo::new());
    let router = RememberingRouter::new(engine().await, memo.clone());
    let subscribe = |client: &str| router.add("fanout/#", id(1, client, 1), SubscriptionOptions::default());
    subscribe("a").await.unwrap();
    assert!(gets(&router, "fanout/all", "a").await);
    subscribe("b").await.unwrap();
    assert!(gets(&router, "fanout/all", "b").await);
    assert_eq!(memo.counts(), Counts { hits: 1, misses: 1, evictions: 0 });
}

#[tokio::test]
async fn a_filter_without_subscribers_is_forgotten() {
    let memo = Arc::new(Memo::new());
    let router = RememberingRouter::new(engine().await, memo.clone());
    let a = id(1, "a", 1);
    router.add("t", a.clone(), SubscriptionOptions::default()).await.unwrap();
    assert!(gets(&router, "t", "a").await);
    assert!(router.remove("t", a.clone()).await.unwrap());
    assert!(!gets(&router, "t", "a").await);
    assert!(memo.get("t").is_none(), "what was remembered had a filter without subscribers");
    assert!(!gets(&router, "t", "a").await);
    assert!(memo.get("t").is_some_and(|known| known.filters.is_empty()), "nobody is an answer, too");
}

#[tokio::test]
async fn a_topic_name_that_is_none_is_an_error() {
    let router = RememberingRouter::new(engine().await, Arc::new(Memo::new()));
    assert!(router.matches(id(1, "p", 1), &"a/#/b".into()).await.is_err());
    assert!(router.add("a/#/b", id(1, "a", 1), SubscriptionOptions::default()).await.is_err());
    assert_eq!(router.topics_tree().await, 0);
}

#[tokio::test]
async fn what_a_predecessor_has_subscribed_ends_with_the_session_and_what_a_successor_has_does_not() {
    let router = RememberingRouter::new(engine().await, Arc::new(Memo::new()));
    let before = id(1, "phone", 1);
    let after = later(&before, before.clone());
    for (subscribes, ends, is_gone) in [(&before, &after, true), (&after, &before, false), (&after, &after, true)] {
        router.add("chat/u1/#", subscribes.clone(), SubscriptionOptions::default()).await.unwrap();
        assert_eq!(router.remove("chat/u1/#", ends.clone()).await.unwrap(), is_gone);
        assert_eq!(gets(&router, "chat/u1/m", "phone").await, !is_gone);
    }
}
