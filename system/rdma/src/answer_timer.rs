//! Time limit for the completion of requests.
//!
//! A reliable queue pair fails by itself where its packets get lost. Some do not: software RoCE of Linux 6.1 may stop its
//! retransmission after the link went down and up, and stays "ready to send" with requests that never complete. Without a
//! limit of its own a stream would wait for them for ever.

use std::time::{Duration, Instant};

use crate::connection::RdmaFailure;

/// Watches that requested completions come.
#[derive(Debug)]
pub struct AnswerTimer {
    timeout: Duration,
    /// Time since which a completion is awaited and none has come.
    silent_since: Option<Instant>,
}

impl AnswerTimer {
    /// Makes a timer for one queue pair.
    #[must_use]
    pub const fn new(timeout: Duration) -> Self {
        Self { timeout, silent_since: None }
    }

    /// Takes the state after a poll of the completion queue: whether completions came, and whether others are awaited.
    ///
    /// # Errors
    /// [`RdmaFailure::NoCompletion`] if none came for the timeout although one was awaited at every poll.
    pub fn check(&mut self, has_completed: bool, is_awaiting: bool) -> Result<(), RdmaFailure> {
        let now = Instant::now();
        if has_completed || !is_awaiting {
            self.silent_since = is_awaiting.then_some(now);
            return Ok(());
        }
        let silent_since = *self.silent_since.get_or_insert(now);
        if now.duration_since(silent_since) > self.timeout {
            return Err(RdmaFailure::NoCompletion(self.timeout.as_secs_f64()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_counts_from_last_completion() {
        let mut timer = AnswerTimer::new(Duration::from_secs(3600));
        timer.check(false, true).expect("it begins");
        timer.timeout = Duration::ZERO;
        timer.check(true, true).expect("a completion");
        timer.check(false, false).expect("nothing is awaited");
        timer.check(false, true).expect("it begins again");
        let failure = loop {
            // The clock may not have advanced yet.
            if let Err(failure) = timer.check(false, true) {
                break failure;
            }
        };
        assert!(matches!(failure, RdmaFailure::NoCompletion(_)), "{failure}");
    }
}
