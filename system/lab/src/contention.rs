//! CPU contention: programs outside a scenario took its CPUs, which invalidates its measurements.
//!
//! Compares CPU time of all processes outside the scenario and steal time before and after (proc_pid_stat(5),
//! proc_stat(5)). It counts only where tasks had to wait for a CPU as well, by pressure-stall information
//! (Documentation/accounting/psi.rst) or, on kernels without it, by how little the machine was idle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// USER_HZ: ticks per second in `/proc`.
const TICKS_PER_SECOND: f64 = 100.0;
/// Share of all CPUs above which foreign programs disturb, where tasks wait.
const FOREIGN_SHARE_MAX: f64 = 0.05;
/// Share of the time in which some task waited for a CPU.
const WAITING_SHARE_MAX: f64 = 0.10;
/// include/linux/sched.h: kernel thread.
const PF_KTHREAD: u64 = 0x0020_0000;

/// Contention during a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct Contention {
    /// Share of all processors' time that programs outside the scenario and other virtual machines took \[ratio\].
    pub foreign_share: f64,
    /// Share of the time in which some task waited for a processor \[ratio\].
    pub waiting_share: f64,
    /// True where the measurements do not hold.
    pub disturbed: bool,
}

/// Samples the machine at the start of a scenario.
#[derive(Debug)]
pub struct Watch {
    began: Instant,
    before: Moment,
    namespaces: BTreeSet<u64>,
    root: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Moment {
    /// CPU time of processes outside the scenario and of their reaped children.
    foreign_ticks: u64,
    stolen_ticks: u64,
    idle_ticks: u64,
    /// From pressure-stall information, where available.
    waited_us: Option<u64>,
}

impl Watch {
    /// Starts sampling. The scenario is this process, its descendants, and all processes in these network namespaces.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn begin(namespaces: &[PathBuf]) -> io::Result<Self> {
        let inode = |path: &PathBuf| fs::metadata(path).map(|of| of.ino());
        let namespaces = namespaces.iter().map(inode).collect::<io::Result<_>>()?;
        let root = std::process::id();
        let before = Moment::now(root, &namespaces)?;
        Ok(Self { began: Instant::now(), before, namespaces, root })
    }

    /// Contention since the start.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn end(&self) -> io::Result<Contention> {
        let after = Moment::now(self.root, &self.namespaces)?;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(contention(&self.before, &after, self.began.elapsed().as_secs_f64(), processors))
    }
}

fn contention(before: &Moment, after: &Moment, seconds: f64, processors: usize) -> Contention {
    let seconds = seconds.max(1e-3);
    let all_ticks = seconds * TICKS_PER_SECOND * processors as f64;
    let ticks = |count: fn(&Moment) -> u64| count(after).saturating_sub(count(before)) as f64;
    let foreign = ticks(|moment| moment.foreign_ticks) + ticks(|moment| moment.stolen_ticks);
    let foreign_share = (foreign / all_ticks).min(1.0);
    let waiting_share = match (before.waited_us, after.waited_us) {
        (Some(before), Some(after)) => after.saturating_sub(before) as f64 / 1e6 / seconds,
        // Without PSI: a machine that was hardly idle counts as waiting.
        _ => (1.0 - ticks(|moment| moment.idle_ticks) / all_ticks - 0.8).max(0.0),
    };
    let waiting_share = waiting_share.min(1.0);
    let disturbed = foreign_share > FOREIGN_SHARE_MAX && waiting_share > WAITING_SHARE_MAX;
    Contention { foreign_share, waiting_share, disturbed }
}

impl Moment {
    fn now(root: u32, namespaces: &BTreeSet<u64>) -> io::Result<Self> {
        let (mut parents, mut ticks) = (BTreeMap::new(), BTreeMap::new());
        for entry in fs::read_dir("/proc")?.flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
            else {
                continue;
            };
            // A process that has just ended counts with its parent.
            let Ok(text) = fs::read_to_string(entry.path().join("stat")) else { continue };
            let Some(process) = ProcessTimes::read(&text) else { continue };
            parents.insert(id, process.parent);
            let is_inside = || is_in(&entry.path(), namespaces);
            if !process.is_of_kernel && !is_inside() {
                ticks.insert(id, process.ticks);
            }
        }
        let foreign = ticks.iter().filter(|(id, _)| !descends(**id, root, &parents));
        let (stolen_ticks, idle_ticks) = processor_ticks(&fs::read_to_string("/proc/stat")?);
        let pressure = fs::read_to_string("/proc/pressure/cpu").ok();
        Ok(Self {
            foreign_ticks: foreign.map(|(_, ticks)| ticks).sum(),
            stolen_ticks,
            idle_ticks,
            waited_us: pressure.as_deref().and_then(waited_us),
        })
    }
}

