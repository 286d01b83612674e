//! Official plugins switched on and off; retained messages.

use std::fs;

use ciqadamq_tests::mqtt::Publish;
use ciqadamq_tests::{Broker, BrokerOptions, Version, command, eventually, free_addresses, request};

fn active(broker: &Broker, name: &str) -> bool {
    let view = broker.rest.get("/api/v1/cluster").json();
    let plugins = view["nodes"][0]["plugins"].as_array().cloned().unwrap_or_default();
    plugins.iter().any(|plugin| plugin["name"] == name && plugin["active"] == true)
}

#[test]
fn a_retained_message_is_given_to_who_comes_later_and_can_be_cleared() {
    let broker = Broker::start_default();
    let mut watcher = broker.watch();
    let ua = broker.user("ua");
    watcher.client().publish(&Publish::new("chat/ua/state", "on", 1).retained());
    for version in Version::COMMON {
        let message = eventually("it is retained", || {
            let mut phone = broker.client(&ua, version, "phone");
            phone.subscribe(&["chat/ua/#"]);
            watcher.publish("chat/ua/end", "end");
            phone.until("chat/ua/end", "end").into_iter().next()
        });
        assert_eq!((message.topic.as_str(), message.text().as_str(), message.retain), ("chat/ua/state", "on", true));
    }
    watcher.client().publish(&Publish::new("chat/ua/state", "", 1).retained());
    eventually("it is cleared", || {
        let mut phone = broker.client(&ua, Version::V5, "phone");
        phone.subscribe(&["chat/ua/#"]);
        watcher.publish("chat/ua/end", "end");
        phone.until("chat/ua/end", "end").is_empty().then_some(())
    });
}

#[test]
fn a_retained_message_survives_a_restart() {
    let mut broker = Broker::start_default();
    let (root, ua) = (broker.superuser("root"), broker.user("ua"));
    let mut publisher = broker.client(&root, Version::V5, "publisher");
    publisher.publish(&Publish::new("chat/ua/state", "on", 1).retained());
    let given = |broker: &Broker| {
        let mut publisher = broker.client(&root, Version::V5, "publisher");
        let mut phone = broker.client(&ua, Version::V5, "phone");
        phone.subscribe(&["chat/ua/#"]);
        publisher.publish_ok("chat/ua/end", "end", 1);
        phone.until("chat/ua/end", "end").into_iter().next()
    };
    eventually("it is retained", || given(&broker));
    broker.restart();
    assert_eq!(eventually("it is there again", || given(&broker)).text(), "on");
}

#[test]
fn http_api_switched_on_has_a_loopback_address_and_a_token() {
    // Its built-in port is a fixed one, which another test may be using; nothing else differs.
    let [addr] = free_addresses();
    let options = BrokerOptions::new()
        .set("plugins.enable", ["rmqtt-http-api"])
        .env("RMQTT_PLUGIN_RMQTT_HTTP_API_HTTP_LADDR", &addr.to_string());
    let broker = Broker::start(options);
    assert!(active(&broker, "rmqtt-http-api"));
    let token = fs::read_to_string(broker.dir().join("data/http-api-token")).unwrap();
    let right = format!("Bearer {}", token.trim());
    let wrong = format!("Bearer {}", broker.rest.token);
    for path in ["/api/v1/clients", "/api/v1/brokers", "/api/v1/plugins"] {
        let status = eventually("it listens", || request(addr, "GET", path, &[], None).ok()).status;
        assert_eq!(status, 401, "{path} without a token");
        let answer = |token: &str| request(addr, "GET", path, &[("Authorization", token)], None).unwrap().status;
        assert_eq!((answer(&wrong), answer(&right)), (401, 200), "{path}");
    }
    let body = br#"{"topic":"chat/ua/x","payload":"forged","qos":1,"clientid":"x"}"#;
    let headers = [("Content-Type", "application/json")];
    let response = request(addr, "POST", "/api/v1/mqtt/publish", &headers, Some(body)).unwrap();
    assert_eq!(response.status, 401);
    assert!(!broker.log().contains(token.trim()), "its token is in the log");
}

#[test]
fn http_api_with_a_file_but_no_token_does_not_start() {
    let dir = tempfile::TempDir::new().unwrap();
    fs::write(dir.path().join("rmqtt-http-api.toml"), "http_laddr = \"127.0.0.1:6060\"\n").unwrap();
    let config = format!("[plugins]\ndir = \"{}\"\nenable = [\"rmqtt-http-api\"]\n", dir.path().display());
    fs::write(dir.path().join("main.cfg"), config).unwrap();
    let output = command(dir.path()).args(["check-config", "--config", "main.cfg"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("http_bearer_token"));
}

#[test]
fn plugins_are_switched_on_the_command_line() {
    let broker =
        Broker::start(BrokerOptions::new().args(&["--disable", "rmqtt-retainer", "--enable", "rmqtt-counter"]));
    assert!(!active(&broker, "rmqtt-retainer") && active(&broker, "rmqtt-counter"));
}

#[test]
fn an_official_plugin_that_is_on_does_not_widen_the_access_rule() {
    let options = BrokerOptions::new().set("acl.on_deny", "drop").args(&[
        "--enable",
        "rmqtt-delayed",
        "--enable",
        "rmqtt-p2p-messaging",
        "--enable",
        "rmqtt-sys-topic",
        "--enable",
        "rmqtt-shared-subscription",
    ]);
    let broker = Broker::start(options);
    let mut watcher = broker.watch();
    let (ua, ub) = (broker.user("ua"), broker.user("ub"));
    let mut victim = broker.client(&ub, Version::V5, "victim");
    victim.subscribe(&["+/ub/#"]);
    for version in Version::COMMON {
        let mut client = broker.client(&ua, version, "attacker");
        for filter in ["$SYS/#", "$share/g/chat/ub/#", "$delayed/1/chat/ub/x", "$p2p/victim/x", "p2p/victim/x"] {
            assert!(!client.may_subscribe(filter), "{filter}");
        }
        for topic in ["$delayed/1/chat/ub/x", "p2p/victim/chatsync", "$p2p/victim/chat/ub/x", "chat/ub/x/p2p/victim"] {
            client.publish(&Publish::new(topic, "forged", 1));
        }
        assert!(client.ping());
    }
    // Longer than the delay that was asked for: a delayed message of somebody who may send it comes after.
    watcher.client().publish(&Publish::new("$delayed/2/end/ub", "end", 1));
    let got: Vec<_> = victim.until("end/ub", "end").into_iter().map(|message| message.topic).collect();
    assert_eq!(got, Vec::<String>::new());
    assert_eq!(watcher.seen().iter().filter(|(_, text)| text == "forged").count(), 0);
}
