//! Why a sampler does not start, a line each.

use std::io;

use penstock_hooks::KernelError;

/// Why it does not start.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    /// The kernel refuses.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// No such device.
    #[error("no network interface '{0}' in this network namespace: `ip link` lists them")]
    Interface(String),
    /// No device was named, and none is hardware.
    #[error(
        "no physical network interface here: name one with --interface IF (`ip link` lists them)"
    )]
    NoInterface,
    /// A value that cannot be.
    #[error("{0}")]
    Value(String),
    /// A collector cannot be reached at all.
    #[error(
        "collector {collector}: {reason}: give ADDRESS:PORT of one that this host has a route to"
    )]
    Collector {
        /// As it was given.
        collector: String,
        /// Why.
        reason: String,
    },
    /// Plain input and output.
    #[error(transparent)]
    Io(#[from] io::Error),
}
