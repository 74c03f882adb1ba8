//! Block devices and the file systems that may hold data.

use serde::{Deserialize, Serialize};

use super::{Tree, chosen};

const BLOCK: &str = "/sys/block";
/// Devices that hold no data of their own, or none that lasts.
const NOT_DISKS: [&str; 4] = ["loop", "ram", "zram", "sr"];
/// File systems of which a node's data is on one.
const DATA: [&str; 12] = [
    "xfs", "ext4", "ext3", "btrfs", "zfs", "f2fs", "nfs", "nfs4", "lustre", "ceph", "gpfs",
    "beegfs",
];

/// A block device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// As `nvme0n1`.
    pub name: String,
    /// As it calls itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Whether it has spinning parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotational: Option<bool>,
    /// Which scheduler orders its requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
    /// Those that it could have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedulers: Vec<String>,
    /// What is read ahead of a sequential reader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_ahead_kib: Option<u64>,
    /// Requests that may wait in each of its queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Where a request completes: 0 anywhere, 1 in the group, 2 on the processor that asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_affinity: Option<u8>,
    /// The NUMA node it is attached to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<usize>,
}

/// A file system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Where it is mounted.
    pub path: String,
    /// As `xfs`.
    pub kind: String,
    /// Its options.
    #[serde(default)]
    pub options: String,
}

/// Reads the devices.
#[must_use]
pub fn gather(tree: &Tree) -> Vec<Disk> {
    let data = |name: &String| !NOT_DISKS.iter().any(|other| name.starts_with(other));
    let names = tree.names(BLOCK).into_iter().filter(data);
    names
        .map(|name| {
            let file = |path: &str| format!("{BLOCK}/{name}/{path}");
            let schedulers = tree.text(&file("queue/scheduler"));
            let list = schedulers.as_deref().unwrap_or_default();
            let list = list.split_whitespace().map(|one| one.trim_matches(['[', ']']).to_owned());
            Disk {
                model: tree.text(&file("device/model")),
                rotational: tree.number::<u8>(&file("queue/rotational")).map(|on| on != 0),
                scheduler: schedulers.as_deref().map(|text| chosen(text).to_owned()),
                schedulers: list.collect(),
                read_ahead_kib: tree.number(&file("queue/read_ahead_kb")),
                requests: tree.number(&file("queue/nr_requests")),
                completion_affinity: tree.number(&file("queue/rq_affinity")),
                // -1 where the firmware does not tell; for NVMe it is the controller's.
                numa_node: tree
                    .number(&file("device/numa_node"))
                    .or_else(|| tree.number(&file("device/device/numa_node"))),
                name,
            }
        })
        .collect()
}

/// The disk that holds a device of this number (`st_dev`), which may be a partition of it; none where it is no disk's.
#[must_use]
pub fn disk_of(device: u64) -> Option<String> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let place = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let mut parts = place.iter().skip_while(|part| *part != "block");
    Some(parts.nth(1)?.to_str()?.to_owned())
}

/// Reads the file systems.
#[must_use]
pub fn mounts(tree: &Tree) -> Vec<Mount> {
    let text = tree.text("/proc/self/mounts").unwrap_or_default();
    let mut mounts: Vec<(&str, Mount)> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (device, path) = (words.next()?, words.next()?);
            let (kind, options) = (words.next()?, words.next()?);
            let mount = Mount {
                path: path.replace("\\040", " "),
                kind: kind.to_owned(),
                options: options.to_owned(),
            };
            DATA.contains(&kind).then_some((device, mount))
        })
        .collect();
    mounts.sort_by(|a, b| a.1.path.cmp(&b.1.path));
    // What is bound to a second place is the same file system.
    let mut seen = std::collections::BTreeSet::new();
    mounts.retain(|(device, _)| seen.insert(*device));
    mounts.into_iter().map(|(_, mount)| mount).collect()
}
