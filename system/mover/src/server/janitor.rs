//! Janitor of an agent: removes orphans, closes expired connections, ends sessions without a client or a permission.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::agent::AgentInner;
use crate::base::lock::lock;
use crate::base::timeouts::{AUTHENTICATION_TIMEOUT, DELEGATE_RETENTION, SESSION_RETENTION};
use crate::session::outcome::SessionOutcome;
use crate::sink::orphans;

/// Longest interval between checks for files of abandoned transfers.
const ABANDONED_CHECK_INTERVAL: Duration = Duration::from_secs(600);

impl AgentInner {
    /// Runs until the agent stops and its last session has ended.
    pub(super) fn run_janitor(self: &Arc<Self>) {
        let mut looked: Option<Instant> = None;
        loop {
            let keep = lock(&self.limits).keep_unfinished.unwrap_or(ABANDONED_CHECK_INTERVAL);
            if looked.is_none_or(|looked| looked.elapsed() > keep.min(ABANDONED_CHECK_INTERVAL)) {
                looked = Some(Instant::now());
                orphans::remove_after(&self.config.state, lock(&self.limits).keep_unfinished);
            }
            std::thread::sleep(Duration::from_secs(1));
            self.pending.close_expired(AUTHENTICATION_TIMEOUT);
            self.memory.rebalance();
            self.retire_initiated();
            for transfer in self.gateway_transfers() {
                transfer.tick();
                transfer.end_if_withdrawn(&*self.config.gatekeeper);
            }
            let running: Vec<_> = lock(&self.sessions).values().cloned().collect();
            if self.stopping.load(Ordering::SeqCst) && running.is_empty() {
                return;
            }
            for running in running {
                lock(&running.rate).observe(&running.end);
                if !self.is_admitted(&running) {
                    let name = &running.caller.name;
                    tracing::info!("transfer {}: {name} was removed from the agent", running.id);
                    self.end_now(
                        &running,
                        &format!("the token or certificate of {name} was removed"),
                    );
                    continue;
                }
                let kept =
                    if running.delegate.is_some() { DELEGATE_RETENTION } else { SESSION_RETENTION };
                let gone = lock(&running.lost).is_some_and(|since| since.elapsed() > kept);
                if gone {
                    let why = "its client did not come back".to_owned();
                    running.end.session().end(SessionOutcome::Failed(why));
                    self.retire(&running);
                }
            }
        }
    }
}
