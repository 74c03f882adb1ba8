//! What goes wrong between this process and the kernel, a line each.

use std::io;
use std::path::PathBuf;

/// Why the marker does not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum MarkerError {
    /// No privilege.
    #[error(
        "the kernel does not let this user load eBPF programs: run as root or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
    )]
    Privilege,
    /// The pin directory is not where pins can be.
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
    /// The kernel refuses a program.
    #[error(
        "this kernel refuses the program {program}: {reason}; the verifier's log follows, send it with the kernel's version (uname -r)"
    )]
    Refused {
        /// Which one.
        program: String,
        /// Its last words.
        reason: String,
        /// All of what the verifier says.
        log: String,
    },
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
        /// What is missing.
        what: &'static str,
        /// What to do without it.
        remedy: &'static str,
    },
    /// Rules that the kernel's tables have no room for.
    #[error("{0}")]
    Rules(String),
    /// Nothing is there.
    #[error("no marker is pinned at {}: start one with penstock tag run, or give its --pin DIR", .0.display())]
    Absent(PathBuf),
    /// Anything else that the kernel refuses.
    #[error("cannot {what}: {reason}")]
    Kernel {
        /// What was asked.
        what: String,
        /// Its answer.
        reason: String,
    },
    /// Plain input and output.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl MarkerError {
    pub(crate) fn kernel(what: impl Into<String>, error: impl std::error::Error) -> Self {
        let denied = |cause: &(dyn std::error::Error + 'static)| {
            let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
            kind == Some(io::ErrorKind::PermissionDenied)
        };
        let mut reason = error.to_string();
        let mut next = error.source();
        while let Some(cause) = next {
            if denied(cause) {
                return Self::Privilege;
            }
            let text = cause.to_string();
            if !reason.contains(&text) {
                reason = format!("{reason}: {text}");
            }
            next = cause.source();
        }
        Self::Kernel { what: what.into(), reason: reason.replace('\n', " ") }
    }

    /// The verifier's log, if a program was refused.
    #[must_use]
    pub fn verifier_log(&self) -> Option<&str> {
        match self {
            Self::Refused { log, .. } => Some(log),
            _ => None,
        }
    }
}
