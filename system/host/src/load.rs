//! Present load of the host: run queue, stalls, and data that waits for storage.
//!
//! These figures are known before a transfer begins. What a kernel does not report is `None`.

use std::fs;

use serde::Serialize;

/// Load of the host at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct HostLoad {
    /// Mean number of runnable and blocked tasks over a minute, proc_loadavg(5).
    pub load_1min: Option<f64>,
    /// Number of processors that this process may use.
    pub processors: u32,
    /// Share of the last ten seconds in which some task waited for a processor, in percent (`/proc/pressure/cpu`).
    pub cpu_pressure_percent: Option<f64>,
    /// Share of the last ten seconds in which some task waited for storage, in percent (`/proc/pressure/io`).
    pub io_pressure_percent: Option<f64>,
    /// Bytes of the page cache that wait to be written, or are being written (`Dirty` and `Writeback`, proc_meminfo(5)).
    pub dirty_bytes: Option<u64>,
}

impl HostLoad {
    /// Reads the load from `/proc`.
    #[must_use]
    pub fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            load_1min: first_number(&text("/proc/loadavg")),
            processors: u32::try_from(processors).unwrap_or(u32::MAX),
            cpu_pressure_percent: some_avg10(&text("/proc/pressure/cpu")),
            io_pressure_percent: some_avg10(&text("/proc/pressure/io")),
            dirty_bytes: dirty_bytes(&text("/proc/meminfo")),
        }
    }
}

fn first_number(text: &str) -> Option<f64> {
    text.split_ascii_whitespace().next()?.parse().ok().filter(|load: &f64| load.is_finite())
}

/// `avg10` of the line `some`, Documentation/accounting/psi.rst.
fn some_avg10(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    let word = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("avg10="))?;
    word.parse().ok().filter(|percent| (0.0..=100.0).contains(percent))
}

fn dirty_bytes(meminfo: &str) -> Option<u64> {
    let kibibytes = |name: &str| -> Option<u64> {
        let rest = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        rest.split_ascii_whitespace().next()?.parse().ok()
    };
    Some((kibibytes("Dirty")? + kibibytes("Writeback")?) * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_proc_are_parsed() {
        assert_eq!(first_number("0.52 0.58 0.59 3/1257 12345\n"), Some(0.52));
        let pressure = "some avg10=12.34 avg60=1.00 avg300=0.50 total=123\nfull avg10=9.00 avg60=0.00 avg300=0.00 total=9\n";
        assert_eq!(some_avg10(pressure), Some(12.34));
        let memory = "MemTotal: 100 kB\nDirty:      36 kB\nWriteback:   4 kB\nWritebackTmp: 9 kB\n";
        assert_eq!(dirty_bytes(memory), Some(40 * 1024));
    }

    #[test]
    fn unreadable_figures_are_unknown() {
        for text in
            ["", "some", "some avg10=", "some avg10=nan", "some avg10=101", "full avg10=1.0"]
        {
            assert_eq!(some_avg10(text), None, "{text}");
        }
        assert_eq!(first_number("inf"), None);
        assert_eq!(dirty_bytes("Dirty: 1 kB"), None);
    }
}
