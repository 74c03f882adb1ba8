//! `penstock disk`.

use penstock_disk::FabricsTransport;
use penstock_disk::check::CheckedPart;
use penstock_disk::fabrics::ConnectedDisk;
use serde::Serialize;
use utoipa::ToSchema;

/// First line of an export.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ExportedDisk {
    /// Qualified name of the disk.
    pub(crate) nqn: String,
    /// File or block device.
    pub(crate) path: String,
    /// Transport: `tcp` or `rdma`.
    pub(crate) transport: FabricsTransport,
    /// Addresses and ports on which the target listens, each a path to the disk.
    pub(crate) listens: Vec<String>,
    /// Qualified names of the hosts that may connect.
    pub(crate) hosts: Vec<String>,
    /// True where they need a secret.
    pub(crate) has_secret: bool,
    /// Qualified names of exports whose process was killed, and which are removed.
    pub(crate) removed: Vec<String>,
}

/// Disks of this host.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct DiskListJson {
    /// Qualified name of this host, which targets allow.
    pub(crate) host_nqn: String,
    /// Disks that this host exports.
    pub(crate) exports: Vec<ListedExport>,
    /// Disks of other hosts that the kernel has connected.
    pub(crate) connected: Vec<ConnectedDisk>,
}

/// Disk that this host exports.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ListedExport {
    /// Qualified name of the disk.
    pub(crate) nqn: String,
    /// File or block device.
    pub(crate) path: String,
    /// Transport: `tcp` or `rdma`.
    pub(crate) transport: FabricsTransport,
    /// Addresses and ports on which the target listens, each a path to the disk.
    pub(crate) listens: Vec<String>,
    /// Qualified names of the hosts that may connect.
    pub(crate) hosts: Vec<String>,
    /// True where they need a secret.
    pub(crate) has_secret: bool,
    /// False where its process was killed: the next export removes it.
    pub(crate) running: bool,
}

/// Disks that were disconnected.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct DisconnectedDisks {
    /// Disks, as they were connected.
    pub(crate) disconnected: Vec<ConnectedDisk>,
}

/// Result of a check.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct DiskCheckJson {
    /// Qualified name of this host.
    pub(crate) host_nqn: String,
    /// True where no part is missing.
    pub(crate) ok: bool,
    /// Parts in the order in which they are needed.
    pub(crate) parts: Vec<CheckedPart>,
}

/// File of a new secret.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct DiskSecretJson {
    /// File that has the secret.
    pub(crate) file: String,
}
