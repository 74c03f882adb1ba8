//! Errors of the marker, one line each.

use std::borrow::Cow;
use std::error::Error;
use std::io;
use std::path::PathBuf;

use penstock_hooks::KernelError;

use crate::maps::SHAPES_MAX;
use crate::marker::{CGROUP_DEPTH_MAX, CGROUPS_MAX, PROGRAMS_MAX};
use crate::table::RULES_MAX;

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
    /// Rules that cannot be used.
    #[error(transparent)]
    Rules(#[from] RuleRefusal),
    /// Another marker is running with this pin directory.
    #[error(
        "another penstock tag run uses {}: stop that one, send its rules by its --pipe or --http, or give another --pin DIR with other interfaces",
        .0.display()
    )]
    PinBusy(PathBuf),
    /// Another marker is running with this device.
    #[error(
        "another penstock tag run labels packets of {0}: stop that one, or give other interfaces"
    )]
    DeviceBusy(String),
    /// No marker has pinned maps in this directory.
    #[error("no marker is pinned at {}: start one with penstock tag run, or give its --pin DIR", .0.display())]
    Absent(PathBuf),
    /// Any other I/O error.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Rules that cannot be used: they exceed the kernel's tables or the limits of the marker, or name no program or cgroup.
#[derive(Debug, thiserror::Error)]
pub enum RuleRefusal {
    /// Address rules that exceed the kernel's table.
    #[error("there are {0} address rules: no more are possible")]
    RulesFull(usize),
    /// More than [`RULES_MAX`] address rules in a list.
    #[error("{0} address rules: at most {RULES_MAX} are possible")]
    RuleCount(usize),
    /// More than [`SHAPES_MAX`] shapes of address rules; holds their number.
    #[error(
        "the address rules have {0} different shapes (lengths of prefixes, and whether they name ports and protocol) and at most {SHAPES_MAX} are possible: give prefixes the same lengths"
    )]
    Shapes(usize),
    /// Rules for cgroups and programs that exceed the kernel's tables.
    #[error("at most {CGROUPS_MAX} cgroups and {PROGRAMS_MAX} programs can have rules")]
    OwnersFull,
    /// A program's name that the kernel does not keep whole.
    #[error("'{0}' is no program's name: the kernel keeps 1 to 15 bytes of it (/proc/PID/comm)")]
    ProgramName(String),
    /// A cgroup below more levels than a packet's are compared with.
    #[error("cgroup {}: at most {CGROUP_DEPTH_MAX} levels are looked at", .0.display())]
    CgroupDepth(PathBuf),
    /// A cgroup that does not exist.
    #[error(
        "cgroup {}: {}: {}: give a directory below {}",
        .path.display(), .directory.display(), penstock_sys::fs::describe(.error), .root.display()
    )]
    Cgroup {
        /// Path of the cgroup as given.
        path: PathBuf,
        /// Its directory.
        directory: PathBuf,
        /// Directory of all cgroups.
        root: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// As many rules of pipe and HTTP as an agent takes.
    #[error("{0} flows are tagged, the maximum: wait until some end")]
    FlowsFull(usize),
    /// A rule of the configuration file, which only that file changes.
    #[error("this rule is from the file: change it there and send SIGHUP")]
    OfFile,
}

impl MarkerError {
    pub(crate) fn kernel(
        operation: impl Into<Cow<'static, str>>,
        error: impl Error + Send + Sync + 'static,
    ) -> Self {
        KernelError::new(operation, error).into()
    }
}
