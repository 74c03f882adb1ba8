//! Errors of loading and attaching eBPF programs, formatted as one line.

use std::borrow::Cow;
use std::error::Error;
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
    /// A program or map that the object of this build lacks.
    #[error("the eBPF object of this build has no '{0}': build it again (cargo xtask bpf)")]
    Missing(&'static str),
    /// An operation of the kernel or of aya that failed.
    #[error("cannot {operation}: {}", chain(error.as_ref()))]
    Operation {
        /// The operation as an infinitive phrase, with its object.
        operation: Cow<'static, str>,
        /// Error of the operation, with its causes.
        error: Box<dyn Error + Send + Sync>,
    },
}

/// Joins the texts of an error and its causes, each once, in one line.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |error| (*error).source()) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text.replace('\n', " ")
}

impl KernelError {
    /// Creates an error of an operation, an infinitive phrase; [`Self::Privilege`] if a cause of it is EPERM.
    pub fn new(
        operation: impl Into<Cow<'static, str>>,
        error: impl Error + Send + Sync + 'static,
    ) -> Self {
        let is_denied = |cause: &(dyn Error + 'static)| {
            let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
            kind == Some(io::ErrorKind::PermissionDenied)
        };
        if std::iter::successors(error.source(), |error| (*error).source()).any(is_denied) {
            return Self::Privilege;
        }
        Self::Operation { operation: operation.into(), error: Box::new(error) }
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
