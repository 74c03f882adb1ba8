//! Sessions whose client lost its admission.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::AgentInner;
use super::active_session::ActiveSession;
use crate::session::{SessionOutcome, lock};

impl AgentInner {
    /// True if the client of a session is still admitted. A token file that is being rewritten may be
    /// empty for a moment, so a client counts as removed at the second check.
    pub(super) fn is_admitted(&self, running: &ActiveSession) -> bool {
        // The issuer of a pass ends its sessions itself.
        let admitted =
            running.caller.pass.is_some() || self.config.gatekeeper.still_admits(&running.caller);
        let refused_before = running.refused.swap(!admitted, Ordering::SeqCst);
        admitted || !refused_before
    }

    /// Ends a session; the same request can resume it.
    pub(super) fn end_now(&self, running: &Arc<ActiveSession>, reason: &str) {
        running.end.session().end(SessionOutcome::Failed(reason.to_owned()));
        if let Some(connection) = lock(&running.connection).take() {
            connection.shut_down();
        }
        self.retire(running);
    }
}
