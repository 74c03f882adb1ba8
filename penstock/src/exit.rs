//! Exit codes, and failures that carry one.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

/// How the program ends; scripts rely on the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    /// Everything was done.
    Done = 0,
    /// It failed.
    Failed = 1,
    /// It was asked for what cannot be.
    Usage = 2,
    /// It was done in part.
    Partial = 3,
    /// Bytes were not what they should be.
    Integrity = 4,
    /// The other end did not allow it.
    Refused = 5,
    /// A program that was to run cannot.
    NotRunnable = 126,
    /// There is no such program.
    NoProgram = 127,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

/// Tells the user something, in one line; there is nothing to be done about a reader that is gone.
pub(crate) fn say(what: impl Display) {
    let _ = writeln!(io::stderr(), "penstock: {what}");
}

/// Why a verb did not do what it was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    code: Code,
    error: anyhow::Error,
}

impl Failure {
    pub(crate) fn new(code: Code, error: impl Into<anyhow::Error>) -> Self {
        Self { code, error: error.into() }
    }

    /// The failure as one line.
    pub(crate) fn line(&self) -> String {
        format!("{:#}", self.error)
    }

    /// Prints the failure as one line and gives its code.
    pub(crate) fn report(self) -> ExitCode {
        // Whoever reads our output has seen enough (penstock transfers | head).
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

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::new(Code::Failed, error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(Code::Failed, error)
    }
}

/// Gives an error its exit code.
pub(crate) trait OrExit<T> {
    /// The value, or a failure with this code.
    fn or_exit(self, code: Code) -> Result<T, Failure>;
}

impl<T, E: Into<anyhow::Error>> OrExit<T> for Result<T, E> {
    fn or_exit(self, code: Code) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(code, error))
    }
}
