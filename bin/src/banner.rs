//! What an operator wants to see first: what this is, what it read, where it listens, what runs, what it promises.

use tracing::{info, warn};

use crate::cli::ENGINE;
use crate::config::{Config, Loaded, OWN_PLUGINS};
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
    let retained = if config.plugins.starts("rmqtt-retainer", true) {
        "retained messages are kept as rmqtt-retainer is set up (on disk by default)"
    } else {
        "retained messages are off"
    };
    format!(
        "durability: users are on disk ({}) before a request is answered; {retained}; sessions and offline queues are \
         in memory and do not survive a restart",
        config.db.url.path.display()
    )
}

/// The plugins that start, ours first.
pub fn running(config: &Config) -> Vec<&'static str> {
    plugins().filter(|(name, default)| config.plugins.starts(name, *default)).map(|(name, _)| name).collect()
}

/// All plugins of this build, ours first.
pub fn all() -> Vec<&'static str> {
    plugins().map(|(name, _)| name).collect()
}

/// Name, and whether it starts by default.
fn plugins() -> impl Iterator<Item = (&'static str, bool)> {
    let own = OWN_PLUGINS.iter().map(|(name, _)| (*name, true));
    own.chain(official::PLUGINS.iter().map(|plugin| (plugin.name, plugin.default_on)))
}

fn protocol(key: &str) -> &'static str {
    match key {
        "mqtt.tcp_addr" => "tcp",
        "mqtt.ws_addr" => "ws",
        "mqtt.tls_addr" => "tls",
        _ => "wss",
    }
}
