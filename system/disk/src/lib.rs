//! Remote disks over NVMe/TCP: reading them as a program of its own. The kernel's target and host, also over RDMA.
//!
//! Reading needs no privilege: [`controller::RemoteController`] connects, [`stream`] reads a namespace over many queues with
//! many commands in flight, each queue on its own thread and with its own flow label. [`export`] makes a file or device a
//! disk of the kernel's target by configfs, [`fabrics`] connects a disk to the kernel's host, and [`check`] names the cause where one of
//! these is not possible. The protocol itself is in `penstock_nvme`.
//!
//! An error names the cause and a remedy. Nothing is printed.
//!
//! Not for: writing by the program's own host, or RDMA by it.

#![forbid(unsafe_code)]

pub mod check;
mod config_fs;
mod connection;
pub mod controller;
mod error;
pub mod export;
pub mod fabrics;
mod host_identity;
mod in_use;
mod location;
mod output;
pub mod stream;
mod transport;

pub use config_fs::ConfigStep;
pub use connection::DiskHost;
pub use error::DiskError;
pub use host_identity::NvmeHostIdentity;
pub use in_use::DiskUse;
pub use location::{DEFAULT_PORT, DiskLocation};
pub use penstock_nvme as nvme;
pub use transport::FabricsTransport;

/// Secret for a host, of 32 random bytes.
///
/// # Errors
/// When the system has no random numbers.
pub fn new_secret() -> std::io::Result<penstock_nvme::auth::HostSecret> {
    let mut key = [0; 32];
    aws_lc_rs::rand::fill(&mut key).map_err(std::io::Error::other)?;
    Ok(penstock_nvme::auth::HostSecret::of_key(key))
}
