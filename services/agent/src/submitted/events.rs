//! Events of transfers, kept for followers that return.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::http::api::TransferFacts;

/// Most events kept.
const EVENTS_MAX: usize = 4096;

/// An event of a transfer.
#[derive(Debug, Clone)]
pub struct SubmittedEvent {
    /// Number; greater than that of each earlier event, also after a restart.
    pub number: u64,
    /// True for a change of the state, false for progress.
    pub is_change: bool,
    /// The transfer after the event.
    pub transfer: Arc<TransferFacts>,
}

/// The last [`EVENTS_MAX`] events, by number.
#[derive(Debug)]
pub(super) struct TransferEventLog {
    events: VecDeque<SubmittedEvent>,
    next: u64,
}

impl TransferEventLog {
    /// Numbers begin with the microseconds since 1970, so that those of a later process are greater.
    pub(super) fn new() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let next = u64::try_from(since.as_micros()).unwrap_or(1);
        Self { events: VecDeque::new(), next }
    }

    pub(super) fn push(&mut self, is_change: bool, transfer: TransferFacts) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        let transfer = Arc::new(transfer);
        self.events.push_back(SubmittedEvent { number: self.next, is_change, transfer });
        self.next += 1;
    }

    /// Number of the last event.
    pub(super) const fn last(&self) -> u64 {
        self.next - 1
    }

    /// Events after `number`; `None` where some of them are not kept any more.
    pub(super) fn after(&self, number: u64) -> Option<Vec<SubmittedEvent>> {
        let first = self.events.front().map_or(self.next, |event| event.number);
        if number.saturating_add(1) < first {
            return None;
        }
        Some(self.events.iter().filter(|event| event.number > number).cloned().collect())
    }
}
