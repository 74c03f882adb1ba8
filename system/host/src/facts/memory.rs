//! Memory size, limits of this process, and drops of the receive backlog.

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
    }
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
        assert_eq!(gather(&tree).limit_bytes, Some(8 << 30));
        assert_eq!(softnet(&tree), Some(Softnet { dropped_packets: 3, squeezed_rounds: 256 }));
    }

    #[test]
    fn this_machine_has_memory() {
        let memory = gather(&Tree::default());
        assert!(memory.total_bytes > Some(64 << 20) && memory.page_bytes >= Some(4096));
    }
}
