//! The store as rmqtt's plugin manager sees it.

use ciqadamq_core::UserDirectory;
use ciqadamq_user_store::{NAME, register};
use rmqtt::context::ServerContext;

use crate::support::{create, open};

#[tokio::test]
async fn the_plugin_shows_the_store_and_stays_active() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("users"));
    let scx = ServerContext::new().build().await;
    register(&scx, store.clone(), &prometheus::Registry::new()).await.unwrap();
    store.execute(create("a", "u")).await.unwrap();

    assert_eq!(NAME, "ciqadamq-user-store");
    let info = scx.plugins.get(NAME).unwrap().to_info(NAME).await.unwrap().to_json().unwrap();
    assert_eq!(info["name"], NAME);
    assert_eq!(info["active"], true);
    assert_eq!(info["attrs"]["users"], 1);
    assert_eq!(info["attrs"]["commits"], 1);
    assert!(info["attrs"]["read_only"].is_null());
    assert!(!scx.plugins.stop(NAME).await.unwrap());
    assert!(scx.plugins.is_active(NAME));
    assert_eq!(scx.plugins.get_config(NAME).await.unwrap()["batch"], 256);
    store.execute(create("b", "u")).await.unwrap();
}
