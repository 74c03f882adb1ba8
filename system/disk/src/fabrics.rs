//! The kernel's host: disks that are block devices here.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penstock_nvme::nqn;
use serde::Serialize;
use utoipa::ToSchema;

use crate::check::{CheckedPart, FABRICS_DEVICE, host_parts};
use crate::controller::RemoteController;
use crate::{DiskError, DiskHost, DiskLocation, FabricsTransport};

/// Controllers of the kernel.
const CONTROLLERS: &str = "/sys/class/nvme";
/// Subsystems of the kernel, which have the block devices where multipath is built in.
const SUBSYSTEMS: &str = "/sys/class/nvme-subsystem";
/// Time for which reads and writes wait for a lost path before they fail; then the caller's own retry begins.
const FAST_FAIL_SECONDS: u32 = 15;
/// Time after which a lost controller is removed.
const CONTROLLER_LOSS_SECONDS: u32 = 600;
/// Limits of the kernel on the commands of a queue (drivers/nvme/host/fabrics.h).
const DEPTH_MIN: u16 = 16;
const DEPTH_MAX: u16 = 1024;
/// Interval of reconnections.
const RECONNECT_SECONDS: u32 = 2;
/// Limit on the wait for the block device of a new controller.
const DEVICE_WAIT: Duration = Duration::from_secs(10);

/// Disk that the kernel's host has connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ConnectedDisk {
    /// Number of the controller: `nvmeN`.
    pub controller: String,
    /// Qualified name of the disk.
    pub nqn: String,
    /// Transport: `tcp`, `rdma`, `pcie` or another.
    pub transport: String,
    /// Address of the target, as the kernel states it.
    pub address: String,
    /// State of the controller: `live`, `connecting` or another.
    pub state: String,
    /// Block devices of the disk, such as `/dev/nvme0n1`.
    pub devices: Vec<String>,
}

/// Parameters of a connection; what is `None` is the kernel's default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FabricsParams {
    /// Transport of the connection.
    pub transport: FabricsTransport,
    /// Number of queues, one for each processor by default.
    pub queues: Option<u16>,
    /// Commands of each queue, 16 to 1024.
    pub depth: Option<u16>,
}

/// Connects a disk to the kernel's host, over TCP after a connection of this program has shown that the target accepts
/// it: the kernel reports a number only, and waits a minute for a wrong secret. Over RDMA the kernel's number is all.
///
/// A disk that is connected by several addresses is one block device with a path to each.
///
/// # Errors
/// The cause of the failure, with a remedy.
pub fn connect(
    location: &DiskLocation,
    host: &DiskHost,
    params: FabricsParams,
) -> Result<ConnectedDisk, DiskError> {
    let transport = params.transport;
    if let Some((path, reason)) = host_parts(transport).iter().find_map(CheckedPart::missing) {
        return Err(DiskError::Local { path, reason });
    }
    let (peer, depth_max) = match transport {
        FabricsTransport::Tcp => {
            let mut controller = RemoteController::connect(location, host)?;
            controller.namespace(None)?;
            (controller.peer(), controller.depth_max().saturating_add(1))
        }
        FabricsTransport::Rdma => (location.address()?, DEPTH_MAX),
    };
    let mut line = format!(
        "transport={transport},traddr={},trsvcid={},nqn={},hostnqn={},hostid={},reconnect_delay={RECONNECT_SECONDS},\
         ctrl_loss_tmo={CONTROLLER_LOSS_SECONDS},fast_io_fail_tmo={FAST_FAIL_SECONDS}",
        peer.ip(),
        peer.port(),
        location.nqn,
        host.identity.nqn,
        nqn::uuid_text(&host.identity.id),
    );
    if let Some(queues) = params.queues {
        line += &format!(",nr_io_queues={queues}");
    }
    if let Some(depth) = params.depth {
        line += &format!(",queue_size={}", depth.min(depth_max).clamp(DEPTH_MIN, DEPTH_MAX));
    }
    if let Some(source) = host.source {
        line += &format!(",host_traddr={source}");
    }
    if let Some(secret) = &host.secret {
        line += &format!(",dhchap_secret={}", secret.text());
    }
    let answer = write_line(&line).map_err(|error| DiskError::Local {
        path: FABRICS_DEVICE.to_owned(),
        reason: connect_reason(&error, transport, host),
    })?;
    let instance = answer.split(',').find_map(|part| part.trim().strip_prefix("instance="));
    let name = format!("nvme{}", instance.unwrap_or_default().trim());
    wait_for_device(&name)
}

