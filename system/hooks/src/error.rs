//! Errors of the kernel about eBPF programs, formatted as one line.

use std::io;

use aya::programs::ProgramError;

/// Why the kernel does not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// No privilege.
    #[error(
        "the kernel does not let this user load eBPF programs: run as root or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
    )]
    Privilege,
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
    /// Anything else that the kernel refuses.
    #[error("cannot {what}: {reason}")]
    Other {
        /// Refused operation.
        what: String,
        /// Its answer.
        reason: String,
    },
}

impl KernelError {
    /// Of `what` was asked and what came back, down to the cause.
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

    /// Of a program that was loaded or attached.
    #[must_use]
    pub fn program(name: &str, error: ProgramError) -> Self {
        let ProgramError::LoadError { io_error, verifier_log } = error else {
            return Self::new(format!("use the program {name}"), error);
        };
        let log = verifier_log.to_string();
        if log.trim().is_empty() && io_error.kind() == io::ErrorKind::PermissionDenied {
            return Self::Privilege;
        }
        // The last line is a summary of instructions; the one before says why.
        let reason = log
            .lines()
            .rev()
            .find(|line| !line.trim().is_empty() && !line.starts_with("processed "))
            .unwrap_or_default();
        let reason =
            if reason.is_empty() { io_error.to_string() } else { reason.trim().to_owned() };
        Self::Refused { program: name.to_owned(), reason, log }
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
