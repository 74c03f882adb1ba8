//! Parts that a disk needs: modules, configfs and permission here, port, name, secret and depth there.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use penstock_nvme::depth::commands_needed;
use serde::Serialize;
use utoipa::ToSchema;

use crate::controller::RemoteController;
use crate::{DiskHost, DiskLocation, FabricsTransport};

/// Device that takes the connections of the kernel's host.
pub(crate) const FABRICS_DEVICE: &str = "/dev/nvme-fabrics";

/// Part that was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct CheckedPart {
    /// `module`, `device`, `configfs`, `permission`, `port`, `connection`, `protocol`, `name`, `host`, `secret`, `namespace` or `depth`.
    pub part: &'static str,
    /// Object of the part.
    pub object: String,
    /// True where it is as it must be.
    pub ok: bool,
    /// Facts; where it is not, the reason with a remedy.
    pub detail: String,
}

impl CheckedPart {
    fn ok(part: &'static str, object: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { part, object: object.into(), ok: true, detail: detail.into() }
    }

    fn fault(part: &'static str, object: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { part, object: object.into(), ok: false, detail: detail.into() }
    }

    /// Object and reason of a part that is missing.
    pub(crate) fn missing(&self) -> Option<(String, String)> {
        (!self.ok).then(|| (self.object.clone(), self.detail.clone()))
    }
}

/// Module of the kernel: loaded or built in, to be loaded, or absent.
fn module(name: &str, sign: Option<&Path>) -> CheckedPart {
    let underscored = name.replace('-', "_");
    if Path::new("/sys/module").join(&underscored).exists() || sign.is_some_and(Path::exists) {
        return CheckedPart::ok("module", name, "loaded");
    }
    let release = penstock_sys::machine::kernel_release();
    let read = |list: &str| fs::read_to_string(format!("/lib/modules/{release}/{list}"));
    let file = |line: &str| line.contains(&format!("/{name}.ko"));
    if read("modules.builtin").is_ok_and(|list| list.lines().any(file)) {
        return CheckedPart::ok("module", name, "built in");
    }
    match read("modules.dep") {
        Ok(list) if list.lines().any(file) => {
            CheckedPart::fault("module", name, format!("the module is not loaded: modprobe {name}"))
        }
        _ => CheckedPart::fault(
            "module",
            name,
            format!(
                "Linux {release} here has no module {name}: install the modules of the kernel, or use another host"
            ),
        ),
    }
}

/// Permission to write to an object of the kernel, by root or capabilities.
fn permission(object: &Path) -> CheckedPart {
    let name = object.display().to_string();
    match penstock_sys::fs::check_writable(object) {
        Ok(()) => CheckedPart::ok("permission", name, "writable"),
        // Its module is not loaded, which is a part of its own.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound && penstock_sys::machine::is_superuser() =>
        {
            CheckedPart::ok("permission", name, "root")
        }
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => CheckedPart::fault(
            "permission",
            name,
            "it is read-only here: a unit of systemd needs it in ReadWritePaths (drop-in disks.conf), and a restart once the module is loaded",
        ),
        Err(_) => CheckedPart::fault(
            "permission",
            name,
            "needs root or CAP_DAC_OVERRIDE: it belongs to root",
        ),
    }
}

/// False where the kernel's target was built without DH-HMAC-CHAP. A unit with `ProtectKernelTunables` hides the symbols:
/// there the export fails at its secret.
fn target_has_secrets() -> bool {
    // The second name is that of Linux 6.0 to 6.6.
    let users =
        ["nvme_auth", "nvme_common"].map(|name| format!("/sys/module/{name}/holders/nvmet"));
    if users.iter().any(|path| Path::new(path).exists()) {
        return true;
    }
    let Ok(symbols) = fs::File::open("/proc/kallsyms") else { return true };
    let mut lines = BufReader::new(symbols).lines().map_while(Result::ok).peekable();
    lines.peek().is_none() || lines.any(|line| line.contains("nvmet_auth_set_key"))
}

/// RDMA device of this machine.
fn rdma_device() -> CheckedPart {
    let entries = fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    if names.is_empty() {
        return CheckedPart::fault(
            "device",
            "/sys/class/infiniband",
            "there is no RDMA device: load the driver of the card, or use software RoCE (rdma link add rxe0 type rxe netdev DEVICE)",
        );
    }
    CheckedPart::ok("device", names.join(" "), "")
}

