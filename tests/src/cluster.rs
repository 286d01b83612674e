//! Several brokers as one cluster: node `n` on 127.0.0.`n`, all with the same ports.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::{Deref, DerefMut};
use std::thread;
use std::time::{Duration, Instant};

use crate::broker::{Broker, Signal, free_addresses, random_token};
use crate::options::{BrokerOptions, Toml};

/// How long a cluster may take to form, or to come back. Development builds on a busy machine are slow.
const FORMED: Duration = Duration::from_secs(90);

/// A cluster of brokers; node `n` is `cluster[n]`, from 1.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Broker>,
    /// What cuts a node off, if this machine lets us.
    cuts: Option<Cuts>,
}

impl Cluster {
    /// Three nodes with the harness's defaults, ready.
    #[track_caller]
    pub fn start_default() -> Self {
        Self::start(3, |_| BrokerOptions::new())
    }

    /// So many nodes, ready; `options` gives what differs on each.
    ///
    /// # Panics
    /// If they do not get ready.
    #[track_caller]
    pub fn start(nodes: u8, options: impl Fn(u8) -> BrokerOptions) -> Self {
        let mut cluster = Self::prepare(nodes, options);
        for node in &mut cluster.nodes {
            node.spawn();
        }
        cluster.wait_ready();
        cluster
    }

    /// So many nodes that were not started yet.
    pub fn prepare(nodes: u8, options: impl Fn(u8) -> BrokerOptions) -> Self {
        let ports = free_ports(nodes);
        let cuts = Cuts::new(&ports[2..], nodes);
        let token = random_token();
        let list = |port: u16, scheme: &str| {
            let all: Vec<String> = (1..=nodes).map(|n| format!("\"{n}@{scheme}{}:{port}\"", ip(n))).collect();
            Toml(format!("[{}]", all.join(", ")))
        };
        let node = |n: u8| {
            let at = ports.map(|port| SocketAddr::from((ip(n), port)));
            let mut options = options(n);
            options.uid = cuts.as_ref().map(|cuts| cuts.uid(n));
            let options = options
                .set("cluster.enabled", true)
                .set("cluster.node_id", i64::from(n))
                .set("cluster.leader_id", 1)
                .set("cluster.grpc_laddr", at[3].to_string())
                .set("cluster.raft_laddr", at[4].to_string())
                .set("cluster.node_grpc_addrs", list(ports[3], ""))
                .set("cluster.raft_peer_addrs", list(ports[4], ""))
                .set("cluster.node_api_addrs", list(ports[2], "http://"));
            Broker::at([at[0], at[1], at[2]], &token, options)
        };
        Self { nodes: (1..=nodes).map(node).collect(), cuts }
    }

    /// The numbers of all nodes.
    pub fn ids(&self) -> impl Iterator<Item = u8> + use<> {
        1..=self.nodes.len() as u8
    }

    /// Waits until all nodes that run are ready.
    ///
    /// # Panics
    /// If they do not get there.
    #[track_caller]
    pub fn wait_ready(&mut self) {
        let since = Instant::now();
        for n in self.ids() {
            let node = &mut self[n];
            while node.runs() && !node.is_ready() {
                assert!(since.elapsed() < FORMED, "node {n} is not ready after {FORMED:?}: {}", why(node));
                thread::sleep(Duration::from_millis(50));
            }
            assert!(node.runs(), "node {n} ended:\n{}", node.log());
        }
    }