/// Fields of `/proc/PID/stat`.
#[derive(Debug, PartialEq)]
struct ProcessTimes {
    parent: u32,
    is_of_kernel: bool,
    /// CPU time of the process and of its reaped children.
    ticks: u64,
}

impl ProcessTimes {
    /// Parses `/proc/PID/stat`; the program name is in parentheses and may contain any character.
    fn read(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(')')?;
        let words: Vec<&str> = rest.split_whitespace().collect();
        // Fields 4, 9 and 14 to 17 of proc_pid_stat(5); the first word here is field 3.
        let number = |field: usize| words.get(field - 3)?.parse::<u64>().ok();
        Some(Self {
            parent: u32::try_from(number(4)?).ok()?,
            is_of_kernel: number(9)? & PF_KTHREAD != 0,
            ticks: [14, 15, 16, 17].into_iter().filter_map(number).sum(),
        })
    }
}

fn is_in(process: &Path, namespaces: &BTreeSet<u64>) -> bool {
    fs::metadata(process.join("ns/net")).is_ok_and(|of| namespaces.contains(&of.ino()))
}

fn descends(mut id: u32, root: u32, parents: &BTreeMap<u32, u32>) -> bool {
    // Bounded: the samples are of different moments and may contain a cycle.
    for _ in 0..parents.len() {
        if id == root {
            return true;
        }
        match parents.get(&id) {
            Some(parent) if *parent != 0 => id = *parent,
            _ => return false,
        }
    }
    false
}

/// Steal and idle ticks in the first line of `/proc/stat`.
fn processor_ticks(text: &str) -> (u64, u64) {
    let words: Vec<u64> = text
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect();
    let at = |field: usize| words.get(field).copied().unwrap_or(0);
    (at(7), at(3) + at(4))
}

/// Total of the PSI line `some`, in microseconds.
fn waited_us(text: &str) -> Option<u64> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    some.split_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_lines_are_read_by_field() {
        let line = "7 (a ) b) S 3 7 7 0 -1 4194560 1 2 3 4 100 20 3 4 20 0 1 0 99 0";
        let expected = ProcessTimes { parent: 3, is_of_kernel: false, ticks: 127 };
        assert_eq!(ProcessTimes::read(line), Some(expected));
        assert!(
            ProcessTimes::read("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 5 0 0 20")
                .unwrap()
                .is_of_kernel
        );
        assert_eq!(ProcessTimes::read("nothing"), None);
        assert_eq!(processor_ticks("cpu  1 2 3 40 5 6 7 8 9 10\ncpu0 1"), (8, 45));
        let pressure = "some avg10=1.00 avg60=1.00 avg300=0.50 total=123\nfull avg10=0 total=9\n";
        assert_eq!(waited_us(pressure), Some(123));
    }

    #[test]
    fn others_count_where_tasks_wait() {
        let before = Moment { waited_us: Some(0), ..Moment::default() };
        let after = |foreign_ticks, waited_us, stolen_ticks| Moment {
            foreign_ticks,
            stolen_ticks,
            waited_us: Some(waited_us),
            ..Moment::default()
        };
        // Ten seconds of two processors are 2000 ticks.
        for (after, disturbed) in [
            (after(400, 5_000_000, 0), true),
            (after(0, 5_000_000, 400), true),
            (after(400, 100_000, 0), false),
            (after(20, 9_000_000, 0), false),
        ] {
            let found = contention(&before, &after, 10.0, 2);
            assert_eq!(found.disturbed, disturbed, "{found:?}");
        }
        let share = contention(&before, &after(400, 5_000_000, 0), 10.0, 2);
        assert!(
            (share.foreign_share - 0.2).abs() < 1e-9 && (share.waiting_share - 0.5).abs() < 1e-9
        );
    }

    #[test]
    fn idle_time_stands_in_for_pressure() {
        let busy = Moment { foreign_ticks: 1000, idle_ticks: 0, ..Moment::default() };
        assert!(contention(&Moment::default(), &busy, 10.0, 2).disturbed);
        let idle = Moment { foreign_ticks: 1000, idle_ticks: 1000, ..Moment::default() };
        assert!(!contention(&Moment::default(), &idle, 10.0, 2).disturbed);
    }

    #[test]
    fn own_descendants_are_not_foreign() {
        let parents = BTreeMap::from([(1, 0), (5, 1), (6, 5), (7, 1), (8, 9), (9, 8)]);
        assert!(descends(6, 5, &parents) && descends(5, 5, &parents));
        assert!(!descends(7, 5, &parents) && !descends(8, 5, &parents));
    }
}
