//! Structures that a session closes at its end, so that none of its threads keeps waiting.

/// Structure on which threads of a session wait.
pub(crate) trait CloseOnEnd: std::fmt::Debug + Send + Sync {
    /// Wakes the waiting threads; none waits again.
    fn close(&self);
}
