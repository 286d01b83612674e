//! The users as rmqtt's plugin manager sees them.

use ciqadamq_core::UserDirectory;
use ciqadamq_user_store::{NAME, register};
use rmqtt::context::ServerContext;

use crate::support::{Cluster, create};

#[tokio::test(flavor = "multi_thread")]
async fn the_plugin_shows_the_store_and_stays_active() {
    let mut cluster = Cluster::new(&[]);
    cluster.try_start(0, &[]).await.unwrap();
    let users = cluster.users(0).clone();
    let scx = ServerContext::new().build().await;
    register(&scx, &users, &prometheus::Registry::new()).await.unwrap();
    users.execute(create("a")).await.unwrap();

    assert_eq!(NAME, "ciqadamq-user-store");
    let info = scx.plugins.get(NAME).unwrap().to_info(NAME).await.unwrap().to_json().unwrap();
    assert_eq!(info["name"], NAME);
    assert_eq!(info["active"], true);
    assert_eq!(info["attrs"]["users"], 1);
    assert!(info["attrs"]["read_only"].is_null());
    assert!(!scx.plugins.stop(NAME).await.unwrap());
    assert!(scx.plugins.is_active(NAME));
    assert_eq!(scx.plugins.get_config(NAME).await.unwrap()["batch"], 256);
    users.execute(create("b")).await.unwrap();
}
