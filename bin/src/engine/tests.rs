#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use rmqtt::context::ServerContext;
use rmqtt::hook::{Handler, HookResult, Parameter, ReturnType, Type};

/// Writes its name down when it is called.
struct Named(&'static str, Arc<Mutex<Vec<&'static str>>>);

#[async_trait]
impl Handler for Named {
    async fn hook(&self, _: &Parameter, acc: Option<HookResult>) -> ReturnType {
        self.1.lock().push(self.0);
        (true, acc)
    }
}

/// The priorities of our plugins rest on this, and the engine's documentation says the opposite.
#[tokio::test]
async fn the_engine_runs_the_highest_priority_first() {
    let scx = ServerContext::new().build().await;
    let called = Arc::new(Mutex::new(Vec::new()));
    let register = scx.extends.hook_mgr().register();
    for (name, priority) in [("low", 10), ("high", 200), ("default", 0), ("max", u32::MAX)] {
        register.add_priority(Type::BeforeStartup, priority, Box::new(Named(name, called.clone()))).await;
    }
    register.start().await;
    scx.extends.hook_mgr().before_startup().await;
    assert_eq!(*called.lock(), ["max", "high", "low", "default"]);
}

#[test]
fn our_plugins_stand_where_the_others_expect_them() {
    // What the engine sorts by, with the official plugins' defaults: auth-http, auth-jwt, acl.
    let mut order = [
        ("expiry", ciqadamq_expiry::PRIORITY),
        ("acl", 10),
        ("auth-jwt", 50),
        ("auth-http", 100),
        ("ours", ciqadamq_auth::PRIORITY),
        ("ours", ciqadamq_topic_acl::PRIORITY),
        ("metrics", ciqadamq_metrics::PRIORITY),
    ];
    let expected = order.map(|(name, _)| name);
    order.sort_by_key(|(_, priority)| *priority);
    assert_eq!(order.map(|(name, _)| name), expected);
    // Plugins that rewrite a message without a priority of their own stand at 0, with the cap on its expiry.
    assert_eq!(order[0].1, 0);
}

#[test]
fn packets_wait_for_nothing_unless_they_are_allowed_to() {
    let set = |tcp_nodelay| {
        let mqtt = crate::config::Mqtt { tcp_nodelay, ..Default::default() };
        super::listener(&mqtt, "tcp", ([127, 0, 0, 1], 0).into()).nodelay
    };
    assert!(set(true) && !set(false));
}
