//! Limits shared by all clients of an agent.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use penstock_tuner::TuningMode;
use serde::Serialize;

use super::dscp_policy::DscpPolicy;
use crate::base::limits::STREAMS_MAX;

/// Limits of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AgentLimits {
    /// Rate limit of all transfers together; unlimited if `None`.
    pub rate_bps: Option<u64>,
    /// Limit of concurrent transfers.
    pub transfers: usize,
    /// Limit of transfers of one caller over gateways.
    pub transfers_per_caller: usize,
    /// Limit of streams of one transfer.
    pub streams_per_transfer: u16,
    /// Limit of streams of all transfers together.
    pub streams: usize,
    /// Memory for blocks of all transfers together.
    pub memory_bytes: u64,
    /// Time for which unfinished files of abandoned transfers are kept; for ever if `None`.
    pub keep_unfinished: Option<Duration>,
    /// Use of the tuner for the streams of transfers that the agent sends by itself.
    pub tuning: TuningMode,
    /// DSCP of the packets of data streams.
    pub dscp: DscpPolicy,
}

impl AgentLimits {
    /// Default limit of one caller: all but a quarter of all transfers, which are left to others.
    #[must_use]
    pub const fn per_caller_default(transfers: usize) -> usize {
        transfers - transfers / 4
    }
}

impl Default for AgentLimits {
    fn default() -> Self {
        Self {
            rate_bps: None,
            transfers: 64,
            transfers_per_caller: Self::per_caller_default(64),
            streams_per_transfer: STREAMS_MAX,
            streams: 1024,
            memory_bytes: 1 << 30,
            keep_unfinished: None,
            tuning: TuningMode::Auto,
            dscp: DscpPolicy::default(),
        }
    }
}

/// Counts a request while it is being granted.
#[derive(Debug)]
pub(super) struct PendingGrant<'a> {
    count: &'a AtomicUsize,
    /// Number of other requests at its start.
    pub others: usize,
}

impl<'a> PendingGrant<'a> {
    /// Increments `count` until drop.
    pub(super) fn new(count: &'a AtomicUsize) -> Self {
        Self { count, others: count.fetch_add(1, Ordering::SeqCst) }
    }
}

impl Drop for PendingGrant<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }
}
