//! The engine's context and its listeners, as the configuration wants them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::num::NonZeroU16;
use std::time::Duration;

use anyhow::Context as _;
use rmqtt::context::{CircuitBreakerConfig, ServerContext};
use rmqtt::net::{Builder, Listener};
use rmqtt::server::MqttServer;

use crate::config::{Config, Mqtt};
use crate::{official, settings};

/// Ids of the engine's listeners. They stand in session ids, so they stay the same whatever the ports are.
const TCP_LISTENER: u16 = 1;
const GATE_LISTENER: u16 = 2;
/// Most levels of a filter where no access rule bounds them: the engine walks filters recursively, and tens of thousands
/// of levels end the process.
const LEVELS_MAX: usize = 1000;
/// Tries to find a free port for the internal listener.
const PORT_TRIES: usize = 16;

/// The engine's context: plugin settings, overload check. Nothing runs yet.
pub async fn context(config: &Config) -> anyhow::Result<ServerContext> {
    let mut settings = official::prepare(config, |path| Ok(ciqadamq_rest::load_or_create_token_file(path)?))?;
    if let Some(cluster) = settings::cluster(config) {
        settings.insert(official::CLUSTER.into(), cluster.raft.to_toml(cluster.node));
    }
    let mut builder = ServerContext::new()
        .node_id(config.cluster.node_id.into())
        .busy_check_enable(config.mqtt.busy_check)
        // A node that is back must not be shunned for half a minute; who is dead is known by other means.
        .circuit_breaker_config(CircuitBreakerConfig {
            minimum_number_of_calls: 5,
            wait_duration_in_open: Duration::from_secs(1),
            ..CircuitBreakerConfig::default()
        })
        .plugins_config_map(settings.into_iter().collect());
    if let Some(dir) = &config.plugins.dir {
        builder = builder.plugins_config_dir(dir.display().to_string());
    }
    Ok(builder.build().await)
}

/// The bound listeners of the engine.
pub struct Listeners {
    tcp: Option<Listener>,
    gate: Option<(Listener, SocketAddr)>,
}

impl Listeners {
    /// Binds what the engine serves itself: plain TCP, unless PROXY headers come first, and the internal listener that
    /// the gate speaks to, if there is a gate.
    ///
    /// The access rule bounds the levels of topics, with the right codes. Without it the engine has to.
    pub fn bind(mqtt: &Mqtt, with_gate: bool, with_acl: bool) -> anyhow::Result<Self> {
        let levels_max = if with_acl { 0 } else { LEVELS_MAX };
        let tcp = match mqtt.tcp_addr {
            Some(addr) if !mqtt.proxy_protocol => {
                let listener = listener(mqtt, "tcp", addr).max_topic_levels(levels_max).bind();
                let listener = listener.with_context(|| format!("mqtt.tcp_addr: {addr} cannot be opened"))?;
                Some(listener.tcp()?)
            }
            _ => None,
        };
        Ok(Self { tcp, gate: if with_gate { Some(bind_internal(mqtt, levels_max)?) } else { None } })
    }

    /// Where the gate finds the engine.
    pub fn upstream(&self) -> Option<SocketAddr> {
        self.gate.as_ref().map(|(_, addr)| *addr)
    }

    /// The server over these listeners. They close when its `run` is dropped.
    pub fn serve(self, scx: ServerContext) -> MqttServer {
        let mut server = MqttServer::new(scx);
        if let Some(listener) = self.tcp {
            server = server.listener_by_id(listener, TCP_LISTENER);
        }
        if let Some((listener, _)) = self.gate {
            server = server.listener_by_id(listener, GATE_LISTENER);
        }
        server.build()
    }
}

/// The engine takes the listener's port for granted as configured, so it must be known before: find a free one first.
fn bind_internal(mqtt: &Mqtt, levels_max: usize) -> anyhow::Result<(Listener, SocketAddr)> {
    let mut last = None;
    for _ in 0..PORT_TRIES {
        let addr = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|probe| probe.local_addr())?;
        let listener = listener(mqtt, "gate", addr).max_topic_levels(levels_max);
        // What may wait, waits at the gate.
        match listener.nodelay(true).proxy_protocol(true).bind() {
            Ok(listener) => return Ok((listener.tcp()?, addr)),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| anyhow::anyhow!("no port"))).context("no free loopback port for the internal listener")
}

fn listener(mqtt: &Mqtt, name: &str, addr: SocketAddr) -> Builder {
    Builder::new()
        .name(name)
        .laddr(addr)
        .backlog(1024)
        .nodelay(mqtt.tcp_nodelay)
        // A broker that was killed leaves connections in TIME_WAIT and must be able to come back at once.
        .reuseaddr(Some(true))
        .allow_anonymous(false)
        .handshake_timeout(Duration::from_secs(mqtt.connect_timeout_secs.into()))
        .max_packet_size(mqtt.max_packet_size)
        .max_clientid_len(mqtt.max_clientid_len)
        .max_inflight(NonZeroU16::new(mqtt.max_inflight).unwrap_or(NonZeroU16::MIN))
        .max_mqueue_len(match mqtt.msg_queue_cap {
            0 => mqtt.max_mqueue_len,
            cap => cap.min(mqtt.max_mqueue_len),
        })
        .session_expiry_interval(Duration::from_secs(mqtt.session_expiry_secs.into()))
        .max_session_expiry_interval(Duration::from_secs(mqtt.max_session_expiry_secs.into()))
        .message_expiry_interval(Duration::from_secs(mqtt.message_expiry_secs.into()))
        // Resending on a live connection is forbidden by MQTT 5.0 §4.4; on reconnect the engine resends anyway.
        .message_retry_interval(Duration::ZERO)
        // Lets `$exclusive/` and `$limit/` reach the access rule, which refuses them for that filter alone; left to the
        // engine, such a filter would end a v3.1.1 connection.
        .limit_subscription(true)
}

#[cfg(test)]
mod tests;
