//! Starting cargo and other tools in the root of the workspace, with the protobuf compiler at hand.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// The root of the workspace.
pub fn root() -> &'static Path {
    // The manifest of this package is one level below.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// A cargo command in the root, with `PROTOC` set.
pub fn cargo(args: &[&str]) -> anyhow::Result<Command> {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    // `cargo run` says to us who we are. Some build scripts ask for these variables, and would run again, with all that
    // depends on them, whenever cargo is started from here and not from a shell.
    for (name, _) in env::vars_os() {
        let about_us =
            ["CARGO_MANIFEST_", "CARGO_PKG_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix));
        if about_us {
            command.env_remove(name);
        }
    }
    if let Some(protoc) = protoc()? {
        command.env("PROTOC", protoc);
    }
    Ok(command)
}

/// From how long on a command's time is worth a line.
const LONG: Duration = Duration::from_secs(10);

/// Runs a command to its end, after saying what it is; anything but success is an error.
pub fn execute(command: &mut Command) -> anyhow::Result<()> {
    let line = show(command);
    eprintln!("$ {line}");
    let begun = Instant::now();
    let status = command.status().with_context(|| format!("`{line}` cannot be started"))?;
    if begun.elapsed() >= LONG {
        eprintln!("({} s)", begun.elapsed().as_secs());
    }
    if !status.success() {
        bail!("`{line}` failed: {status}");
    }
    Ok(())
}

/// Whether a program can be started (it is asked for its version).
pub fn is_there(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// What `cargo metadata` says; `args` are added to it.
pub fn metadata(args: &[&str]) -> anyhow::Result<serde_json::Value> {
    let mut command = cargo(&["metadata", "--format-version", "1"])?;
    let output = command.args(args).stderr(Stdio::inherit()).output().context("cargo metadata cannot be started")?;
    if !output.status.success() {
        bail!("cargo metadata failed: {}", output.status);
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata gave something that is no JSON")
}

/// The broker's binary, as a build with the given profile leaves it.
pub fn broker_binary(release: bool) -> anyhow::Result<PathBuf> {
    let profile = if release { "release" } else { "debug" };
    Ok(target_directory()?.join(profile).join(format!("ciqadamq{}", env::consts::EXE_SUFFIX)))
}

/// Where builds go.
pub fn target_directory() -> anyhow::Result<PathBuf> {
    let metadata = metadata(&["--no-deps"])?;
    let target = metadata["target_directory"].as_str().context("cargo metadata names no target directory")?;
    Ok(target.into())
}

/// The protobuf compiler to hand to build scripts; `None` if they find one by themselves.
fn protoc() -> anyhow::Result<Option<PathBuf>> {
    if env::var_os("PROTOC").is_some() || on_path(OsStr::new("protoc")) {
        return Ok(None);
    }
    let bundled = protoc_bin_vendored::protoc_bin_path()
        .context("no protoc comes along for this platform; install protobuf-compiler or set PROTOC")?;
    executable(&bundled).map(Some)
}

fn on_path(program: &OsStr) -> bool {
    let Some(path) = env::var_os("PATH") else { return false };
    env::split_paths(&path).any(|dir| dir.join(program).with_extension(env::consts::EXE_EXTENSION).is_file())
}

/// `program` itself if it may be executed, else a copy that may: registries on odd file systems lose that bit.
#[cfg(unix)]
fn executable(program: &Path) -> anyhow::Result<PathBuf> {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    if fs::metadata(program).with_context(|| program.display().to_string())?.permissions().mode() & 0o111 != 0 {
        return Ok(program.into());
    }
    let dir = root().join("target/xtask");
    let copy = dir.join("protoc");
    fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    fs::copy(program, &copy).with_context(|| copy.display().to_string())?;
    fs::set_permissions(&copy, Permissions::from_mode(0o755)).with_context(|| copy.display().to_string())?;
    Ok(copy)
}

#[cfg(not(unix))]
fn executable(program: &Path) -> anyhow::Result<PathBuf> {
    Ok(program.into())
}

fn show(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_stem().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
