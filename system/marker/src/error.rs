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
        /// Why, and what to do.
        text: String,
    },
    /// No such device.
    #[error("no network interface '{0}' in this network namespace: `ip link` lists them")]
    Interface(String),
    /// The device cannot have destination options.
    #[error(
        "destination options cannot be used on {interface}: it has BIG TCP (gso_max_size {gso_max_size}), with which the kernel sends broken frames: use labels, or `ip link set {interface} gso_max_size 65536`"
    )]
    BigTcp {
        /// Which device.
        interface: String,
        /// In bytes.
        gso_max_size: u32,
    },
    /// A feature that the kernel does not have.
    #[error("this kernel has no {what}: {remedy}")]
    Feature {
        /// Missing feature.
        what: &'static str,
        /// Remedy without it.
        remedy: &'static str,
    },
    /// Rules that the kernel's tables have no room for.
    #[error("{0}")]
    Rules(String),
    /// Another marker runs.
    #[error("{0}")]
    Busy(String),
    /// Nothing is there.
    #[error("no marker is pinned at {}: start one with penstock tag run, or give its --pin DIR", .0.display())]
    Absent(PathBuf),
    /// Plain input and output.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl MarkerError {
    pub(crate) fn kernel(what: impl Into<String>, error: impl std::error::Error) -> Self {
        KernelError::new(what, error).into()
    }
}
