//! What an operator wants to see first: what this is, what it read, where it listens, what runs, what it promises.

use tracing::{info, warn};

use crate::cli::ENGINE;
use crate::config::{Config, Durability, Loaded, OWN_PLUGINS};
use crate::official;

/// Logs the start of this process.
pub fn print(loaded: &Loaded) {
    let Loaded { config, source, warnings } = loaded;
    info!(version = env!("CARGO_PKG_VERSION"), engine = ENGINE, pid = std::process::id(), "ciqadamq");
    info!(%source, "configuration");
    for (key, addr) in config.mqtt.listeners() {
        info!(protocol = protocol(key), %addr, "mqtt listener");
    }
    info!(addr = %config.api.addr, "api listener");
    info!(started = %running(config).join(", "), "plugins");
    info!("{}", durability(config));
    for warning in warnings {
        warn!("{warning}");
    }
}

/// What a crash or a restart leaves.
fn durability(config: &Config) -> String {
    let retained = match config.plugins.starts("rmqtt-retainer", !config.keeps_sessions()) {
        true => "; retained messages are kept as rmqtt-retainer is set up (on disk by default)",
        false if config.keeps_sessions() => ", and retained messages too",
        false => "; retained messages are off",
    };
    let sessions = match config.mqtt.durability {
        _ if !config.keeps_sessions() => "in memory and do not survive a restart".into(),
        Durability::Memory => "in memory (mqtt.durability) and do not survive a restart".into(),
        Durability::Fsync => "on disk before a message is acknowledged".into(),
        Durability::Interval => {
            format!(
                "with the operating system before a message is acknowledged, and on disk {} s later",
                config.mqtt.msg_flush_secs
            )
        }
    };
    format!(
        "durability: users are on disk ({}) before a request is answered; persistent sessions and their queues are \
         {sessions}{retained}",
        config.db.url.path.display()
    )
}

/// The plugins that start, ours first.
pub fn running(config: &Config) -> Vec<&'static str> {
    let own = OWN_PLUGINS.iter().map(|(name, _)| *name);
    let own = own.filter(|name| config.plugins.starts(name, true));
    // It is no plugin that starts and does nothing.
    let own = own.filter(|name| *name != "ciqadamq-session-store" || config.keeps_sessions());
    own.chain(official::PLUGINS.iter().filter(|plugin| plugin.starts(config)).map(|plugin| plugin.name)).collect()
}

/// All plugins of this build, ours first.
pub fn all() -> Vec<&'static str> {
    let own = OWN_PLUGINS.iter().map(|(name, _)| *name);
    own.chain(official::PLUGINS.iter().map(|plugin| plugin.name)).collect()
}

fn protocol(key: &str) -> &'static str {
    match key {
        "mqtt.tcp_addr" => "tcp",
        "mqtt.ws_addr" => "ws",
        "mqtt.tls_addr" => "tls",
        _ => "wss",
    }
}
