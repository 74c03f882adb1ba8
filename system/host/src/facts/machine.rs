//! Kind of machine: hardware, virtual machine, container, network namespace.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Tree, chosen};

/// Kind and platform settings of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Product name that the firmware (DMI) reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub product: Option<String>,
    /// True in a virtual machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub virtual_machine: Option<bool>,
    /// Kind of the container around this process, as `docker`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub container: Option<String>,
    /// True in the network namespace that the machine started with; others see only some settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub first_network_namespace: Option<bool>,
    /// Clock source of the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub clock_source: Option<String>,
    /// Clock sources that it could use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clock_sources: Vec<String>,
    /// True where an IOMMU is in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub iommu: Option<bool>,
    /// Mode of transparent huge pages: `always`, `madvise` or `never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub transparent_huge_pages: Option<String>,
}

/// Reads machine facts from `/proc` and `/sys`.
#[must_use]
pub fn gather(tree: &Tree) -> Machine {
    let clock = "/sys/devices/system/clocksource/clocksource0";
    let sources = tree.text(&format!("{clock}/available_clocksource")).unwrap_or_default();
    let iommu = tree.exists("/sys/class").then(|| !tree.names("/sys/class/iommu").is_empty());
    Machine {
        product: product(tree),
        virtual_machine: virtual_machine(tree),
        container: container(tree),
        // Only the initial namespace has this file: net/core/sysctl_net_core.c.
        first_network_namespace: tree
            .exists("/proc/sys/net/core")
            .then(|| tree.exists("/proc/sys/net/core/netdev_max_backlog")),
        clock_source: tree.text(&format!("{clock}/current_clocksource")),
        clock_sources: sources.split_whitespace().map(str::to_owned).collect(),
        iommu,
        transparent_huge_pages: tree
            .text("/sys/kernel/mm/transparent_hugepage/enabled")
            .map(|text| chosen(&text).to_owned()),
    }
}

fn product(tree: &Tree) -> Option<String> {
    let part = |name: &str| tree.text(&format!("/sys/class/dmi/id/{name}"));
    match (part("sys_vendor"), part("product_name")) {
        (Some(vendor), Some(product)) => Some(format!("{vendor} {product}")),
        (vendor, product) => vendor.or(product),
    }
}

/// Detects a virtual machine by the hypervisor flag (CPUID leaf 1, ECX bit 31), else by the product name of the firmware.
fn virtual_machine(tree: &Tree) -> Option<bool> {
    const VENDORS: [&str; 7] = [
        "QEMU",
        "VMware",
        "Xen",
        "innotek",
        "Amazon EC2",
        "Google",
        "Microsoft Corporation Virtual",
    ];
    let processors = tree.text("/proc/cpuinfo")?;
    let flagged = processors
        .lines()
        .filter(|line| line.starts_with("flags"))
        .any(|line| line.split_whitespace().any(|flag| flag == "hypervisor"));
    let named = product(tree).is_some_and(|name| VENDORS.iter().any(|one| name.starts_with(one)));
    Some(flagged || named || tree.exists("/sys/hypervisor/uuid"))
}

fn container(tree: &Tree) -> Option<String> {
    // Kernel threads are visible only outside containers; images of machines may keep marker files of containers.
    if tree.text("/proc/2/comm").as_deref() == Some("kthreadd") {
        return None;
    }
    if tree.exists("/.dockerenv") && is_docker(tree) {
        return Some("docker".to_owned());
    }
    if tree.exists("/run/.containerenv") {
        return Some("podman".to_owned());
    }
    if let Some(kind) = tree.text("/run/systemd/container") {
        return Some(kind);
    }
    // Container managers set this variable for the first process.
    let environment = tree.bytes("/proc/1/environ")?;
    environment
        .split(|byte| *byte == 0)
        .find_map(|variable| variable.strip_prefix(b"container="))
        .map(|kind| String::from_utf8_lossy(kind).into_owned())
        .or_else(|| {
            let groups = tree.text("/proc/1/cgroup")?;
            groups.contains("kubepods").then(|| "kubernetes".to_owned())
        })
}

/// Detects Docker by its control group, its mounts (/etc/hosts from /var/lib/docker/containers) or an overlay root. The
/// file `/.dockerenv` alone may remain in an image that became a machine.
fn is_docker(tree: &Tree) -> bool {
    let groups = tree.text("/proc/1/cgroup").unwrap_or_default();
    let mounts = tree.text("/proc/self/mountinfo").unwrap_or_default();
    // Number, parent, device, root, mount point, options, optional fields up to a hyphen, type (proc(5)).
    let layers = mounts.lines().any(|line| {
        let kind = line.split_once(" - ").map(|(_, rest)| rest);
        line.split(' ').nth(4) == Some("/")
            && kind.is_some_and(|kind| kind.starts_with("overlay ") || kind.starts_with("aufs "))
    });
    groups.contains("docker") || mounts.contains("/docker/") || layers
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(root: &std::path::Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn virtual_machines_and_containers_are_detected() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let tree = Tree::below(root);
        assert_eq!(gather(&tree), Machine::default());
        write(root, "proc/cpuinfo", "processor: 0\nflags : fpu sse hypervisor lm\n");
        write(root, "proc/sys/net/core/rmem_max", "4194304\n");
        write(root, "proc/1/environ", "HOME=/\0container=lxc\0");
        let machine = gather(&tree);
        assert_eq!(machine.virtual_machine, Some(true));
        assert_eq!(machine.first_network_namespace, Some(false));
        assert_eq!(machine.container.as_deref(), Some("lxc"));
        write(root, "proc/cpuinfo", "flags : fpu hypervisors\n");
        write(root, "proc/sys/net/core/netdev_max_backlog", "1000\n");
        let machine = gather(&tree);
        assert_eq!(machine.virtual_machine, Some(false));
        assert_eq!(machine.first_network_namespace, Some(true));
    }

    /// A machine with a leftover `/.dockerenv`, seen from a PID namespace without kernel threads.
    #[test]
    fn docker_is_more_than_its_mark() {
        let marked = |path: &str, text: &str| {
            let root = tempfile::tempdir().unwrap();
            write(root.path(), ".dockerenv", "");
            write(root.path(), "proc/1/environ", "HOME=/\0");
            write(root.path(), path, text);
            gather(&Tree::below(root.path())).container
        };
        let mounts = "proc/self/mountinfo";
        assert_eq!(marked(mounts, "21 1 254:0 / / rw,relatime - ext4 /dev/root rw\n"), None);
        assert_eq!(marked("proc/1/cgroup", "0::/\n"), None);
        let docker = Some("docker".to_owned());
        let layers = "700 600 0:50 / / rw,relatime master:1 - overlay overlay rw,lowerdir=/l\n";
        assert_eq!(marked(mounts, layers), docker);
        let hosts =
            "710 700 8:1 /var/lib/docker/containers/ab/hosts /etc/hosts rw - xfs /dev/sda rw\n";
        assert_eq!(marked(mounts, hosts), docker);
        assert_eq!(marked("proc/1/cgroup", "0::/system.slice/docker-ab.scope\n"), docker);
    }
}
