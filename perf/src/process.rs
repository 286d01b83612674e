//! What a process costs, as the system accounts it.

use std::fs;
use std::time::Duration;

/// Ticks in which Linux accounts CPU time, on every platform we know.
const TICK: Duration = Duration::from_millis(10);

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

    #[test]
    #[cfg(target_os = "linux")]
    fn our_own_costs_are_known() {
        let me = std::process::id();
        assert!(resident_kb(&[me]).is_some_and(|kb| kb > 0));
        assert!(cpu(&[me]).is_some());
        assert_eq!(descendants(me).first(), Some(&me));
    }
}
