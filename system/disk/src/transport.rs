//! Transports of NVMe over Fabrics that the kernel's target and host have.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Transport of a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FabricsTransport {
    /// NVMe/TCP.
    #[default]
    Tcp,
    /// NVMe over RDMA: RoCE, iWARP or InfiniBand.
    Rdma,
}

impl FabricsTransport {
    /// Name in configfs and in the options of a connection.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }

    /// Module of the kernel's target.
    pub(crate) const fn target_module(self) -> &'static str {
        match self {
            Self::Tcp => "nvmet-tcp",
            Self::Rdma => "nvmet-rdma",
        }
    }

    /// Module of the kernel's host.
    pub(crate) const fn host_module(self) -> &'static str {
        match self {
            Self::Tcp => "nvme-tcp",
            Self::Rdma => "nvme-rdma",
        }
    }

    /// Largest data of a write that the kernel's target takes within the command: over RDMA
    /// `NVMET_RDMA_MAX_INLINE_DATA_SIZE` of drivers/nvme/target/rdma.c.
    #[must_use]
    pub const fn in_capsule_bytes_max(self) -> u32 {
        match self {
            Self::Tcp => 1 << 20,
            Self::Rdma => 16 << 10,
        }
    }
}

impl fmt::Display for FabricsTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
