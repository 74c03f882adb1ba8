//! Memory size, limits of this process, and drops of the receive backlog.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Tree;

/// Memory size, limits and page sizes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Memory of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub total_bytes: Option<u64>,
    /// The least limit of this process's control groups; left out where there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub limit_bytes: Option<u64>,
    /// Size of a page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub page_bytes: Option<u64>,
    /// Huge pages that are set aside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub huge_pages: Option<u64>,
    /// Size of a huge page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub huge_page_bytes: Option<u64>,
    /// Memory that this process may lock, as for registering with a device; left out where it is not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub lock_limit_bytes: Option<u64>,
    /// True where that limit does not hold for this process (`CAP_IPC_LOCK`, as root has it).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub locks_without_limit: Option<bool>,
    /// Memory modules as the firmware lists them (SMBIOS), one element for each width and rate; only root reads them, and
    /// most virtual machines have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<MemoryModules>,
}

/// Memory modules of the same width and rate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryModules {
    /// Number of these modules.
    pub count: u32,
    /// Width of the data path without error correction \[bit\].
    pub width_bits: u32,
    /// Present rate in 10^6 transfers per second \[MT/s\].
    pub rate_mtps: u32,
}

/// Receive backlog drops of all CPUs since boot (`/proc/net/softnet_stat`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Softnet {
    /// Packets dropped because the queue of a processor was full.
    pub dropped_packets: u64,
    /// Rounds of receiving that ended with packets left \[count\].
    pub squeezed_rounds: u64,
}

