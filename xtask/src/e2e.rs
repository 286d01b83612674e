//! `cargo xtask e2e`: the stories of `tests/tests/cross_node` against three nodes and HAProxy, on this machine as `cluster-up`
//! starts them, or in containers as `deploy/docker-compose.yml` does.

use std::env;
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::cargo::{broker_binary, cargo, execute, is_there, root};
use crate::{cluster, haproxy};

/// What to try.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The nodes of deploy/docker-compose.yml, in containers, from an image that is built first
    #[arg(long)]
    compose: bool,
    /// Take the image that is there, CIQADAMQ_IMAGE or `ciqadamq`
    #[arg(long, requires = "compose")]
    no_build: bool,
    /// Build with optimisation; the image always is, unless PROFILE says otherwise
    #[arg(long, conflicts_with = "compose")]
    release: bool,
    /// Only stories whose names contain one of these
    filter: Vec<String>,
}

/// The directory of the local cluster, below `target`: that of `cluster-up` may have somebody's data.
const OWN: &str = "cluster-e2e";

/// A cluster that runs, as the stories want to be told of it.
struct Site {
    /// each node's MQTT, WebSocket and API
    nodes: [[String; 3]; 3],
    /// HAProxy's MQTT and WebSocket, and where its connections come from
    front: Option<([String; 2], String)>,
    token: String,
    /// shell commands with `{}` for the number of a node
    kill: String,
    start: String,
}

/// Brings the cluster up, tells the stories, and takes it down, unless `KEEP_CLUSTER=1`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let keep = env::var("KEEP_CLUSTER").is_ok_and(|keep| keep == "1");
    let compose = args.compose.then(Compose::new);
    let up = match &compose {
        Some(compose) => compose.up(!args.no_build),
        None => local(args.release),
    };
    let told = up.and_then(|site| tell(&site, &args.filter));
    if let (Err(_), Some(compose)) = (&told, &compose) {
        // What went wrong is more than what the logs could add.
        execute(compose.command().args(["logs", "--tail", "40"])).ok();
    }
    let down = match (&compose, keep) {
        (Some(compose), true) => {
            println!("the cluster goes on; end it with\n  {}", compose.shell("down --volumes"));
            Ok(())
        }
        (None, true) => {
            println!(
                "the cluster goes on; end it with\n  {}=target/{OWN} cargo xtask cluster-down",
                cluster::DIR_VARIABLE
            );
            Ok(())
        }
        (Some(compose), false) => execute(compose.command().args(["down", "--volumes"])),
        (None, false) => cluster::down(),
    };
    told.and(down)
}

/// Three nodes on loopback addresses, and HAProxy if it is installed.
fn local(release: bool) -> anyhow::Result<Site> {
    ensure!(cluster::is_free(), "something listens where node 1 would: cargo xtask cluster-down, if it is a cluster");
    let dir = cluster::apart(OWN)?;
    if release {
        execute(&mut cargo(&["build", "--package", "ciqadamq", "--locked", "--release"])?)?;
    } else {
        execute(&mut cargo(&["build", "--workspace", "--bins", "--tests", "--locked"])?)?;
    }
    let haproxy = haproxy::is_installed();
    if !haproxy {
        println!("HAProxy is not installed: the stories about it are left out");
    }
    cluster::begin(&broker_binary(release)?, 3, haproxy)?;
    let this = env::current_exe().context("this program cannot be found")?;
    let task = |name: &str| format!("{}='{}' '{}' {name} {{}}", cluster::DIR_VARIABLE, dir.display(), this.display());
    Ok(Site {
        nodes: [1, 2, 3].map(|node| [1883, 8083, 8090].map(|port| format!("{}:{port}", cluster::ip(node)))),
        front: haproxy.then(|| (haproxy::PORTS.map(|port| format!("127.0.0.1:{port}")), haproxy::SOURCE.to_string())),
        token: cluster::token()?,
        kill: task("cluster-kill"),
        start: task("cluster-start"),
    })
}

fn tell(site: &Site, filter: &[String]) -> anyhow::Result<()> {
    // With the workspace's features: those of one package alone would compile what they share once more.
    let mut tests = cargo(&["test", "--workspace", "--locked", "--test", "cross_node", "--"])?;
    tests.args(["--test-threads", "1", "--nocapture"]).args(filter);
    tests.env("CIQADAMQ_NODES", site.nodes.each_ref().map(|node| node.join(",")).join(" "));
    if let Some((doors, source)) = &site.front {
        tests.env("CIQADAMQ_FRONT", doors.join(",")).env("CIQADAMQ_FRONT_IP", source);
    }
    tests.env("CIQADAMQ_TOKEN", &site.token);
    tests.env("CIQADAMQ_KILL", &site.kill).env("CIQADAMQ_START", &site.start);
    execute(&mut tests)
}

/// The containers of `deploy/docker-compose.yml`, apart from those of somebody who uses it.
struct Compose {
    program: &'static str,
    api_token: String,
    repl_token: String,
    pepper: String,
}

impl Compose {
    fn new() -> Self {
        // The plugin, or the program of its own that came before it.
        let program = if is_there(Command::new("docker").args(["compose", "version"])) {
            "docker compose"
        } else {
            "docker-compose"
        };
        Self { program, api_token: cluster::random(), repl_token: cluster::random(), pepper: cluster::random() }
    }

    fn command(&self) -> Command {
        let mut words = self.program.split(' ');
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).args(["--project-name", "ciqadamq-e2e", "--file", "deploy/docker-compose.yml"]);
        command.current_dir(root());
        command.env("API_TOKEN", &self.api_token).env("REPL_TOKEN", &self.repl_token).env("AUTH_PEPPER", &self.pepper);
        command.env("PUBLISH_ADDR", "127.0.0.1");
        command
    }

    /// The same as a line for a shell. What it does needs no secrets, but to be told some.
    fn shell(&self, what: &str) -> String {
        let Self { program, .. } = self;
        let dir = root().display();
        format!(
            "cd '{dir}' && API_TOKEN= REPL_TOKEN= AUTH_PEPPER= \
             {program} --project-name ciqadamq-e2e --file deploy/docker-compose.yml {what}"
        )
    }

    fn up(&self, build: bool) -> anyhow::Result<Site> {
        execute(self.command().args(["up", "--detach"]).args(build.then_some("--build")))?;
        let at = |port: u16| format!("127.0.0.1:{port}");
        Ok(Site {
            nodes: [0, 1, 2].map(|n| [at(1883 + n), at(8083 + n), at(8090 + n)]),
            front: Some(([at(2883), at(9083)], "10.83.0.250".into())),
            token: self.api_token.clone(),
            kill: self.shell("kill -s KILL node{}"),
            start: self.shell("start node{}"),
        })
    }
}
