//! Programs that are started here and end with us, and what a process costs, as the system accounts it.

use std::fs;
use std::io::{self, Read as _};
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Ticks in which Linux accounts CPU time, on every platform we know.
const TICK: Duration = Duration::from_millis(10);

/// Between two looks at a program that is to end.
const LOOK: Duration = Duration::from_millis(20);

/// A program that was started here. When this is dropped, it and all that it started are killed.
///
/// On Linux it is killed, too, if this process is.
#[derive(Debug)]
pub struct Started(Child);

impl Started {
    /// Starts a program in a process group of its own: a Ctrl-C on the terminal is for us, who end it in order.
    pub fn new(command: &mut Command) -> io::Result<Self> {
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        #[cfg(target_os = "linux")]
        end_with_us(command);
        command.spawn().map(Self)
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        #[cfg(unix)]
        signal(self.id(), nix::sys::signal::Signal::SIGTERM);
    }

    /// Its processes.
    pub fn pids(&self) -> Vec<u32> {
        descendants(self.id())
    }
}

impl Deref for Started {
    type Target = Child;
    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Started {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // As long as it lives: then nobody knows any more whose they were, and its number may be another's.
        #[cfg(unix)]
        if matches!(self.0.try_wait(), Ok(None)) {
            for pid in self.pids() {
                signal(pid, nix::sys::signal::Signal::SIGKILL);
            }
        }
        // It may have ended by itself; then there is nothing to kill, and waiting returns at once.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A process that has just ended need not be ended.
#[cfg(unix)]
fn signal(pid: u32, signal: nix::sys::signal::Signal) {
    let Ok(pid) = i32::try_from(pid) else { return };
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).ok();
}

#[cfg(target_os = "linux")]
fn end_with_us(command: &mut Command) {
    use nix::sys::{prctl, signal::Signal};
    let asked = || prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from);
    // SAFETY: between fork and exec it makes one system call, and takes neither memory nor a lock.
    unsafe { std::os::unix::process::CommandExt::pre_exec(command, asked) };
}

/// While it lives, what a started program leaves behind when it ends becomes ours; when it is dropped, all of that is killed:
/// the daemons that launchers like to start.
#[derive(Debug)]
pub struct Household(());

impl Household {
    /// To be made once, before anything is started.
    pub fn new() -> Self {
        #[cfg(target_os = "linux")]
        nix::sys::prctl::set_child_subreaper(true).ok();
        Self(())
    }
}

impl Drop for Household {
    fn drop(&mut self) {
        #[cfg(unix)]
        for pid in descendants(std::process::id()).into_iter().skip(1) {
            signal(pid, nix::sys::signal::Signal::SIGKILL);
        }
    }
}

/// What a program prints, if it ends within a time.
pub fn output(command: &mut Command, within: Duration) -> io::Result<String> {
    let mut program = Started::new(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()))?;
    let began = Instant::now();
    while program.try_wait()?.is_none() {
        if began.elapsed() > within {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(LOOK);
    }
    let mut text = Vec::new();
    if let Some(stdout) = program.stdout.take() {
        // A pipe holds so much; whoever prints more is not asked for its version.
        stdout.take(64 * 1024).read_to_end(&mut text)?;
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// CPU time of these processes together since they began, user and system. `None` where the system does not tell.
pub fn cpu(pids: &[u32]) -> Option<Duration> {
    pids.iter().map(|pid| cpu_of(*pid)).sum()
}

/// Resident memory of these processes together. KiB.
pub fn resident_kb(pids: &[u32]) -> Option<u64> {
    pids.iter().map(|pid| resident_of(*pid)).sum()
}

fn cpu_of(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_cpu(&stat)
}

/// Fields 14 and 15; counted behind the name, which may hold anything.
fn parse_cpu(stat: &str) -> Option<Duration> {
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let ticks = |n: usize| fields.get(n)?.parse::<u32>().ok();
    Some(TICK * (ticks(11)? + ticks(12)?))
}

/// What the system calls a process: the file it runs, its first 15 bytes. `None` where the system does not tell.
pub fn name(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim_end().to_owned())
}

fn resident_of(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.split_whitespace().next()?.parse().ok()
}

/// The children of a process, as a launcher that is a script has them.
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(parent) = all.get(next).copied() {
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        all.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        next += 1;
    }
    all
}

/// Binds the calling thread, and what it starts from now on, to some cores. `false` where that is not possible.
#[cfg(target_os = "linux")]
pub fn pin(cores: &[usize]) -> bool {
    use nix::sched::{CpuSet, sched_setaffinity};
    let mut set = CpuSet::new();
    cores.iter().all(|core| set.set(*core).is_ok()) && sched_setaffinity(nix::unistd::Pid::from_raw(0), &set).is_ok()
}

/// Elsewhere the system decides.
#[cfg(not(target_os = "linux"))]
pub fn pin(_: &[usize]) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_behind_any_name() {
        let stat = "77 (a b) c) S 1 1 1 0 -1 4194304 1 0 0 0 30 12 0 0 20 0 3 0 1 1 1";
        assert_eq!(parse_cpu(stat), Some(Duration::from_millis(420)));
        assert_eq!(parse_cpu("77 (x) S 1"), None);
    }

    /// A launcher that stays, as a script, over a program of its own.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_program_is_killed_with_all_that_it_started() {
        let launcher = Started::new(Command::new("sh").args(["-c", "sleep 1000 & sleep 1000"])).unwrap();
        let began = Instant::now();
        while launcher.pids().len() < 3 {
            assert!(began.elapsed() < Duration::from_secs(10), "it starts nothing");
            std::thread::sleep(LOOK);
        }
        let pids = launcher.pids();
        drop(launcher);
        // One that nobody has waited for yet is still named, as a zombie.
        let is_alive = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/stat"))
                .is_ok_and(|stat| !stat.contains(") Z ") && !stat.contains(") X "))
        };
        while pids.iter().any(is_alive) {
            assert!(began.elapsed() < Duration::from_secs(10), "{pids:?} live on");
            std::thread::sleep(LOOK);
        }
    }

    #[test]
    #[cfg(unix)]
    fn a_program_that_does_not_end_is_not_waited_for() {
        assert_eq!(output(Command::new("echo").arg("1.2"), Duration::from_secs(10)).unwrap(), "1.2\n");
        let error = output(Command::new("sleep").arg("1000"), Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn our_own_costs_are_known() {
        let me = std::process::id();
        assert!(resident_kb(&[me]).is_some_and(|kb| kb > 0));
        assert!(cpu(&[me]).is_some());
        assert_eq!(descendants(me).first(), Some(&me));
        // Of the process, not of the test's thread.
        assert!(name(me).is_some_and(|name| name.starts_with("ciqadamq_perf")), "{:?}", name(me));
    }
}
