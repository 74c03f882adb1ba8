//! Errors of loading and attaching eBPF programs, formatted as one line.

use std::io;

use aya::programs::ProgramError;

/// A failed request to the kernel's eBPF or tc interface.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The process lacks the capabilities to load eBPF programs.
    #[error(
        "the kernel does not let this user load eBPF programs: run as root or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
    )]
    Privilege,
    /// The verifier rejected a program.
    #[error(
        "this kernel refuses the program {program}: {reason}; the verifier's log follows, send it with the kernel's version (uname -r)"
    )]
    Refused {
        /// Name of the program.
        program: String,
        /// Last line of the verifier's log before its summary.
        reason: String,
        /// Complete log of the verifier.
        log: String,
    },
    /// Any other error of the kernel.
    #[error("cannot {what}: {reason}")]
    Other {
        /// Failed operation, as an infinitive phrase.
        what: String,
        /// Error text with its causes.
        reason: String,
    },
}

impl KernelError {
    /// Creates an error of the operation `what` from a chain of errors; [`Self::Privilege`] if its cause is EPERM.
    pub fn new(what: impl Into<String>, error: impl std::error::Error) -> Self {
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
        Self::Other { what: what.into(), reason: reason.replace('\n', " ") }
    }

    /// Creates the error of loading or attaching a program.
    #[must_use]
    pub fn program(name: &str, error: ProgramError) -> Self {
        let ProgramError::LoadError { io_error, verifier_log } = error else {
            return Self::new(format!("use the program {name}"), error);
        };
        let log = verifier_log.to_string();
        if log.trim().is_empty() && io_error.kind() == io::ErrorKind::PermissionDenied {
            return Self::Privilege;
        }
        // The last line counts instructions; the line before has the reason.
        let reason = log
            .lines()
            .rev()
            .find(|line| !line.trim().is_empty() && !line.starts_with("processed "))
            .unwrap_or_default();
        let reason =
            if reason.is_empty() { io_error.to_string() } else { reason.trim().to_owned() };
        Self::Refused { program: name.to_owned(), reason, log }
    }

    /// Returns the verifier's log of a rejected program.
    #[must_use]
    pub fn verifier_log(&self) -> Option<&str> {
        match self {
            Self::Refused { log, .. } => Some(log),
            _ => None,
        }
    }
}
