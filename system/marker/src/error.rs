//! Errors of the marker, one line each.

use std::io;
use std::path::PathBuf;

use penstock_hooks::KernelError;

/// A failed operation of the marker.
#[derive(Debug, thiserror::Error)]
pub enum MarkerError {
    /// The kernel refused a call.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The pin directory is unusable.
    #[error("{}: {text}", path.display())]
    Pin {
        /// The directory.
        path: PathBuf,
        /// Reason and remedy, as one line.
        text: String,
    },
    /// The device does not exist.
    #[error("no network interface '{0}' in this network namespace: `ip link` lists them")]
    Interface(String),
    /// Packets of the device cannot have destination options.
    #[error(
        "destination options cannot be used on {interface}: it has BIG TCP (gso_max_size {gso_max_size}), with which the kernel sends broken frames: use labels, or `ip link set {interface} gso_max_size 65536`"
    )]
    BigTcp {
        /// Name of the device.
        interface: String,
        /// Limit of a super-packet on the device, in bytes.
        gso_max_size: u32,
    },
    /// The kernel lacks a required feature.
    #[error("this kernel has no {what}: {remedy}")]
    Feature {
        /// Missing feature.
        what: &'static str,
        /// Remedy without it.
        remedy: &'static str,
    },
    /// Rules that exceed the kernel's tables.
    #[error("{0}")]
    Rules(String),
    /// Another marker is running with this directory or device.
    #[error("{0}")]
    Busy(String),
    /// No marker has pinned maps in this directory.
    #[error("no marker is pinned at {}: start one with penstock tag run, or give its --pin DIR", .0.display())]
    Absent(PathBuf),
    /// Any other I/O error.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl MarkerError {
    pub(crate) fn kernel(what: impl Into<String>, error: impl std::error::Error) -> Self {
        KernelError::new(what, error).into()
    }
}
