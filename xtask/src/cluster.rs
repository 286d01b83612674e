//! `cargo xtask cluster-up` and its companions: a cluster on this machine, each node on a loopback address of its own with
//! the same ports as in production. State is in `target/cluster`, or where `CIQADAMQ_CLUSTER_DIR` says.

use std::env;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};
use serde_json::Value;

use crate::cargo::{broker_binary, cargo, execute, root};
use crate::{haproxy, process};

/// How long all nodes may take to be ready.
const READY: Duration = Duration::from_secs(60);
/// How long a node may take to end when asked.
const END: Duration = Duration::from_secs(20);

/// `cluster-up`
#[derive(Debug, clap::Args)]
pub struct Up {
    /// How many nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=9))]
    nodes: u8,
    /// Build with optimisation, as for production
    #[arg(long)]
    release: bool,
    /// Forget users and messages of an earlier cluster
    #[arg(long)]
    fresh: bool,
    /// With HAProxy in front
    #[arg(long)]
    haproxy: bool,
}

/// Names the directory of another cluster than `cluster-up`'s own.
pub const DIR_VARIABLE: &str = "CIQADAMQ_CLUSTER_DIR";

static DIR: OnceLock<PathBuf> = OnceLock::new();

/// `cluster-kill`, `cluster-logs`, `cluster-start`
#[derive(Debug, clap::Args)]
pub struct One {
    /// Number of the node, from 1
    node: u8,
}

/// Builds, starts what does not run, waits until all are ready, and says how to try it.
pub fn up(args: &Up) -> anyhow::Result<()> {
    let profile: &[&str] = if args.release { &["--release"] } else { &[] };
    execute(cargo(&["build", "--package", "ciqadamq"])?.args(profile))?;
    let dir = dir();
    if args.fresh && dir.exists() {
        ensure!(running().is_empty(), "nodes run; cargo xtask cluster-down first");
        fs::remove_dir_all(&dir).context("the earlier cluster's data cannot be removed")?;
    }
    let since = Instant::now();
    begin(&broker_binary(args.release)?, args.nodes, args.haproxy)?;
    println!("\n{} nodes are ready after {:.1} s.\n", args.nodes, since.elapsed().as_secs_f64());
    print!("{}", how_to_try(args.nodes, &token()?, args.haproxy)?);
    let later: Vec<u8> = nodes().into_iter().filter(|node| *node > args.nodes).collect();
    if !later.is_empty() {
        println!(
            "\nNodes {later:?} were set up earlier and are not started. If they are members still, they count as nodes that are down: \
             `ciqadamq cluster remove N` takes them out."
        );
    }
    Ok(())
}

/// Starts what does not run, with this binary, and waits until all are ready.
pub fn begin(binary: &Path, nodes: u8, haproxy: bool) -> anyhow::Result<()> {
    let dir = dir();
    fs::create_dir_all(&dir).with_context(|| format!("{} cannot be made", dir.display()))?;
    token()?;
    let (run, before) = (running(), size());
    ensure!(
        run.is_empty() || before == Some(nodes),
        "nodes {run:?} run and list {} nodes; cargo xtask cluster-down first",
        before.unwrap_or_default()
    );
    fs::write(dir.join("binary"), binary.display().to_string())?;
    fs::write(dir.join("nodes"), nodes.to_string())?;
    for node in 1..=nodes {
        fs::create_dir_all(node_dir(node))?;
        fs::write(node_config(node), config(node, nodes, haproxy))?;
    }
    let begun: Vec<u8> = (1..=nodes).filter(|node| !run.contains(node)).collect();
    begin_nodes(nodes, &begun, haproxy).map_err(|error| match end(&begun) {
        Ok(()) => anyhow!("{error:#}; the nodes that were started are ended again"),
        Err(_) => anyhow!("{error:#}; nodes that were started run: cargo xtask cluster-down ends them"),
    })
}

