//! Description of the measuring machine by its parts: processor, memory, disk, kernel, tools.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde::Serialize;

/// Everything that a reader needs to judge or repeat the figures.
#[derive(Debug, Clone, Serialize)]
pub(super) struct MachineFacts {
    pub(super) date: String,
    pub(super) commit: String,
    pub(super) cpu: String,
    pub(super) cores: usize,
    pub(super) memory_gib: u64,
    pub(super) kernel: String,
    pub(super) file_system: String,
    pub(super) congestion_control: String,
    pub(super) loopback_mtu: String,
    pub(super) load_at_end: String,
    pub(super) tools: Vec<String>,
}

impl MachineFacts {
    /// Machine part of a result file's name, such as `amd-epyc-2cpu-23gib`.
    pub(super) fn words(&self) -> String {
        let plain: String = self
            .cpu
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
            .collect();
        let words: Vec<&str> = plain
            .split('-')
            .filter(|word| !word.is_empty() && *word != "processor")
            .take(4)
            .collect();
        format!("{}-{}cpu-{}gib", words.join("-"), self.cores, self.memory_gib)
    }
}

/// Date in UTC, as `2026-11-26`.
pub(super) fn today() -> String {
    output("date", &["-u", "+%Y-%m-%d"])
}

pub(super) fn facts(root: &Path, work: &Path) -> Result<MachineFacts> {
    let cpu_info = read("/proc/cpuinfo");
    let cpu = cpu_info
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or("unknown processor");
    let memory = read("/proc/meminfo");
    let kib: u64 = memory.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    let dirty = if output("git", &["-C", &root.display().to_string(), "status", "--porcelain"])
        .is_empty()
    {
        ""
    } else {
        " and changes not committed"
    };
    Ok(MachineFacts {
        date: today(),
        commit: output(
            "git",
            &["-C", &root.display().to_string(), "rev-parse", "--short=12", "HEAD"],
        ) + dirty,
        cpu: cpu.trim_start_matches([' ', '\t', ':']).to_owned(),
        cores: std::thread::available_parallelism()?.get(),
        memory_gib: kib >> 20,
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        file_system: output("df", &["--output=source,fstype", &work.display().to_string()])
            .lines()
            .last()
            .unwrap_or_default()
            .to_owned(),
        congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control").trim().to_owned(),
        loopback_mtu: read("/sys/class/net/lo/mtu").trim().to_owned(),
        load_at_end: read("/proc/loadavg").trim().to_owned(),
        tools: tool_versions(),
    })
}

/// NUMA nodes that the kernel shows; one where it shows none.
pub(super) fn numa_nodes() -> usize {
    let entries = std::fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    let is_node =
        |name: &str| name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok());
    entries.filter(|entry| entry.file_name().to_str().is_some_and(is_node)).count().max(1)
}

/// Processor time of the ended child processes.
pub(super) fn children_seconds() -> f64 {
    super::process::reaped_ticks() as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Default congestion control in this network namespace.
pub(super) fn congestion_control() -> String {
    read("/proc/sys/net/ipv4/tcp_congestion_control").trim().to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn output(program: &str, arguments: &[&str]) -> String {
    let Ok(output) = Command::new(program).args(arguments).output() else {
        return String::new();
    };
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Package versions, as each tool prints its own differently.
fn tool_versions() -> Vec<String> {
    let mut packages = super::PACKAGES.to_vec();
    packages.retain(|package| *package != "iproute2");
    let mut arguments = vec!["--show", "--showformat", "${Package} ${Version}\n"];
    arguments.extend(packages);
    output("dpkg-query", &arguments).lines().map(str::to_owned).collect()
}
