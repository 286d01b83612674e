//! A Last Will is a publish that nobody asks about later: it is judged at CONNECT.

use ciqadamq_tests::mqtt::{Answer, Properties, Publish, id, reason};
use ciqadamq_tests::{Broker, Connect, Link, Version};

#[test]
fn a_will_on_a_topic_that_may_not_be_published_refuses_the_connect() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let (ua, ub) = (broker.user("ua"), broker.user("ub"));
    let mut victim = broker.client(&ub, Version::V5, "victim");
    victim.subscribe(&["+/ub/#"]);
    for version in Version::COMMON {
        for link in Link::both() {
            for topic in
                ["chat/ub/m/all", "chat/ua/m/all", "$SYS/x", "$delayed/1/chat/ub/x", "$share/g/x", "a/#", "+/ub/x", "#"]
            {
                for retain in [false, true] {
                    for delay in [None, Some(1)] {
                        let mut will = Publish { retain, ..Publish::new(topic, "forged will", 1) };
                        if let Some(secs) = delay {
                            will.properties = Properties::new().int(id::WILL_DELAY, secs);
                        }
                        let connect = Connect::new(version, link.clone(), "attacker");
                        let connect = connect.login(&ua.username, &ua.password).persistent(60).will(will);
                        match broker.connect(&connect) {
                            Answer::Refused(code) => {
                                let expected = version.pick(reason::NOT_AUTHORIZED, reason::V3_NOT_AUTHORIZED);
                                assert_eq!(code, expected, "{topic} {version:?}");
                            }
                            // A topic name with a wildcard is a malformed packet before it is anything else.
                            Answer::Closed => assert!(topic.contains(['#', '+']), "{topic} {version:?}"),
                            Answer::Accepted(..) => panic!("{topic} {version:?} {link:?} was let in"),
                        }
                        if !version.is_v5() {
                            break;
                        }
                    }
                }
            }
        }
    }
    assert!(broker.rest.session("attacker").is_none());
    // A Will that is allowed, sent last: those before it would have come before it.
    let control = ua.connect(Version::V311, "control").will(Publish::new("updates", "control", 1));
    broker.connect(&control).accepted().0.cut();
    watcher.expect("updates", "control");
    assert_eq!(watcher.seen(), []);
    watcher.publish("end/ub", "end");
    assert_eq!(victim.until("end/ub", "end"), []);
}

#[test]
fn a_refused_retained_will_leaves_nothing_behind() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    let will = Publish::new("chat/ub/m", "forged", 1).retained();
    broker.connect(&ua.connect(Version::V311, "attacker").will(will)).refused();
    let control = ua.connect(Version::V311, "control").will(Publish::new("updates", "control", 1).retained());
    broker.connect(&control).accepted().0.cut();
    watcher.expect("updates", "control");
    let root = broker.superuser("root");
    let topics = ciqadamq_tests::eventually("the allowed will is retained", || {
        let mut late = broker.client(&root, Version::V5, "late");
        late.subscribe(&["#"]);
        late.publish_ok("end", "end", 1);
        let topics: Vec<_> = late.until("end", "end").into_iter().map(|message| message.topic).collect();
        topics.contains(&"updates".to_owned()).then_some(topics)
    });
    assert_eq!(topics, ["updates"]);
}

#[test]
fn an_allowed_will_fires_when_the_connection_is_lost() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    for version in Version::COMMON {
        for link in Link::both() {
            let connect = Connect::new(version, link, "phone").login(&ua.username, &ua.password);
            let connect = connect.will(Publish::new("updates", "lost", 1));
            broker.connect(&connect).accepted().0.cut();
            watcher.expect("updates", "lost");
        }
    }
}

#[test]
fn an_allowed_will_fires_when_the_keep_alive_runs_out() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    for version in Version::COMMON {
        let connect = ua.connect(version, "phone").keep_alive(1).will(Publish::new("updates", "silent", 1));
        let (mut phone, _) = broker.connect(&connect).accepted();
        watcher.expect("updates", "silent");
        phone.expect_closed();
    }
}

#[test]
fn an_allowed_will_fires_when_the_same_user_takes_the_session_over() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    for version in Version::COMMON {
        let connect = ua.connect(version, "phone").will(Publish::new("updates", "replaced", 1));
        let (mut first, _) = broker.connect(&connect).accepted();
        let (second, _) = broker.connect(&ua.connect(version, "phone")).accepted();
        first.expect_closed();
        watcher.expect("updates", "replaced");
        second.disconnect();
    }
}

#[test]
fn a_will_does_not_fire_after_a_goodbye() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    for version in Version::COMMON {
        let connect = ua.connect(version, "phone").will(Publish::new("updates", "never", 1));
        broker.connect(&connect).accepted().0.disconnect();
        broker.rest.wait_gone("phone");
    }
    assert_eq!(watcher.seen(), []);
}

#[test]
fn a_deleted_user_leaves_no_will() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    for version in Version::COMMON {
        let ua = broker.user("ua");
        let connect = ua.connect(version, "phone").will(Publish::new("updates", "never", 1));
        let (mut phone, _) = broker.connect(&connect).accepted();
        broker.rest.delete_user(&ua.username);
        phone.expect_closed();
        broker.rest.wait_gone("phone");
    }
    assert_eq!(watcher.seen(), []);
}

#[test]
fn a_delayed_will_of_a_user_deleted_meanwhile_is_not_sent() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let (ua, ub) = (broker.user("ua"), broker.user("ub"));
    let delayed = |text: &str| Publish {
        properties: Properties::new().int(id::WILL_DELAY, 2),
        ..Publish::new("updates", text, 1)
    };
    let deleted = ua.connect(Version::V5, "phone-a").persistent(60).will(delayed("never"));
    broker.connect(&deleted).accepted().0.cut();
    broker.rest.wait_offline("phone-a");
    // The same Will of a user who stays, a moment later: when it is there, the other one was due.
    let control = ub.connect(Version::V5, "phone-b").persistent(60).will(delayed("control"));
    broker.connect(&control).accepted().0.cut();
    broker.rest.delete_user(&ua.username);
    watcher.expect("updates", "control");
    assert_eq!(watcher.seen(), []);
}
