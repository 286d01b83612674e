//! RabbitMQ with its MQTT plugin: Erlang's virtual machine, which likes to share the machine with others of its kind, as a broker of
//! its own that leaves nothing behind.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::net::TcpStream;

use crate::config::Place;
use crate::process::{self, Started};

/// What Debian's package has on the `PATH` changes to another user, who may not enter a run's directory; this is what it runs then.
const DEBIAN: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
/// The virtual machine, as the system calls it.
const MACHINE: &str = "beam.smp";
/// How long Erlang's directory of nodes may take until it answers.
const EPMD_START: Duration = Duration::from_secs(10);
/// How long `rabbitmqctl` may take: it is an Erlang program, too.
const VERSION: Duration = Duration::from_secs(20);

/// Where it is unless somebody says.
pub fn usual() -> PathBuf {
    if Path::new(DEBIAN).is_file() { DEBIAN.into() } else { "rabbitmq-server".into() }
}

/// What a node and its tools need so that they find each other and nothing else of their kind on this machine.
fn environment(dir: &Path, place: &Place) -> Vec<(&'static str, OsString)> {
    let port = |addr: SocketAddr| addr.port().to_string().into();
    vec![
        ("RABBITMQ_NODENAME", format!("perf{}@localhost", place.mqtt.port()).into()),
        ("RABBITMQ_DIST_PORT", port(place.api)),
        ("ERL_EPMD_PORT", port(place.grpc)),
        ("ERL_EPMD_ADDRESS", place.grpc.ip().to_string().into()),
        // The cookie is there.
        ("HOME", dir.into()),
        ("RABBITMQ_MNESIA_BASE", dir.join("mnesia").into()),
        ("RABBITMQ_LOG_BASE", dir.join("logs").into()),
        // What this machine's own RabbitMQ is told is not for this one: there is no such file.
        ("RABBITMQ_CONF_ENV_FILE", dir.join("rabbitmq-env.conf").into()),
        ("RABBITMQ_CONFIG_FILES", dir.join("conf.d").into()),
    ]
}

/// Writes what a node needs into its directory and adds the environment.
pub fn configure(dir: &Path, place: &Place, command: &mut Command) -> anyhow::Result<()> {
    let write = |name: &str, text: String| {
        let path = dir.join(name);
        fs::write(&path, text).map(|()| path)
    };
    // Whoever gives no name is its `guest`, who is let in from this machine only.
    let conf = format!(
        "listeners.tcp = none\nmqtt.listeners.tcp.1 = {}\nmqtt.allow_anonymous = true\nmqtt.exchange = amq.topic\n\
         log.console.level = error\n",
        place.mqtt
    );
    command.envs(environment(dir, place));
    command.env("RABBITMQ_CONFIG_FILE", write("rabbitmq.conf", conf)?);
    command.env("RABBITMQ_ADVANCED_CONFIG_FILE", write("advanced.config", "[].\n".into())?);
    command.env("RABBITMQ_ENABLED_PLUGINS_FILE", write("enabled_plugins", "[rabbitmq_mqtt].\n".into())?);
    // Allowed to read, the script becomes the virtual machine instead of waiting beside it, so the machine ends with us whatever happens
    // to us; what it would read ends at once and would end it, hence `-noinput`.
    let arguments = "-noinput -kernel inet_dist_use_interface {127,0,0,1}";
    command.env("RABBITMQ_ALLOW_INPUT", "true").env("RABBITMQ_SERVER_START_ARGS", arguments);
    Ok(())
}

/// Starts Erlang's directory of nodes and waits until it answers. A node that finds none starts one that stays; this one is ours.
pub async fn start_epmd(place: &Place) -> anyhow::Result<Started> {
    let addr = place.grpc;
    let mut command = Command::new("epmd");
    command.args(["-port", &addr.port().to_string(), "-address", &addr.ip().to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut epmd = Started::new(&mut command)
        .context("`epmd`, which comes with Erlang, cannot be started; install the package `rabbitmq-server`")?;
    let began = Instant::now();
    while TcpStream::connect(addr).await.is_err() {
        if let Some(status) = epmd.try_wait()? {
            bail!("`epmd` ended with {status}; it was to listen on {addr}");
        }
        anyhow::ensure!(began.elapsed() < EPMD_START, "`epmd` does not answer on {addr} after {EPMD_START:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(epmd)
}

/// What it calls itself, asked of the tool beside it: asked itself, it starts.
pub fn version(program: &Path, dir: &Path, place: &Place) -> String {
    let mut command = Command::new(program.with_file_name("rabbitmqctl"));
    command.arg("version").current_dir(dir).envs(environment(dir, place));
    // It is for the results' second column; the measurement goes on without.
    process::output(&mut command, VERSION).unwrap_or_default().trim().to_owned()
}

/// Of its processes the one that works. The others come and go (`df` is asked how full the disk is), and of one that is gone nobody
/// knows what it cost, nor what all cost together.
pub fn working(pids: Vec<u32>, name: impl Fn(u32) -> Option<String>) -> Vec<u32> {
    let machine: Vec<u32> = pids.iter().copied().filter(|pid| name(*pid).as_deref() == Some(MACHINE)).collect();
    // Where the system does not tell names, all.
    if machine.is_empty() { pids } else { machine }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_virtual_machine_is_measured() {
        let name = |pid| match pid {
            1 => Some("sh".to_owned()),
            2 => Some("beam.smp".to_owned()),
            _ => None,
        };
        assert_eq!(working(vec![1, 2, 3], name), [2]);
        assert_eq!(working(vec![1, 3], name), [1, 3]);
    }

    #[test]
    fn a_node_has_its_directory_and_its_ports_for_itself() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::several(1).unwrap()[0];
        let mut command = Command::new("rabbitmq-server");
        configure(dir.path(), &place, &mut command).unwrap();
        let value = |name: &str| {
            let found = command.get_envs().find(|(key, _)| *key == name).and_then(|(_, value)| value);
            found.unwrap_or_else(|| panic!("{name} is missing")).to_str().unwrap().to_owned()
        };
        for name in
            ["HOME", "RABBITMQ_MNESIA_BASE", "RABBITMQ_LOG_BASE", "RABBITMQ_CONF_ENV_FILE", "RABBITMQ_CONFIG_FILES"]
        {
            assert!(Path::new(&value(name)).starts_with(dir.path()), "{name} is {}", value(name));
        }
        assert_eq!(value("RABBITMQ_DIST_PORT"), place.api.port().to_string());
        assert_eq!(value("ERL_EPMD_PORT"), place.grpc.port().to_string());
        assert!(value("RABBITMQ_NODENAME").contains(&place.mqtt.port().to_string()));
        let conf = fs::read_to_string(value("RABBITMQ_CONFIG_FILE")).unwrap();
        assert!(conf.contains(&format!("mqtt.listeners.tcp.1 = {}\n", place.mqtt)), "{conf}");
        assert_eq!(fs::read_to_string(value("RABBITMQ_ENABLED_PLUGINS_FILE")).unwrap(), "[rabbitmq_mqtt].\n");
    }
}
