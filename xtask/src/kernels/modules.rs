//! Kernel modules of the virtual machine, by the component that is tested.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{TestedComponent, stdout_of};

/// A kernel module that the virtual machine loads before the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KernelModule {
    /// The run ends when the kernel lacks it.
    Required(&'static str),
    /// Loaded by kernels that have it; tests report what they skip without it.
    WherePresent(&'static str),
}

use KernelModule::{Required, WherePresent};

/// The root file system and network devices.
const BASE: [KernelModule; 5] = [
    Required("virtio_pci"),
    Required("9pnet_virtio"),
    Required("9p"),
    Required("overlay"),
    Required("veth"),
];
/// Labels and links.
const NETWORK: [KernelModule; 12] = [
    Required("8021q"),
    Required("sch_ingress"),
    Required("cls_bpf"),
    Required("cls_u32"),
    Required("sch_fq"),
    Required("sch_netem"),
    Required("sch_tbf"),
    Required("tun"),
    Required("nf_tables"),
    Required("nft_queue"),
    Required("nfnetlink_queue"),
    Required("tcp_bbr"),
];
/// Software RoCE over delayed links. `rdma link add` fails with "No such file or directory" without `crc32_generic`.
const RDMA: [KernelModule; 8] = [
    Required("sch_netem"),
    Required("sch_ingress"),
    Required("cls_matchall"),
    Required("act_pedit"),
    Required("crc32_generic"),
    WherePresent("crc32-pclmul"),
    Required("rdma_rxe"),
    Required("ib_uverbs"),
];
/// NVMe over Fabrics: target and host, over TCP and RDMA.
const NVMEOF: [KernelModule; 10] = [
    Required("configfs"),
    Required("crc32c_generic"),
    Required("nvmet"),
    Required("nvmet-tcp"),
    Required("nvmet-rdma"),
    Required("nvme-tcp"),
    Required("nvme-rdma"),
    WherePresent("nvme-loop"),
    Required("null_blk"),
    Required("loop"),
];

/// A link between two machines.
const HOST_LINK: [KernelModule; 1] = [Required("virtio_net")];

/// Modules that the tests of a component need, in load order. A name may occur twice.
pub(super) fn modules_of(component: TestedComponent) -> Vec<KernelModule> {
    let further: &[&[KernelModule]] = match component {
        TestedComponent::Marker | TestedComponent::Lab => &[&NETWORK],
        TestedComponent::Rdma => &[&RDMA],
        TestedComponent::Nvmeof => &[&RDMA, &NVMEOF],
        TestedComponent::TwoHosts => &[&HOST_LINK, &RDMA, &NVMEOF],
    };
    BASE.iter().chain(further.iter().copied().flatten()).copied().collect()
}

/// Copies modules and those that they depend on into `to`, unpacked; returns their file names in load order.
///
/// # Errors
/// When the kernel lacks a required module.
pub(super) fn copy_modules(
    modules: &[KernelModule],
    kernel_folder: &Path,
    version: &str,
    to: &Path,
) -> Result<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for module in modules {
        let (KernelModule::Required(name) | KernelModule::WherePresent(name)) = *module;
        let shown = stdout_of(
            Command::new("modprobe")
                .arg("-S")
                .arg(version)
                .arg("-d")
                .arg(kernel_folder)
                .args(["--show-depends", name]),
        );
        let shown = match (shown, module) {
            (Ok(shown), _) => shown,
            (Err(_), KernelModule::WherePresent(_)) => {
                println!("kernels: Linux {version} has no module {name}");
                continue;
            }
            (Err(error), KernelModule::Required(_)) => return Err(error),
        };
        // Built-in modules are listed differently.
        for path in shown.lines().filter_map(|line| line.strip_prefix("insmod ")) {
            let path = Path::new(path.trim());
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            let unpacked = file.strip_suffix(".xz").unwrap_or(&file).to_owned();
            if names.contains(&unpacked) {
                continue;
            }
            if unpacked == file {
                fs::copy(path, to.join(&unpacked))?;
            } else {
                unpack_xz(path, &to.join(&unpacked))?;
            }
            names.push(unpacked);
        }
    }
    Ok(names)
}

/// Unpacks a file with `xz`: on the host, because busybox under emulation takes seconds for each.
fn unpack_xz(packed: &Path, to: &Path) -> Result<()> {
    let status = Command::new("xz")
        .args(["--decompress", "--stdout"])
        .arg(packed)
        .stdout(Stdio::from(fs::File::create(to)?))
        .status()
        .context("cannot run xz: tools/setup.sh kernels installs it")?;
    ensure!(status.success(), "xz does not unpack {}", packed.display());
    Ok(())
}