/// Parts that an export needs.
#[must_use]
pub fn target_parts(transport: FabricsTransport, with_secret: bool) -> Vec<CheckedPart> {
    let configured = Path::new("/sys/kernel/config/nvmet");
    let target = module("nvmet", Some(configured));
    // Without the target the kernel does not show whether it was built with secrets.
    let with_secret = with_secret && target.ok;
    let mut parts = vec![target, module(transport.target_module(), None)];
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let is_mounted = mounts.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next() == Some("/sys/kernel/config") && fields.next() == Some("configfs")
    });
    parts.push(match (is_mounted, configured.exists()) {
        (true, true) => CheckedPart::ok("configfs", "/sys/kernel/config/nvmet", ""),
        (true, false) => CheckedPart::fault(
            "configfs",
            "/sys/kernel/config/nvmet",
            "the module nvmet is not loaded: modprobe nvmet",
        ),
        (false, _) => CheckedPart::fault(
            "configfs",
            "/sys/kernel/config",
            "configfs is not mounted in this namespace: mount -t configfs none /sys/kernel/config",
        ),
    });
    parts.push(permission(&configured.join("subsystems")));
    if with_secret {
        parts.push(if target_has_secrets() {
            CheckedPart::ok("secret", "DH-HMAC-CHAP", "")
        } else {
            CheckedPart::fault(
                "secret",
                "DH-HMAC-CHAP",
                format!(
                    "Linux {} here was built without it (CONFIG_NVME_TARGET_AUTH): export without --secret-file or, by the API of an agent, with secrets = false in [disks], or use a newer kernel",
                    penstock_sys::machine::kernel_release()
                ),
            )
        });
    }
    if transport == FabricsTransport::Rdma {
        parts.push(rdma_device());
    }
    parts
}

/// Parts that a connection of the kernel's host needs.
#[must_use]
pub fn host_parts(transport: FabricsTransport) -> Vec<CheckedPart> {
    let mut parts = vec![module(transport.host_module(), None)];
    parts.push(if Path::new(FABRICS_DEVICE).exists() {
        CheckedPart::ok("module", FABRICS_DEVICE, "")
    } else {
        let remedy = transport.host_module();
        let reason = format!("the module nvme-fabrics is not loaded: modprobe {remedy}");
        CheckedPart::fault("module", FABRICS_DEVICE, reason)
    });
    parts.push(permission(Path::new(FABRICS_DEVICE)));
    if transport == FabricsTransport::Rdma {
        parts.push(rdma_device());
    }
    parts
}

/// Parts of a remote disk, in the order in which they are needed; ends at the first that is missing.
#[must_use]
pub fn remote_parts(
    location: &DiskLocation,
    host: &DiskHost,
    rate_bps: u64,
    size_bytes: u32,
) -> Vec<CheckedPart> {
    let mut parts = Vec::new();
    let connected = RemoteController::connect(location, host).and_then(|mut controller| {
        let namespace = controller.namespace(None)?;
        Ok((controller, namespace))
    });
    let (mut controller, namespace) = match connected {
        Ok(connected) => connected,
        Err(error) => {
            parts.push(CheckedPart::fault(error.cause(), location.to_string(), error.to_string()));
            return parts;
        }
    };
    let data = controller.data();
    let model = format!("{} {}", data.model, data.serial);
    let in_capsule = data.in_capsule_bytes;
    parts.push(CheckedPart::ok("port", controller.peer().to_string(), "open, speaks NVMe/TCP"));
    parts.push(CheckedPart::ok("name", location.nqn.clone(), model));
    parts.push(CheckedPart::ok("host", host.identity.nqn.clone(), "allowed"));
    if host.secret.is_some() {
        parts.push(CheckedPart::ok("secret", "DH-HMAC-CHAP", "accepted or not demanded"));
    }
    parts.push(CheckedPart::ok(
        "namespace",
        namespace.number.to_string(),
        format!("{} B in blocks of {} B", namespace.bytes(), namespace.block_bytes),
    ));
    let rtt = controller.rtt().max(Duration::from_micros(1));
    let depth = u64::from(controller.depth_max());
    let commands = commands_needed(rate_bps, rtt, size_bytes);
    let queues = u16::try_from(commands.div_ceil(depth)).unwrap_or(u16::MAX).max(1);
    let granted = controller.request_queues(queues).unwrap_or(0);
    let what =
        format!("{commands} reads of {size_bytes} B in flight at RTT {} µs", rtt.as_micros());
    let have = format!(
        "{granted} of {queues} queues with {depth} commands each, {in_capsule} B of a write in its capsule"
    );
    parts.push(if granted >= queues {
        CheckedPart::ok("depth", what, have)
    } else {
        let remedy = "raise attr_qid_max of the subsystem there, or read with a larger --size";
        CheckedPart::fault("depth", what, format!("{have}: {remedy}"))
    });
    parts
}
