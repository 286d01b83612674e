//! Processes that go on when a task ends: each has a directory with its configuration, its number and its log.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

/// Starts one; its number goes to `pid` and what it says to `log` in that directory.
pub fn start(dir: &Path, command: &mut Command) -> anyhow::Result<()> {
    let log = File::options().create(true).append(true).open(dir.join("log"))?;
    command.current_dir(dir).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    // It does not hear the terminal's Ctrl-C.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    let child = command.spawn().with_context(|| format!("{:?} cannot be started", command.get_program()))?;
    fs::write(dir.join("pid"), child.id().to_string())?;
    Ok(())
}

/// The process of a directory, if it runs: the number may have been given to somebody else since, who has another
/// configuration.
pub fn find(dir: &Path, config: &Path) -> Option<u32> {
    let pid: u32 = fs::read_to_string(dir.join("pid")).ok()?.trim().parse().ok()?;
    let output = Command::new("ps").args(["-o", "stat=,args=", "-p", &pid.to_string()]).output().ok()?;
    let line = String::from_utf8_lossy(&output.stdout).into_owned();
    (line.contains(&*config.to_string_lossy()) && !line.trim_start().starts_with('Z')).then_some(pid)
}

/// Sends a signal by its name without `SIG`.
pub fn signal(pid: u32, name: &str) -> anyhow::Result<()> {
    let status = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status()?;
    ensure!(status.success(), "process {pid} cannot be signalled");
    Ok(())
}
