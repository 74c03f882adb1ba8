//! What bounds an agent's clients together.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::Serialize;

use crate::session::STREAMS_MAX;

/// What an agent gives at most.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Rate of all transfers together.
    pub rate_bps: Option<u64>,
    /// Transfers at a time.
    pub transfers: usize,
    /// Streams of one transfer.
    pub streams_per_transfer: u16,
    /// Streams of all transfers together.
    pub streams: usize,
    /// Memory for blocks, of all transfers together.
    pub memory_bytes: u64,
    /// How long unfinished files are kept of transfers that do not come back; for ever where absent.
    pub keep_unfinished: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rate_bps: None,
            transfers: 64,
            streams_per_transfer: STREAMS_MAX,
            streams: 1024,
            memory_bytes: 1 << 30,
            keep_unfinished: None,
        }
    }
}

/// A request that is being granted.
#[derive(Debug)]
pub(super) struct Entering<'a> {
    count: &'a AtomicUsize,
    /// How many others there were at its start.
    pub others: usize,
}

impl<'a> Entering<'a> {
    /// One more.
    pub(super) fn new(count: &'a AtomicUsize) -> Self {
        Self { count, others: count.fetch_add(1, Ordering::SeqCst) }
    }
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }
}