fn begin_nodes(nodes: u8, begun: &[u8], haproxy: bool) -> anyhow::Result<()> {
    for node in begun {
        start(*node)?;
    }
    wait_ready(&(1..=nodes).collect::<Vec<_>>())?;
    if haproxy {
        haproxy::start(&haproxy_dir(), &(1..=nodes).map(ip).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Ends all nodes in order, all at once.
pub fn down() -> anyhow::Result<()> {
    haproxy::stop(&haproxy_dir())?;
    let nodes = running();
    end(&nodes)?;
    println!("{} nodes ended; their data stays in {}", nodes.len(), dir().display());
    Ok(())
}

/// Ends those of these nodes that run.
fn end(nodes: &[u8]) -> anyhow::Result<()> {
    let left = || nodes.iter().copied().filter(|node| pid(*node).is_some()).collect::<Vec<u8>>();
    for node in left() {
        signal(node, "TERM")?;
    }
    let since = Instant::now();
    while !left().is_empty() {
        if since.elapsed() > END {
            for node in left() {
                signal(node, "KILL")?;
                println!("node {node} did not end in time and was killed");
            }
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Which nodes run, and what they say of themselves to the first one that answers. Fails unless all are ready and agree.
pub fn status() -> anyhow::Result<()> {
    ensure!(token_file().is_file(), "no cluster; cargo xtask cluster-up starts one");
    let (mut answers, mut down) = (None, Vec::new());
    // One that was set up when there were more is of no interest, unless it runs.
    for node in nodes().into_iter().filter(|node| size().is_none_or(|size| *node <= size) || pid(*node).is_some()) {
        let Some(pid) = pid(node) else {
            println!("node {node}: does not run");
            down.push(node);
            continue;
        };
        match get(node, "/health") {
            Ok(_) => {
                println!("node {node}: process {pid}");
                answers = answers.or(Some(node));
            }
            Err(error) => {
                println!("node {node}: process {pid}, does not answer: {error}");
                down.push(node);
            }
        }
    }
    let node = answers.context("no node answers")?;
    println!();
    let mut table = cluster_command(node, &["status"])?;
    // Its exit code is about that one node.
    table.status().context("the broker's binary cannot be run")?;
    ensure!(down.is_empty(), "nodes {down:?} are down");
    let view = cluster_command(node, &["status", "--json"])?.output().context("the broker's binary cannot be run")?;
    let view = serde_json::from_slice(&view.stdout).context("the cluster does not say how it is")?;
    match disagreement(&view) {
        Some(why) => bail!(why),
        None => Ok(()),
    }
}

/// Why a cluster, as a node shows it, is not as it should be.
fn disagreement(view: &Value) -> Option<String> {
    let nodes = view["nodes"].as_array().map_or(&[][..], Vec::as_slice);
    let unwell = |node: &&Value| node["reachable"] != true || node["ready"] != true;
    if let Some(node) = nodes.iter().find(unwell) {
        return Some(format!("node {} is not ready", node["id"]));
    }
    for raft in ["users", "routes"] {
        for what in ["leader", "voters"] {
            let said = |node: &Value| node["rafts"][raft][what].clone();
            let first = nodes.first().map(said).unwrap_or_default();
            if let Some(node) = nodes.iter().find(|node| said(node) != first || first.is_null()) {
                return Some(format!(
                    "node {} says that the {what} of the {raft} is {}, others {first}",
                    node["id"],
                    said(node)
                ));
            }
        }
    }
    None
}

/// `ciqadamq cluster` on a node.
fn cluster_command(node: u8, args: &[&str]) -> anyhow::Result<Command> {
    let mut command = Command::new(binary()?);
    command.arg("cluster").args(args).args(["--api", &api(node), "--token-file"]).arg(token_file());
    Ok(command)
}

fn api(node: u8) -> String {
    format!("http://{}:8090", ip(node))
}

fn token_file() -> PathBuf {
    dir().join("token")
}

/// How many nodes the cluster was started with last.
fn size() -> Option<u8> {
    fs::read_to_string(dir().join("nodes")).ok()?.trim().parse().ok()
}

/// Ends a node as a power cut would.
pub fn kill(args: &One) -> anyhow::Result<()> {
    signal(args.node, "KILL")?;
    println!("node {} killed; cargo xtask cluster-start {} brings it back", args.node, args.node);
    Ok(())
}

/// Starts a node that does not run.
pub fn start_one(args: &One) -> anyhow::Result<()> {
    ensure!(node_config(args.node).is_file(), "there is no node {}", args.node);
    ensure!(pid(args.node).is_none(), "node {} runs", args.node);
    let since = Instant::now();
    start(args.node)?;
    wait_ready(&[args.node])?;
    println!("node {} is ready after {:.1} s", args.node, since.elapsed().as_secs_f64());
    Ok(())
}

/// Prints a node's log.
pub fn logs(args: &One) -> anyhow::Result<()> {
    let path = node_dir(args.node).join("log");
    let mut log = File::open(&path).with_context(|| format!("there is no log of node {}", args.node))?;
    std::io::copy(&mut log, &mut std::io::stdout())?;
    Ok(())
}

fn dir() -> PathBuf {
    DIR.get_or_init(|| env::var_os(DIR_VARIABLE).map_or_else(|| root().join("target/cluster"), PathBuf::from)).clone()
}

/// Has everything here be about a cluster in a directory of its own, which is emptied.
pub fn apart(name: &str) -> anyhow::Result<PathBuf> {
    let dir = DIR.get_or_init(|| root().join("target").join(name));
    ensure!(running().is_empty(), "a cluster runs in {}; end it first", dir.display());
    if dir.exists() {
        fs::remove_dir_all(dir).context("the data of an earlier run cannot be removed")?;
    }
    Ok(dir.clone())
}

fn node_dir(node: u8) -> PathBuf {
    dir().join(format!("node{node}"))
}

fn node_config(node: u8) -> PathBuf {
    node_dir(node).join("ciqadamq.toml")
}

fn haproxy_dir() -> PathBuf {
    dir().join("haproxy")
}

/// The address of a node.
pub fn ip(node: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, node)
}

/// The nodes that were set up.
fn nodes() -> Vec<u8> {
    (1..=9).filter(|node| node_config(*node).is_file()).collect()
}

/// Whether nobody listens where the first node would.
pub fn is_free() -> bool {
    get(1, "/health").is_err()
}

/// The nodes that run.
pub fn running() -> Vec<u8> {
    nodes().into_iter().filter(|node| pid(*node).is_some()).collect()
}

/// The process of a node, if it runs.
fn pid(node: u8) -> Option<u32> {
    process::find(&node_dir(node), &node_config(node))
}

fn signal(node: u8, name: &str) -> anyhow::Result<()> {
    process::signal(pid(node).with_context(|| format!("node {node} does not run"))?, name)
}

/// The token of the cluster, made at its first start.
pub fn token() -> anyhow::Result<String> {
    let path = token_file();
    if let Ok(token) = fs::read_to_string(&path) {
        return Ok(token.trim().to_owned());
    }
    let token = random();
    write_private(&path, &token)?;
    Ok(token)
}

/// 32 hexadecimal digits that nobody guesses.
pub fn random() -> String {
    // Each `RandomState` has keys of its own.
    format!("{:016x}{:016x}", RandomState::new().hash_one(1), RandomState::new().hash_one(2))
}

fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)?.write_all(text.as_bytes())?;
    Ok(())
}

fn config(node: u8, nodes: u8, haproxy: bool) -> String {
    let list = |port: u16| {
        let all: Vec<String> = (1..=nodes).map(|n| format!("\"{n}@{}:{port}\"", ip(n))).collect();
        format!("[{}]", all.join(", "))
    };
    let (ip, data) = (ip(node), node_dir(node).join("data/users"));
    let proxy = match haproxy {
        true => format!("proxy_protocol = true\nproxy_protocol_from = [\"{}\"]\n", haproxy::SOURCE),
        false => String::new(),
    };
    format!(
        "# Written by cargo xtask cluster-up, which hands the token over as API_TOKEN.\n\
         [mqtt]\ntcp_addr = \"{ip}:1883\"\nws_addr = \"{ip}:8083\"\n{proxy}\n\
         [api]\naddr = \"{ip}:8090\"\n\n\
         [db]\nurl = \"sled://{}\"\n\n\
         [cluster]\nenabled = true\nnode_id = {node}\nleader_id = 1\n\
         grpc_laddr = \"{ip}:5363\"\nraft_laddr = \"{ip}:6003\"\n\
         node_grpc_addrs = {}\nraft_peer_addrs = {}\n",
        data.display(),
        list(5363),
        list(6003),
    )
}

/// The broker that the cluster was set up with.
fn binary() -> anyhow::Result<PathBuf> {
    let path = fs::read_to_string(dir().join("binary")).context("no cluster; cargo xtask cluster-up starts one")?;
    Ok(path.trim().into())
}

fn start(node: u8) -> anyhow::Result<()> {
    let dir = node_dir(node);
    let binary = binary()?;
    let mut command = Command::new(binary);
    command.arg("--config").arg(node_config(node)).env("API_TOKEN", token()?);
    process::start(&dir, &mut command).with_context(|| format!("node {node}"))
}

fn wait_ready(nodes: &[u8]) -> anyhow::Result<()> {
    let since = Instant::now();
    let (mut waiting, mut added) = (nodes.to_vec(), Vec::new());
    while !waiting.is_empty() {
        for node in &waiting {
            if pid(*node).is_none() {
                bail!("node {node} ended; cargo xtask cluster-logs {node} says why");
            }
        }
        if since.elapsed() > READY {
            let why = waiting.iter().map(|node| match get(*node, "/ready") {
                Ok((_, body)) => format!("node {node}: {}", body.trim()),
                Err(error) => format!("node {node}: {error}"),
            });
            bail!("not ready after {READY:?}: {}", why.collect::<Vec<_>>().join("; "));
        }
        waiting.retain(|node| !matches!(get(*node, "/ready"), Ok((200, _))));
        for node in &waiting {
            let is_new = matches!(get(*node, "/ready"), Ok((_, body)) if body.contains("is no member yet"));
            if is_new && !added.contains(node) {
                added.push(*node);
                take_in(*node)?;
            }
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Has a node that came later taken in by the first one.
fn take_in(node: u8) -> anyhow::Result<()> {
    let output = cluster_command(1, &["add", &node.to_string(), &api(node)])?.output()?;
    let said =
        String::from_utf8_lossy(if output.status.success() { &output.stdout } else { &output.stderr }).into_owned();
    ensure!(output.status.success(), "node {node} is not taken in: {}", said.trim());
    println!("{}", said.trim());
    Ok(())
}

/// Status and body.
fn get(node: u8, path: &str) -> anyhow::Result<(u16, String)> {
    let addr = SocketAddr::from((ip(node), 8090));
    let mut socket = TcpStream::connect_timeout(&addr, Duration::from_secs(1))?;
    socket.set_read_timeout(Some(Duration::from_secs(2)))?;
    socket.write_all(format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    socket.take(1 << 20).read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP")?;
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok()).context("no HTTP")?;
    Ok((status, body.to_owned()))
}

fn how_to_try(nodes: u8, token: &str, haproxy: bool) -> anyhow::Result<String> {
    let mut text = String::new();
    for node in 1..=nodes {
        let ip = ip(node);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  node {node}: mqtt://{ip}:1883  ws://{ip}:8083  http://{ip}:8090/docs");
    }
    if haproxy {
        let [mqtt, ws] = haproxy::PORTS;
        let _ = writeln!(text, "  HAProxy: mqtt://127.0.0.1:{mqtt}  ws://127.0.0.1:{ws}");
    }
    let _ = write!(
        text,
        "\nThe token of the API is in {token_file}. How the cluster is:\n\n\
         \x20 {binary} cluster status --api {api} --token-file {token_file}\n\n\
         A user made on node 1 logs in on node 2, and the backend publishes on \
         node 3:\n\n\
         \x20 TOKEN={token}\n\
         \x20 curl -sS http://127.0.0.1:8090/api/v1/users -H \"Authorization: Bearer $TOKEN\" -H 'Content-Type: application/json' \\\n\
         \x20   -d '{{\"username\":\"alice-phone\",\"userid\":\"alice\",\"password\":\"secret-1\"}}'\n\
         \x20 curl -sS http://127.0.0.1:8090/api/v1/users -H \"Authorization: Bearer $TOKEN\" -H 'Content-Type: application/json' \\\n\
         \x20   -d '{{\"username\":\"backend\",\"userid\":\"backend\",\"password\":\"secret-2\",\"superuser\":true}}'\n\
         \x20 mosquitto_sub -h 127.0.0.2 -u alice-phone -P secret-1 -q 1 -t chat/alice/m/all -C 1 -v & sleep 1\n\
         \x20 mosquitto_pub -h 127.0.0.3 -u backend -P secret-2 -q 1 -t chat/alice/m/all -m hello\n\n\
         cargo xtask cluster-status, cluster-kill N, cluster-start N, cluster-logs N, cluster-down\n",
        token_file = token_file().display(),
        binary = binary()?.display(),
        api = api(1),
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cluster_is_well_if_all_are_ready_and_follow_the_same_leaders() {
        let node = |id: u8, ready: bool, leader: Value| {
            let raft = json!({"leader": leader, "voters": [1, 2]});
            json!({"id": id, "reachable": true, "ready": ready, "rafts": {"users": raft, "routes": raft}})
        };
        let view = |second: Value| json!({"node": 1, "nodes": [node(1, true, json!(1)), second]});
        assert_eq!(disagreement(&view(node(2, true, json!(1)))), None);
        for second in [
            node(2, false, json!(1)),
            node(2, true, json!(2)),
            node(2, true, Value::Null),
            json!({"id": 2, "reachable": false, "error": "refused"}),
        ] {
            assert!(disagreement(&view(second.clone())).is_some(), "{second}");
        }
    }
}
