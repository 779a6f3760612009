//! Signals to processes that the test started, and what Linux tells about them in `/proc`.

use std::collections::BTreeSet;

use rustix::process::{Pid, Signal, kill_process};

use crate::{Error, Result};

/// A process as `/proc` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessInfo {
    /// Its id.
    pub pid: u32,
    /// Its parent's id.
    pub parent: u32,
    /// Its process group.
    pub group: u32,
    /// R running, S sleeping, T stopped, Z zombie, ...
    pub state: char,
    /// Its command line, arguments separated by spaces.
    pub command: String,
}

/// Facts of one process; `None` if there is none.
pub fn process(pid: u32) -> Option<ProcessInfo> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (state, parent, group) = parse_stat(&stat)?;
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let command = String::from_utf8_lossy(&line).trim_end_matches('\0').replace('\0', " ");
    Some(ProcessInfo { pid, parent, group, state, command })
}

/// The name in parentheses may itself hold parentheses and spaces.
fn parse_stat(stat: &str) -> Option<(char, u32, u32)> {
    let mut rest = stat.rsplit_once(") ")?.1.split(' ');
    let state = rest.next()?.chars().next()?;
    Some((state, rest.next()?.parse().ok()?, rest.next()?.parse().ok()?))
}

/// A process, the members of the process group that it leads, and all their descendants; zombies left out.
pub fn tree(leader: u32) -> Vec<ProcessInfo> {
    let all: Vec<ProcessInfo> = std::fs::read_dir("/proc")
        .map(|dir| dir.flatten().filter_map(|entry| process(entry.file_name().to_str()?.parse().ok()?)).collect::<Vec<_>>())
        .unwrap_or_default();
    members(leader, &all)
}

fn members(leader: u32, all: &[ProcessInfo]) -> Vec<ProcessInfo> {
    let mut inside = BTreeSet::from([leader]);
    loop {
        let before = inside.len();
        for p in all {
            if p.group == leader || inside.contains(&p.parent) {
                inside.insert(p.pid);
            }
        }
        if inside.len() == before {
            break;
        }
    }
    all.iter().filter(|p| inside.contains(&p.pid) && p.state != 'Z').cloned().collect()
}

/// Sends a signal to one process. Only for processes that the test started.
pub fn signal(pid: u32, what: Signal) -> Result<()> {
    let id = i32::try_from(pid).ok().filter(|id| *id > 1).and_then(Pid::from_raw);
    let Some(id) = id else {
        return Err(Error::Setup(format!("{pid} is no process that a test may signal")));
    };
    kill_process(id, what).map_err(|e| Error::Io { what: format!("sending {what:?} to process {pid}"), source: e.into() })
}

/// SIGKILL.
pub fn kill(pid: u32) -> Result<()> {
    signal(pid, Signal::KILL)
}

/// SIGSTOP: the process keeps its connections and does nothing.
pub fn pause(pid: u32) -> Result<()> {
    signal(pid, Signal::STOP)
}

/// SIGCONT.
pub fn resume(pid: u32) -> Result<()> {
    signal(pid, Signal::CONT)
}

/// SIGTERM.
pub fn terminate(pid: u32) -> Result<()> {
    signal(pid, Signal::TERM)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn p(pid: u32, parent: u32, group: u32, state: char) -> ProcessInfo {
        ProcessInfo { pid, parent, group, state, command: String::new() }
    }

    #[test]
    fn a_tree_holds_orphans_of_the_group_and_children_in_other_groups() {
        let all = [
            p(10, 1, 10, 'S'),
            p(11, 10, 10, 'S'),
            p(12, 1, 10, 'T'),  // its parent died
            p(13, 12, 13, 'S'), // leads a group of its own
            p(14, 10, 10, 'Z'),
            p(20, 1, 20, 'S'),
        ];
        let pids: Vec<u32> = members(10, &all).iter().map(|p| p.pid).collect();
        assert_eq!(pids, [10, 11, 12, 13]);
    }

    #[test]
    fn stat_with_a_strange_name() {
        assert_eq!(parse_stat("7 (a b) c) T 5 6 7 0").unwrap(), ('T', 5, 6));
        assert_ne!(process(std::process::id()).unwrap().state, 'Z');
    }

    #[test]
    fn nobody_signals_init_or_a_group() {
        assert!(signal(0, Signal::CONT).is_err() && signal(1, Signal::CONT).is_err() && signal(u32::MAX, Signal::CONT).is_err());
    }
}
