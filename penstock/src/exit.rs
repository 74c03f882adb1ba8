//! Exit codes and the failures that carry them.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use crate::terminal::printable;

/// Exit code; scripts rely on the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// Success.
    Done = 0,
    /// Failure.
    Failed = 1,
    /// Invalid arguments.
    Usage = 2,
    /// Partial success.
    Partial = 3,
    /// A digest or integrity check failed.
    Integrity = 4,
    /// The other end refused: identity or permission.
    Refused = 5,
    /// A program exists and cannot run.
    NotRunnable = 126,
    /// A program does not exist.
    NoProgram = 127,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

/// Prints one line to standard error, with control characters escaped; a closed output is ignored.
pub(crate) fn say(what: impl Display) {
    let _ = writeln!(io::stderr(), "penstock: {}", printable(&what.to_string()));
}

/// Failure of a verb: exit code and cause.
#[derive(Debug)]
pub(crate) struct CommandFailure {
    code: Code,
    error: anyhow::Error,
}

impl CommandFailure {
    pub(crate) fn new(code: Code, error: impl Into<anyhow::Error>) -> Self {
        Self { code, error: error.into() }
    }

    /// Exit code of the verb.
    pub(crate) fn code(&self) -> Code {
        self.code
    }

    /// Error chain as one line.
    pub(crate) fn line(&self) -> String {
        chain_line(&self.error)
    }

    /// Prints the failure as one line and returns its exit code.
    pub(crate) fn report(self) -> ExitCode {
        // A closed pipe is success (`penstock transfers | head`).
        let closed = |cause: &(dyn std::error::Error + 'static)| {
            cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
        };
        if self.error.chain().any(closed) {
            return Code::Done.into();
        }
        say(self.line());
        self.code.into()
    }
}

impl From<anyhow::Error> for CommandFailure {
    fn from(error: anyhow::Error) -> Self {
        Self::new(Code::Failed, error)
    }
}

impl From<io::Error> for CommandFailure {
    fn from(error: io::Error) -> Self {
        Self::new(Code::Failed, error)
    }
}

/// Joins the causes of an error with colons, without those whose text its message already contains.
pub(crate) fn chain_line(error: &anyhow::Error) -> String {
    let mut line = error.to_string();
    for cause in error.chain().skip(1) {
        let text = cause.to_string();
        let described = cause.downcast_ref::<io::Error>().map(penstock_sys::fs::describe);
        if line.contains(&text) || described.is_some_and(|words| line.contains(&words)) {
            continue;
        }
        line = format!("{line}: {text}");
    }
    line
}

/// Attaches an exit code to an error.
pub(crate) trait OrExit<T> {
    /// Converts the error into a failure with this code.
    fn or_exit(self, code: Code) -> Result<T, CommandFailure>;
}

impl<T, E: Into<anyhow::Error>> OrExit<T> for Result<T, E> {
    fn or_exit(self, code: Code) -> Result<T, CommandFailure> {
        self.map_err(|error| CommandFailure::new(code, error))
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;
    use penstock_daemon::config::ConfigError;

    use super::*;

    #[test]
    fn causes_are_told_once() {
        let source = || io::Error::from_raw_os_error(2);
        let unreadable = ConfigError::Unreadable { file: "a.toml".into(), source: source() };
        assert_eq!(chain_line(&unreadable.into()), "a.toml: no such file or directory");
        let fault = ConfigError::File { file: "a.toml".into(), source: "no key".into() };
        assert_eq!(chain_line(&fault.into()), "a.toml: no key");
        let plain = Err::<(), _>(source()).context("cannot read b").unwrap_err();
        assert_eq!(chain_line(&plain), "cannot read b: No such file or directory (os error 2)");
    }
}
