//! The plugin in a real plugin manager.

use ciqadamq_rest::{PLUGIN_NAME, RestConfig, register};
use rmqtt::context::ServerContext;
use serde_json::{Value, json};

use crate::support::{Parts, TOKEN, config, said};

async fn get(addr: std::net::SocketAddr, path: &str) -> (u16, Value) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    said(client.get(format!("http://{addr}{path}")).bearer_auth(TOKEN).send().await.unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_plugin_runs_and_can_be_stopped_and_started_again() {
    let scx = ServerContext::new().build().await;
    let handle = register(&scx, config(), Parts::new(None).deps()).await.unwrap();
    let addr = handle.local_addr().unwrap();
    let (status, view) = get(addr, "/api/v1/cluster").await;
    assert_eq!(status, 200);
    let plugins = &view["nodes"][0]["plugins"];
    assert_eq!(plugins[0], json!({"name": PLUGIN_NAME, "version": env!("CARGO_PKG_VERSION"), "active": true}));

    assert!(scx.plugins.stop(PLUGIN_NAME).await.unwrap());
    assert!(handle.local_addr().is_none() && !scx.plugins.is_active(PLUGIN_NAME));
    assert!(tokio::net::TcpStream::connect(addr).await.is_err());

    scx.plugins.start(PLUGIN_NAME).await.unwrap();
    let addr = handle.local_addr().unwrap();
    assert_eq!(get(addr, "/health").await.0, 200);
    assert_eq!(get(addr, "/api/v1/cluster").await.0, 200);

    handle.shutdown().await;
    handle.shutdown().await;
    assert!(handle.local_addr().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_the_plugins_and_a_stop_do_not_wait_for_each_other_for_ever() {
    let scx = ServerContext::new().build().await;
    let handle = register(&scx, config(), Parts::new(None).deps()).await.unwrap();
    let addr = handle.local_addr().unwrap();
    let asking: Vec<_> = (0..8)
        .map(|_| {
            tokio::spawn(async move {
                let client = reqwest::Client::builder().no_proxy().build().unwrap();
                // The stop may come first and close the door.
                while let Ok(answer) =
                    client.get(format!("http://{addr}/api/v1/cluster")).bearer_auth(TOKEN).send().await
                {
                    assert_eq!(answer.status(), 200);
                }
            })
        })
        .collect();
    tokio::time::timeout(std::time::Duration::from_secs(20), scx.plugins.stop(PLUGIN_NAME)).await.unwrap().unwrap();
    for task in asking {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_in_use_stops_the_registration_and_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    let scx = ServerContext::new().build().await;
    let error = register(&scx, RestConfig { addr, ..config() }, Parts::new(None).deps()).await.err().unwrap();
    assert!(error.to_string().contains(&addr.to_string()), "{error}");
}
