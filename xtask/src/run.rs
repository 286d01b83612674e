//! `cargo xtask run`: the broker on its built-in configuration, and what to do with it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::cargo::{broker_binary, cargo, execute, root};
use crate::quick_start;

/// How to run it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Build with optimisation, as for production; takes many minutes the first time
    #[arg(long)]
    release: bool,
    /// Arguments for the broker
    #[arg(last = true)]
    broker: Vec<String>,
}

/// Where the built-in configuration puts the REST API.
const API: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8090);

/// Builds, starts, waits for readiness, hands Ctrl-C on, and ends as the broker ends.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let profile: &[&str] = if args.release { &["--release"] } else { &[] };
    let kind = if args.release { "the optimised build" } else { "the development build (production: --release)" };
    eprintln!("building ciqadamq, {kind}; the first time compiles the engine and takes a while");
    execute(cargo(&["build", "--package", "ciqadamq"])?.args(profile))?;

    // Another broker would answer in place of ours.
    let hints = args.broker.is_empty() && !ready(API);
    let mut command = Command::new(broker_binary(args.release)?);
    command.args(&args.broker).current_dir(root()).stdin(Stdio::null());
    let mut broker = start(&mut command)?;
    let ended = Arc::new(AtomicBool::new(false));
    if hints {
        let ended = ended.clone();
        thread::spawn(move || say_when_ready(&ended));
    }
    let status = broker.wait().context("the broker cannot be waited for")?;
    ended.store(true, Ordering::Relaxed);
    if !status.success() {
        bail!("the broker ended: {status}");
    }
    Ok(())
}

/// Starts the broker out of reach of the terminal's Ctrl-C, which is handed on as one SIGTERM: it would see two
/// signals otherwise, and the second means "at once".
#[cfg(unix)]
fn start(command: &mut Command) -> anyhow::Result<Child> {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    use std::os::unix::process::CommandExt as _;

    let broker = command.process_group(0).spawn().context("the broker cannot be started")?;
    let pid = Pid::from_raw(i32::try_from(broker.id()).context("process id out of range")?);
    let mut last: Option<Instant> = None;
    ctrlc::set_handler(move || {
        // Whoever signals a process and its group means it once.
        if last.is_some_and(|last| last.elapsed() < Duration::from_millis(500)) {
            return;
        }
        last = Some(Instant::now());
        if let Err(error) = kill(pid, Signal::SIGTERM) {
            eprintln!("the broker cannot be signalled: {error}");
        }
    })
    .context("Ctrl-C cannot be handled")?;
    Ok(broker)
}

// Elsewhere the console's Ctrl-C reaches the broker by itself.
#[cfg(not(unix))]
fn start(command: &mut Command) -> anyhow::Result<Child> {
    command.spawn().context("the broker cannot be started")
}

fn say_when_ready(ended: &AtomicBool) {
    while !ready(API) {
        if ended.load(Ordering::Relaxed) {
            return;
        }
        thread::sleep(Duration::from_millis(100));
    }
    println!("\nciqadamq is ready. In another terminal, in this directory:\n");
    for line in quick_start::lines() {
        println!("    {line}");
    }
    println!("\nThe API is described at http://{API}/docs. Ctrl-C ends the broker.\n");
}

/// Whether `/ready` says 200.
fn ready(api: SocketAddr) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut socket = TcpStream::connect_timeout(&api, Duration::from_secs(1))?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        socket.write_all(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        socket.take(4096).read_to_string(&mut answer)?;
        Ok(answer)
    };
    ask().is_ok_and(|answer| answer.split_whitespace().nth(1) == Some("200"))
}