    /// Waits until a node that is not ready says this in `/ready`.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn wait_why(&self, n: u8, text: &str) {
        let since = Instant::now();
        loop {
            let said = why(&self[n]);
            if said.contains(text) {
                return;
            }
            assert!(since.elapsed() < FORMED, "node {n} does not say that {text}, but {said}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Runs the binary as an operator on node `n` does; what it prints.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn order(&self, n: u8, args: &[&str]) -> String {
        let config = self[n].config().display().to_string();
        let output = self[n].run(&[&["--config", &config], args].concat());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{args:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// The node that leads the routing cluster, as node `n` sees it.
    pub fn routes_leader(&self, n: u8) -> Option<u8> {
        let rest = &self[n].rest;
        let bearer = format!("Bearer {}", rest.token);
        let headers = [("Authorization", bearer.as_str())];
        let metrics = crate::http::request(rest.addr, "GET", "/metrics", &headers, None).ok()?.text();
        let line = metrics.lines().find_map(|line| line.strip_prefix("ciqadamq_cluster_routes_leader "))?;
        line.trim().parse::<u8>().ok().filter(|node| *node > 0)
    }

    /// Ends a node as a power cut would.
    #[track_caller]
    pub fn kill(&mut self, n: u8) {
        self[n].kill9();
    }

    /// Stops a node's process, which keeps its sockets open, until [`Self::resume`].
    #[track_caller]
    pub fn stop(&self, n: u8) {
        self[n].signal(Signal::Stop);
    }

    /// Lets a node go on if it is stopped; it may be dead.
    pub fn resume_if_stopped(&mut self, n: u8) {
        if self[n].runs() {
            self.resume(n);
        }
    }

    /// Whether nodes can be cut off: by packet filters that tell nodes apart by their users, so as root only.
    pub fn can_cut(&self) -> bool {
        self.cuts.is_some()
    }

    /// Cuts a node off from all others, both ways; its clients still reach it, its API does not answer.
    ///
    /// # Panics
    /// Where that cannot be done.
    pub fn cut_off(&mut self, n: u8) {
        self.cuts.as_mut().unwrap().cut(n);
    }

    /// Ends that.
    pub fn mend(&mut self, n: u8) {
        self.cuts.as_mut().unwrap().mend(n);
    }

    /// Lets a stopped node go on.
    #[track_caller]
    pub fn resume(&self, n: u8) {
        self[n].signal(Signal::Continue);
    }
}

fn why(node: &Broker) -> String {
    match crate::http::request(node.rest.addr, "GET", "/ready", &[], None) {
        Ok(response) => response.text(),
        Err(error) => format!("{error:?}\n{}", node.log()),
    }
}

impl std::ops::Index<u8> for Cluster {
    type Output = Broker;
    fn index(&self, n: u8) -> &Broker {
        &self.nodes.deref()[usize::from(n) - 1]
    }
}

impl std::ops::IndexMut<u8> for Cluster {
    fn index_mut(&mut self, n: u8) -> &mut Broker {
        &mut self.nodes.deref_mut()[usize::from(n) - 1]
    }
}

fn ip(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, n)
}

/// MQTT, WebSocket, API, gRPC, raft: free on the addresses of all nodes.
fn free_ports(nodes: u8) -> [u16; 5] {
    [(); 5].map(|()| {
        let free_everywhere = |port: &u16| (2..=nodes).all(|n| TcpListener::bind((ip(n), *port)).is_ok());
        let candidates = (0..100).map(|_| free_addresses::<1>()[0].port());
        candidates.into_iter().find(free_everywhere).expect("a port that is free on all addresses")
    })
}

/// Packet filters that drop what a node sends to others, and what it answers them.
#[derive(Debug)]
struct Cuts {
    base: u32,
    ports: String,
    cut: Vec<u8>,
}

impl Cuts {
    /// `None` if this machine does not let us.
    fn new(ports: &[u16], nodes: u8) -> Option<Self> {
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        // Users that nobody has, and other ones in every test.
        let base = 1_000_000 + u32::from(ports[0].parse::<u16>().ok()?) * 16;
        let mut cuts = Self { base, ports: ports.join(","), cut: Vec::new() };
        let may = cuts.filter("-I", nodes + 1) && cuts.filter("-D", nodes + 1);
        cuts.cut.clear();
        may.then_some(cuts)
    }

    fn uid(&self, n: u8) -> u32 {
        self.base + u32::from(n)
    }

    fn filter(&self, action: &str, n: u8) -> bool {
        let uid = self.uid(n).to_string();
        let mut command = std::process::Command::new("iptables");
        command.args(["-w", action, "OUTPUT", "-o", "lo", "-p", "tcp", "-m", "owner", "--uid-owner", &uid]);
        command.args(["-m", "multiport", "--ports", &self.ports, "-j", "DROP"]);
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    fn cut(&mut self, n: u8) {
        assert!(self.filter("-I", n), "node {n} cannot be cut off");
        self.cut.push(n);
    }

    fn mend(&mut self, n: u8) {
        if self.cut.contains(&n) {
            assert!(self.filter("-D", n), "node {n} cannot be mended");
            self.cut.retain(|other| *other != n);
        }
    }
}

impl Drop for Cuts {
    fn drop(&mut self) {
        for n in self.cut.clone() {
            self.filter("-D", n);
        }
    }
}
