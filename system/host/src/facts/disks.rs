//! Block devices and the file systems that may hold data.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::nics::{Pcie, pcie_link};
use super::{Tree, chosen};

const BLOCK: &str = "/sys/block";
/// Prefixes of devices without persistent data of their own.
const NOT_DISKS: [&str; 4] = ["loop", "ram", "zram", "sr"];
/// Depth of stacked devices, as a volume on an array of partitions.
const STACKED_MAX: usize = 8;
/// Types of file systems that may hold data.
const DATA: [&str; 12] = [
    "xfs", "ext4", "ext3", "btrfs", "zfs", "f2fs", "nfs", "nfs4", "lustre", "ceph", "gpfs",
    "beegfs",
];

/// A block device and its queue settings.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Name in `/sys/block`, as `nvme0n1`.
    pub name: String,
    /// Model name that the device reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub model: Option<String>,
    /// True for a disk with spinning parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub rotational: Option<bool>,
    /// Active I/O scheduler, as `mq-deadline`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub scheduler: Option<String>,
    /// I/O schedulers that it could have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schedulers: Vec<String>,
    /// Read-ahead of the block device in KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub read_ahead_kib: Option<u64>,
    /// Requests that may wait in each of its queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub requests: Option<u64>,
    /// Minimum I/O size: the chunk of an array, the block of a disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub minimum_io_bytes: Option<u64>,
    /// Optimal I/O size: the stripe of an array; 0 where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub optimal_io_bytes: Option<u64>,
    /// Processor on which a request completes: 0 any, 1 one of its group, 2 the one that asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub completion_affinity: Option<u8>,
    /// NUMA node that it is attached to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub numa_node: Option<usize>,
    /// PCI Express link of an NVMe drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub pcie: Option<Pcie>,
}

/// A mounted file system that may hold data.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    /// Absolute path of the mount point.
    pub path: String,
    /// File system type, as `xfs`.
    pub kind: String,
    /// Mount options, separated by commas.
    #[serde(default)]
    #[schema(required)]
    pub options: String,
    /// Disk or array that it is on, as in `disks`; left out where that is no disk of this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub disk: Option<String>,
}

/// Reads all block devices from `/sys/block`.
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
                minimum_io_bytes: tree.number(&file("queue/minimum_io_size")),
                optimal_io_bytes: tree.number(&file("queue/optimal_io_size")),
                completion_affinity: tree.number(&file("queue/rq_affinity")),
                numa_node: numa_node(tree, &format!("{BLOCK}/{name}"), STACKED_MAX),
                pcie: drive_link(tree, &name),
                name,
            }
        })
        .collect()
}

/// NUMA node of a block device; of a stacked one (md, device mapper, NVMe multipath) the node that all lower devices
/// share.
fn numa_node(tree: &Tree, device: &str, stacked_max: usize) -> Option<usize> {
    // -1 if the firmware does not report it; for NVMe that of the controller. A partition is in its disk's directory.
    let own = ["device/numa_node", "device/device/numa_node", "../device/numa_node"];
    if let Some(node) = own.iter().find_map(|path| tree.number(&format!("{device}/{path}"))) {
        return Some(node);
    }
    let below = stacked_max.checked_sub(1)?;
    let parts = tree.names(&format!("{device}/slaves")).into_iter();
    let parts = parts.map(|part| numa_node(tree, &format!("{device}/slaves/{part}"), below));
    // NVMe multipath: the device is a subsystem, with its controllers in it.
    let controllers = tree.names(&format!("{device}/device")).into_iter();
    let controllers = controllers
        .map(|name| format!("{device}/device/{name}/numa_node"))
        .filter(|path| tree.exists(path))
        .map(|path| tree.number(&path));
    let mut nodes = parts.chain(controllers);
    let first = nodes.next()??;
    nodes.all(|node| node == Some(first)).then_some(first)
}

/// Link of an NVMe drive; with multipath, where the device is a subsystem, that of the first of its controllers.
fn drive_link(tree: &Tree, name: &str) -> Option<Pcie> {
    let device = format!("{BLOCK}/{name}/device");
    let controllers = tree.names(&device).into_iter();
    let controllers = controllers.filter(|name| name.starts_with("nvme"));
    let mut slots = std::iter::once(format!("{device}/device"))
        .chain(controllers.map(|controller| format!("{device}/{controller}/device")));
    slots.find_map(|slot| pcie_link(tree, &slot)).filter(|_| name.starts_with("nvme"))
}

/// Returns the disk of a device number (`st_dev`), which may be that of a partition; `None` if it is not on a disk.
#[must_use]
pub fn disk_of(device: u64) -> Option<String> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    disk_numbered(&Tree::default(), &format!("{major}:{minor}"))
}

fn disk_numbered(tree: &Tree, number: &str) -> Option<String> {
    let place = std::fs::canonicalize(tree.at(&format!("/sys/dev/block/{number}"))).ok()?;
    // A partition is in its disk's directory.
    let is_part = place.join("partition").exists();
    let disk = if is_part { place.parent()? } else { &place };
    Some(disk.file_name()?.to_str()?.to_owned())
}

