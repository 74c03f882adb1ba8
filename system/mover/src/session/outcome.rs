//! Outcome of a session.

/// Final state of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionOutcome {
    /// Every file that could be copied is durable.
    Finished,
    /// Stopped by a user or operator, for this reason.
    Cancelled(String),
    /// Failed, for this reason.
    Failed(String),
}
