//! Errors of starting a sampler, formatted as one line.

use std::io;

use penstock_hooks::KernelError;

use crate::interface::RATE_MAX;

/// Error of starting a sampler.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    /// The kernel refused a program or its attachment.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The device does not exist.
    #[error("no network interface '{0}' in this network namespace: `ip link` lists them")]
    Interface(String),
    /// No device was named, and the machine has no physical one.
    #[error(
        "no physical network interface here: name one with --interface IF (`ip link` lists them)"
    )]
    NoInterface,
    /// The sampling rate is out of range.
    #[error("sample 1 of 1 to {RATE_MAX} packets")]
    Rate,
    /// The configuration names no collector.
    #[error("no collector to send to")]
    NoCollector,
    /// There is no route to a collector.
    #[error(
        "collector {collector}: {reason}: give ADDRESS:PORT of one that this host has a route to"
    )]
    Collector {
        /// Address as configured.
        collector: String,
        /// Error text of the system.
        reason: String,
    },
    /// Any other I/O error.
    #[error(transparent)]
    Io(#[from] io::Error),
}