/// Reads the file systems.
#[must_use]
pub fn mounts(tree: &Tree) -> Vec<Mount> {
    let text = tree.text("/proc/self/mounts").unwrap_or_default();
    let numbers = tree.text("/proc/self/mountinfo").unwrap_or_default();
    // Number, parent, device as 8:1, root, mount point (proc(5)); the last mount hides earlier ones at the same point.
    let disk = |path: &str| {
        let mut lines = numbers.lines().rev().map(|line| line.split(' '));
        let number = lines.find_map(|words| {
            let words: Vec<&str> = words.take(5).collect();
            (words.get(4) == Some(&path)).then(|| words[2].to_owned())
        })?;
        disk_numbered(tree, &number)
    };
    let mut mounts: Vec<(&str, Mount)> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (device, path) = (words.next()?, words.next()?);
            let (kind, options) = (words.next()?, words.next()?);
            // Paths with control characters are skipped.
            if !DATA.contains(&kind) || path.contains(char::is_control) {
                return None;
            }
            let mount = Mount {
                path: path.replace("\\040", " "),
                kind: kind.to_owned(),
                options: options.to_owned(),
                disk: disk(path),
            };
            Some((device, mount))
        })
        .collect();
    mounts.sort_by(|a, b| a.1.path.cmp(&b.1.path));
    // Bind mounts show the same file system again.
    let mut seen = std::collections::BTreeSet::new();
    mounts.retain(|(device, _)| seen.insert(*device));
    mounts.into_iter().map(|(_, mount)| mount).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Creates sysfs of three disks, the third at the other NUMA node, with stacked devices.
    fn sysfs(root: &Path) {
        for (disk, node) in [("nvme0n1", 1), ("nvme1n1", 1), ("nvme2n1", 0), ("vda", -1)] {
            write(root, &format!("devices/{disk}/device/numa_node"), &format!("{node}\n"));
            write(root, &format!("devices/{disk}/{disk}p1/partition"), "1\n");
        }
        for path in ["nvme3", "nvme4"] {
            write(root, &format!("devices/nvme-subsys3/{path}/numa_node"), "0\n");
        }
        write(root, "devices/nvme3n1/size", "8\n");
        symlink("../nvme-subsys3", root.join("devices/nvme3n1/device")).unwrap();
        for (array, parts) in [
            ("md0", ["nvme0n1/nvme0n1p1", "nvme1n1/nvme1n1p1"].as_slice()),
            ("md1", &["nvme1n1", "nvme2n1"]),
            ("md2", &["nvme0n1", "vda"]),
            ("dm-0", &["md0"]),
            ("dm-1", &[]),
        ] {
            let slaves = root.join(format!("devices/{array}/slaves"));
            fs::create_dir_all(&slaves).unwrap();
            for part in parts {
                let name = part.rsplit('/').next().unwrap();
                symlink(format!("../../{part}"), slaves.join(name)).unwrap();
            }
        }
        fs::create_dir_all(root.join("sys")).unwrap();
        symlink("../devices", root.join("sys/block")).unwrap();
    }

    #[test]
    fn stacked_devices_inherit_a_common_node() {
        let root = tempfile::tempdir().unwrap();
        sysfs(root.path());
        let disks = gather(&Tree::below(root.path()));
        let node = |name: &str| disks.iter().find(|disk| disk.name == name).unwrap().numa_node;
        let names = ["nvme0n1", "nvme2n1", "nvme3n1", "vda", "md0", "dm-0", "md1", "md2", "dm-1"];
        assert_eq!(
            names.map(node),
            [Some(1), Some(0), Some(0), None, Some(1), Some(1), None, None, None]
        );
    }

    #[test]
    fn nvme_links_are_those_of_controllers() {
        let root = tempfile::tempdir().unwrap();
        sysfs(root.path());
        for slot in ["nvme0n1/device/device", "nvme-subsys3/nvme4/device", "vda/device/device"] {
            for (file, text) in [
                ("current_link_speed", "16.0 GT/s PCIe\n"),
                ("max_link_speed", "32.0 GT/s PCIe\n"),
                ("current_link_width", "4\n"),
                ("max_link_width", "4\n"),
            ] {
                write(root.path(), &format!("devices/{slot}/{file}"), text);
            }
        }
        let disks = gather(&Tree::below(root.path()));
        let link = |name: &str| disks.iter().find(|disk| disk.name == name).unwrap().pcie;
        let of = |name: &str| link(name).map(|link| (link.speed_gts, link.width));
        assert_eq!([of("nvme0n1"), of("nvme3n1")], [Some((16.0, 4)); 2]);
        assert_eq!([of("nvme1n1"), of("vda"), of("md0")], [None; 3]);
    }

    #[test]
    fn disks_are_found_by_number() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "sys/devices/pci0/nvme/nvme0/nvme0n1/nvme0n1p2/partition", "2\n");
        write(root.path(), "sys/devices/pci0/virtio3/block/vda/size", "8\n");
        write(root.path(), "sys/devices/virtual/block/dm-0/size", "8\n");
        let numbers = root.path().join("sys/dev/block");
        fs::create_dir_all(&numbers).unwrap();
        for (number, place) in [
            ("259:0", "pci0/nvme/nvme0/nvme0n1"),
            ("259:2", "pci0/nvme/nvme0/nvme0n1/nvme0n1p2"),
            ("254:0", "pci0/virtio3/block/vda"),
            ("253:0", "virtual/block/dm-0"),
        ] {
            symlink(format!("../../devices/{place}"), numbers.join(number)).unwrap();
        }
        let tree = Tree::below(root.path());
        let found = ["259:0", "259:2", "254:0", "253:0", "1:1"].map(|at| disk_numbered(&tree, at));
        let names = ["nvme0n1", "nvme0n1", "vda", "dm-0"].map(|name| Some(name.to_owned()));
        assert_eq!((&found[..4], &found[4]), (&names[..], &None));
    }

    #[test]
    fn devices_that_hold_each_other_end() {
        let root = tempfile::tempdir().unwrap();
        let slaves = root.path().join("sys/block/md0/slaves");
        fs::create_dir_all(&slaves).unwrap();
        symlink("../../md0", slaves.join("md0")).unwrap();
        assert_eq!(gather(&Tree::below(root.path()))[0].numa_node, None);
    }
}
