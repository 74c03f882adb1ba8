//! Sessions whose client was removed from the agent.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Inner;
use super::running::Running;
use crate::session::{Ending, lock};

impl Inner {
    /// Whether the client of a session is still let in. A list of tokens that is being rewritten may be empty
    /// for a moment, so that its client counts as removed at the second look.
    pub(super) fn is_admitted(&self, running: &Running) -> bool {
        // Whoever gave a pass ends its sessions itself.
        let admitted =
            running.caller.pass.is_some() || self.config.gatekeeper.still_admits(&running.caller);
        let refused_before = running.refused.swap(!admitted, Ordering::SeqCst);
        admitted || !refused_before
    }

    /// Ends a session so that the same request resumes.
    pub(super) fn end_now(&self, running: &Arc<Running>, reason: &str) {
        running.end.session().end(Ending::Failed(reason.to_owned()));
        if let Some(connection) = lock(&running.connection).take() {
            connection.shut_down();
        }
        self.retire(running);
    }
}