fn write_line(line: &str) -> io::Result<String> {
    let mut device = OpenOptions::new().read(true).write(true).open(FABRICS_DEVICE)?;
    device.write_all(line.as_bytes())?;
    let mut answer = [0; 4096];
    let length = device.read(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}

/// Reason of a failed connection, from the error number that is all the kernel returns.
fn connect_reason(error: &io::Error, transport: FabricsTransport, host: &DiskHost) -> String {
    const IO_ERRNO: i32 = 5;
    const INVALID_ERRNO: i32 = 22;
    const CONNECTION_RESET_ERRNO: i32 = 104;
    const CONNECTION_REFUSED_ERRNO: i32 = 111;
    const ALREADY_CONNECTED_ERRNO: i32 = 114;
    const NO_KEY_ERRNO: i32 = 126;
    match error.raw_os_error() {
        Some(ALREADY_CONNECTED_ERRNO) => "the disk is connected already: see penstock disk list".to_owned(),
        Some(NO_KEY_ERRNO) => "the target demands a secret: give it with --secret-file".to_owned(),
        Some(INVALID_ERRNO) if host.secret.is_some() => {
            "the kernel refuses the parameters: it may be built without DH-HMAC-CHAP (CONFIG_NVME_HOST_AUTH); see the kernel log"
                .to_owned()
        }
        // Over TCP the own connection before has found the cause.
        Some(IO_ERRNO) if transport == FabricsTransport::Rdma => {
            let nqn = &host.identity.nqn;
            format!("the target refuses it: is the disk exported there under this name, with --to {nqn}? The kernel log (dmesg) has its status")
        }
        Some(CONNECTION_RESET_ERRNO | CONNECTION_REFUSED_ERRNO)
            if transport == FabricsTransport::Rdma =>
        {
            "nothing accepts RDMA on this port: is the disk exported there with --transport rdma, and on this port?"
                .to_owned()
        }
        _ => format!("{error}: see the kernel log (dmesg)"),
    }
}

fn wait_for_device(name: &str) -> Result<ConnectedDisk, DiskError> {
    let begun = Instant::now();
    loop {
        let found = list_below(Path::new("/")).into_iter().find(|disk| disk.controller == name);
        match found {
            Some(disk) if disk.devices.iter().any(|device| Path::new(device).exists()) => {
                return Ok(disk);
            }
            Some(_) | None if begun.elapsed() > DEVICE_WAIT => {
                let reason =
                    "connected, but no block device has appeared: see the kernel log (dmesg)";
                return Err(DiskError::Local { path: name.to_owned(), reason: reason.to_owned() });
            }
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Disks of remote targets that the kernel's host has connected.
#[must_use]
pub fn list() -> Vec<ConnectedDisk> {
    let mut disks = list_below(Path::new("/"));
    disks.retain(|disk| disk.transport != "pcie");
    disks
}

fn list_below(root: &Path) -> Vec<ConnectedDisk> {
    let below = |path: &str| root.join(path.trim_start_matches('/'));
    let mut disks = Vec::new();
    for controller in directory(&below(CONTROLLERS)) {
        let read = |name: &str| {
            let text = fs::read_to_string(controller.join(name)).unwrap_or_default();
            text.trim().to_owned()
        };
        let nqn = read("subsysnqn");
        let mut names = block_devices(&controller);
        for subsystem in directory(&below(SUBSYSTEMS)) {
            let same = fs::read_to_string(subsystem.join("subsysnqn")).unwrap_or_default();
            if same.trim() == nqn {
                names.extend(block_devices(&subsystem));
            }
        }
        names.sort();
        names.dedup();
        disks.push(ConnectedDisk {
            controller: controller.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            nqn,
            transport: read("transport"),
            address: read("address"),
            state: read("state"),
            devices: names.iter().map(|name| format!("/dev/{name}")).collect(),
        });
    }
    disks
}

/// Names `nvmeXnY` in a directory.
fn block_devices(path: &Path) -> Vec<String> {
    let is_device = |name: &str| {
        let rest = name.strip_prefix("nvme").and_then(|rest| rest.split_once('n'));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        rest.is_some_and(|(x, y)| is_number(x) && is_number(y))
    };
    let names = directory(path)
        .into_iter()
        .filter_map(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()));
    names.filter(|name| is_device(name)).collect()
}

fn directory(path: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(path).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = found.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Removes a controller from the kernel's host: its block devices go, and reads in flight fail.
///
/// # Errors
/// The kernel's error.
pub fn disconnect(disk: &ConnectedDisk) -> Result<(), DiskError> {
    let path = Path::new(CONTROLLERS).join(&disk.controller).join("delete_controller");
    fs::write(&path, "1").map_err(|error| DiskError::Local {
        path: path.display().to_string(),
        reason: match error.kind() {
            io::ErrorKind::PermissionDenied => "needs root".to_owned(),
            _ => error.to_string(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_belong_to_their_subsystem() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (name, text) in [
            ("subsysnqn", "nqn.x\n"),
            ("transport", "tcp\n"),
            ("address", "traddr=10.0.0.2,trsvcid=4420\n"),
            ("state", "live\n"),
            ("nvme3c4n1/size", "8\n"),
        ] {
            write(&format!("sys/class/nvme/nvme4/{name}"), text);
        }
        write("sys/class/nvme-subsystem/nvme-subsys3/subsysnqn", "nqn.x\n");
        write("sys/class/nvme-subsystem/nvme-subsys3/nvme3n1/size", "8\n");
        let disks = list_below(root.path());
        assert_eq!(disks.len(), 1);
        assert_eq!(disks[0].devices, ["/dev/nvme3n1"]);
        assert_eq!((disks[0].transport.as_str(), disks[0].state.as_str()), ("tcp", "live"));
    }
}