/// Reads memory facts from `/proc` and `/sys`.
#[must_use]
pub fn gather(tree: &Tree) -> Memory {
    let facts = tree.text("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| -> Option<u64> {
        let line = facts.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let kib = |name: &str| field(name)?.checked_mul(1024);
    Memory {
        total_bytes: kib("MemTotal"),
        limit_bytes: limit(tree),
        page_bytes: tree.is_live().then(|| rustix::param::page_size() as u64),
        huge_pages: field("HugePages_Total"),
        huge_page_bytes: kib("Hugepagesize"),
        lock_limit_bytes: lock_limit(tree),
        locks_without_limit: has_ipc_lock(tree),
        modules: tree.bytes("/sys/firmware/dmi/tables/DMI").map_or(Vec::new(), |t| modules(&t)),
    }
}

/// Reads the memory devices of a table of SMBIOS (DSP0134 3.7: structures 6.1.2 and 6.1.3, type 17 in 7.18).
fn modules(mut table: &[u8]) -> Vec<MemoryModules> {
    const MEMORY_DEVICE: u8 = 17;
    const END_OF_TABLE: u8 = 127;
    let mut counts: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    while let [kind, length, ..] = *table {
        let Some(structure) = table.get(..usize::from(length)) else { break };
        if kind == END_OF_TABLE || structure.len() < 4 {
            break;
        }
        if let Some(module) = memory_device(structure).filter(|_| kind == MEMORY_DEVICE) {
            *counts.entry(module).or_default() += 1;
        }
        // Strings follow, each with a zero byte, and another zero byte ends them.
        let strings = &table[structure.len()..];
        let Some(end) = strings.windows(2).position(|pair| pair == [0, 0]) else { break };
        table = &strings[end + 2..];
    }
    let modules = counts.into_iter();
    modules
        .map(|((width_bits, rate_mtps), count)| MemoryModules { count, width_bits, rate_mtps })
        .collect()
}

/// Width in bits and rate in MT/s of a memory device; `None` for an empty socket and where the firmware does not know.
fn memory_device(structure: &[u8]) -> Option<(u32, u32)> {
    let word = |at: usize| {
        let bytes = structure.get(at..at + 2)?;
        Some(u16::from_le_bytes(bytes.try_into().ok()?))
    };
    let double = |at: usize| {
        let bytes = structure.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    const WORD_UNKNOWN: u16 = 0xFFFF;
    let known = |value: Option<u16>| value.filter(|value| ![0, WORD_UNKNOWN].contains(value));
    let _size = known(word(0x0C))?;
    let width = known(word(0x0A))?;
    // The configured rate, then the module's own. From 65,535 MT/s on the word is 0xFFFF and the rate is in a field of
    // its own.
    let rate = |at, extended| match word(at) {
        Some(WORD_UNKNOWN) => double(extended).filter(|rate| *rate > 0),
        other => known(other).map(u32::from),
    };
    Some((u32::from(width), rate(0x20, 0x58).or_else(|| rate(0x15, 0x54))?))
}

/// Lowest memory limit of the process's cgroup and its ancestors (cgroup v2).
fn limit(tree: &Tree) -> Option<u64> {
    let groups = tree.text("/proc/self/cgroup")?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mut path = format!("/sys/fs/cgroup/{own}");
    let mut least: Option<u64> = None;
    while path.starts_with("/sys/fs/cgroup") {
        if let Some(limit) = tree.number::<u64>(&format!("{path}/memory.max")) {
            least = Some(least.map_or(limit, |least| least.min(limit)));
        }
        path.truncate(path.rfind('/').unwrap_or(0));
    }
    least
}

fn lock_limit(tree: &Tree) -> Option<u64> {
    let limits = tree.text("/proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// True where this process has `CAP_IPC_LOCK` (include/uapi/linux/capability.h).
fn has_ipc_lock(tree: &Tree) -> Option<bool> {
    const CAP_IPC_LOCK_BIT: u32 = 14;
    let status = tree.text("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    Some(u64::from_str_radix(mask.trim(), 16).ok()? >> CAP_IPC_LOCK_BIT & 1 == 1)
}

/// Parses `/proc/net/softnet_stat`: a row per CPU with hexadecimal numbers: processed, dropped, squeezed
/// (net/core/net-procfs.c).
#[must_use]
pub fn softnet(tree: &Tree) -> Option<Softnet> {
    let text = tree.text("/proc/net/softnet_stat")?;
    let mut sum = Softnet::default();
    for line in text.lines() {
        let mut numbers =
            line.split_whitespace().skip(1).map(|number| u64::from_str_radix(number, 16));
        sum.dropped_packets = sum.dropped_packets.saturating_add(numbers.next()?.ok()?);
        sum.squeezed_rounds = sum.squeezed_rounds.saturating_add(numbers.next()?.ok()?);
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn limits_of_groups_above_count() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let group = root.join("sys/fs/cgroup/kubepods/pod1");
        fs::create_dir_all(&group).unwrap();
        fs::create_dir_all(root.join("proc/self")).unwrap();
        fs::create_dir_all(root.join("proc/net")).unwrap();
        fs::write(root.join("proc/self/cgroup"), "0::/kubepods/pod1\n").unwrap();
        fs::write(group.join("memory.max"), "max\n").unwrap();
        fs::write(group.join("../memory.max"), "8589934592\n").unwrap();
        fs::write(
            root.join("proc/net/softnet_stat"),
            "0000000a 00000001 000000ff 00\n0000000b 00000002 00000001 00\n",
        )
        .unwrap();
        let tree = Tree::below(root);
        fs::write(root.join("proc/self/limits"), "Max locked memory  65536  65536  bytes\n")
            .unwrap();
        fs::write(root.join("proc/self/status"), "CapEff:\t0000000000004000\n").unwrap();
        let memory = gather(&tree);
        assert_eq!(memory.limit_bytes, Some(8 << 30));
        assert_eq!(
            (memory.lock_limit_bytes, memory.locks_without_limit),
            (Some(65_536), Some(true))
        );
        assert_eq!(softnet(&tree), Some(Softnet { dropped_packets: 3, squeezed_rounds: 256 }));
    }

    /// A structure of type 17, version 3.2 or later, without strings.
    fn device(size: u16, width: u16, rate: u16, configured: u16) -> Vec<u8> {
        let mut bytes = vec![0; 0x5C];
        (bytes[0], bytes[1]) = (17, 0x5C);
        for (at, value) in [(0x0A, width), (0x0C, size), (0x15, rate), (0x20, configured)] {
            bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        bytes[0x58..0x5C].copy_from_slice(&70_000_u32.to_le_bytes());
        bytes.extend([0, 0]);
        bytes
    }

    #[test]
    fn modules_of_firmware_are_grouped() {
        let processor = [&[4, 6, 0, 0, 9, 9][..], b"CPU 0\0Maker\0\0"].concat();
        let end = vec![127, 4, 0, 0, 0, 0];
        let [slow, unset] = [device(16_384, 64, 5600, 4800), device(16_384, 64, 4800, 0)];
        let [empty, extended] = [device(0, 64, 5600, 4800), device(1, 32, 0xFFFF, 0xFFFF)];
        let behind = device(16_384, 64, 1600, 1600);
        let table = [processor, slow, empty, unset, extended, end, behind].concat();
        let of = |count, width_bits, rate_mtps| MemoryModules { count, width_bits, rate_mtps };
        assert_eq!(modules(&table), [of(1, 32, 70_000), of(2, 64, 4800)]);
        for cut in 0..table.len() {
            assert!(modules(&table[..cut]).len() <= 2, "a table of {cut} bytes");
        }
        assert!(modules(&[17, 0, 0, 0, 0, 0]).is_empty() && modules(&[]).is_empty());
    }

    #[test]
    fn this_machine_has_memory() {
        let memory = gather(&Tree::default());
        assert!(memory.total_bytes > Some(64 << 20) && memory.page_bytes >= Some(4096));
    }
}
