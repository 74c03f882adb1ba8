//! Whether programs outside a play took its processors: then what was measured does not hold, though links were on time.
//!
//! Processor time of all processes that are not of the play, and what a hypervisor took (steal), is compared before and after
//! (proc_pid_stat(5), proc_stat(5)). It counts where tasks had to wait for a processor as well, by pressure-stall information
//! (Documentation/accounting/psi.rst) or, on kernels without it, by how little the machine was idle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Ticks of a second in `/proc` (USER_HZ).
const TICKS_PER_SECOND: f64 = 100.0;
/// Of all processors, from which on others are in the way where tasks wait.
const FOREIGN_SHARE_MAX: f64 = 0.05;
/// Of the time, in which some task waited for a processor.
const WAITING_SHARE_MAX: f64 = 0.10;
/// A flag of a task: a thread of the kernel (include/linux/sched.h).
const PF_KTHREAD: u64 = 0x0020_0000;

/// What others took of the machine while something was measured.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct Contention {
    /// Share of all processors' time that programs outside the scenario and other virtual machines took [ratio].
    pub foreign_share: f64,
    /// Share of the time in which some task waited for a processor [ratio].
    pub waiting_share: f64,
    /// True where the measurements do not hold.
    pub disturbed: bool,
}

/// The state of the machine when a play begins.
#[derive(Debug)]
pub struct Watch {
    began: Instant,
    before: Moment,
    namespaces: BTreeSet<u64>,
    root: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Moment {
    /// Of all processes that are not of the play, with their children that ended.
    foreign_ticks: u64,
    stolen_ticks: u64,
    idle_ticks: u64,
    /// Of pressure-stall information, where it is there.
    waited_us: Option<u64>,
}

impl Watch {
    /// Begins; of the play are this process and all that descend from it, and what runs in these network namespaces.
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

    /// What others took since.
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
        // All that is not idle, where it is nearly everything.
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
            // A process that has just ended is in its parent's sums.
            let Ok(text) = fs::read_to_string(entry.path().join("stat")) else { continue };
            let Some(process) = Process::read(&text) else { continue };
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

/// What is read of a process.
#[derive(Debug, PartialEq)]
struct Process {
    parent: u32,
    is_of_kernel: bool,
    /// Its own, and of its children that ended and were waited for.
    ticks: u64,
}

impl Process {
    /// Of a line of `/proc/PID/stat`; the name of the program, which may hold anything, is in parentheses.
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
    // A process cannot be its own ancestor, but what is read is of no one moment.
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

/// Steal and idle of the first line of `/proc/stat`.
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

/// The sum of `some` in microseconds.
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
        let expected = Process { parent: 3, is_of_kernel: false, ticks: 127 };
        assert_eq!(Process::read(line), Some(expected));
        assert!(
            Process::read("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 5 0 0 20")
                .unwrap()
                .is_of_kernel
        );
        assert_eq!(Process::read("nothing"), None);
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
