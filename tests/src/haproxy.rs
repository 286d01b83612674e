//! A real HAProxy: with the configuration of `deploy/` in front of a test's brokers, or with one of the test's own.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;

use tempfile::TempDir;

use crate::mqtt::Link;
use crate::{Broker, eventually, free_addresses, programs};

/// Where HAProxy's connections to the brokers come from: what `mqtt.proxy_protocol_from` has to name.
pub const SOURCE: &str = "127.0.0.9";

/// A running HAProxy; ends with the test.
#[derive(Debug)]
pub struct Haproxy {
    dir: TempDir,
    child: Child,
}

/// `deploy/haproxy/haproxy.cfg` in front of three brokers.
#[derive(Debug)]
pub struct Front {
    /// MQTT
    pub tcp: SocketAddr,
    /// MQTT over WebSocket
    pub ws: SocketAddr,
    /// MQTT over TLS, with a certificate
    pub tls: SocketAddr,
    /// MQTT over WebSocket over TLS, with a certificate
    pub wss: SocketAddr,
    haproxy: Haproxy,
}

impl Haproxy {
    /// Starts one with this configuration; `None` if it is not installed.
    ///
    /// # Panics
    /// If it does not like the configuration, or is not installed and `CIQADAMQ_REQUIRE_CLIENTS=1`.
    pub fn start(config: &str, env: &[(&str, &str)]) -> Option<Self> {
        let mut command = programs::find("haproxy")?;
        let dir = tempfile::Builder::new().prefix("haproxy-").tempdir().unwrap();
        let path = dir.path().join("haproxy.cfg");
        let socket = dir.path().join("admin.sock");
        fs::write(&path, config.replace("/run/haproxy/admin.sock", &socket.display().to_string())).unwrap();
        let log = File::create(dir.path().join("log")).unwrap();
        // Without a master process: there is one to end.
        command.arg("-db").arg("-f").arg(&path).envs(env.iter().copied());
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let mut haproxy = Self { dir, child: command.spawn().unwrap() };
        eventually("HAProxy is up", || {
            let ended = haproxy.child.try_wait().unwrap();
            assert!(ended.is_none(), "HAProxy ended: {}", haproxy.log());
            socket.exists().then_some(())
        });
        Some(haproxy)
    }

    /// Says something to its admin socket and gives the answer.
    ///
    /// # Panics
    /// If it does not listen.
    #[cfg(unix)]
    pub fn admin(&self, command: &str) -> String {
        let mut socket = std::os::unix::net::UnixStream::connect(self.dir.path().join("admin.sock")).unwrap();
        socket.write_all(format!("{command}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer.trim().to_owned()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Front {
    /// Puts it in front of brokers, which must take PROXY headers from [`SOURCE`]; with a PEM file it ends TLS too. `None`
    /// if HAProxy is not installed.
    ///
    /// # Panics
    /// As [`Haproxy::start`], and if it does not find the brokers ready.
    pub fn start<'a>(brokers: impl IntoIterator<Item = &'a Broker>, pem: Option<&Path>) -> Option<Self> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/haproxy/haproxy.cfg");
        let mut config = fs::read_to_string(path).unwrap();
        let mut replace = |from: &str, to: String| {
            assert!(config.contains(from), "the configuration of deploy/ has no `{from}`");
            config = config.replace(from, &to);
        };
        let [tcp, ws, tls, wss] = free_addresses();
        replace("bind :2883", format!("bind {tcp}"));
        replace("bind :9083", format!("bind {ws}"));
        replace("bind :8883", format!("bind {tls}"));
        replace("bind :8443", format!("bind {wss}"));
        replace("fd-hard-limit 250000", "maxconn 1000".into());
        replace("send-proxy-v2", format!("send-proxy-v2 source {SOURCE}"));
        for (n, broker) in (1..).zip(brokers) {
            replace(&format!("node{n}:1883"), format!("{} port {}", broker.tcp, broker.rest.addr.port()));
            replace(&format!("node{n}:8083"), broker.ws.to_string());
        }
        let pem = pem.map(|path| path.display().to_string()).unwrap_or_default();
        let haproxy = Haproxy::start(&config, &[("TLS_PEM", &pem)])?;
        Some(Self { tcp, ws, tls, wss, haproxy })
    }

    /// Where a link leads.
    pub fn addr(&self, link: &Link) -> SocketAddr {
        match link {
            Link::Tcp => self.tcp,
            Link::Ws { .. } => self.ws,
        }
    }

    /// See [`Haproxy::admin`].
    #[cfg(unix)]
    pub fn admin(&self, command: &str) -> String {
        self.haproxy.admin(command)
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
        if thread::panicking() {
            eprintln!("--- HAProxy's log:\n{}\n---", self.log());
        }
    }
}
