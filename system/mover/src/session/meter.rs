//! Measurements of one end of a session.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use penstock_sys::net::TcpInfo;

/// Measurements of one end.
#[derive(Debug, Default)]
pub struct Meter {
    /// Stream time spent waiting for blocks to send or buffers to receive into.
    pub waited_storage_us: AtomicU64,
    /// Stream time spent in the socket.
    pub waited_network_us: AtomicU64,
    /// Stream time spent waiting for the rate limit.
    pub waited_rate_us: AtomicU64,
    /// Payload bytes sent or received.
    pub network_bytes: AtomicU64,
    /// Number of blocks sent again.
    pub repeated: AtomicU64,
    /// Number of lost streams.
    pub streams_lost: AtomicU64,
    /// Sum over the streams that have ended.
    pub(super) ended: Mutex<TcpTotals>,
}

/// Sum of the kernel's measurements over connections.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TcpTotals {
    pub(super) retransmits: u64,
    pub(super) window_us: u64,
    pub(super) buffer_us: u64,
    /// Minimum over the connections, not a sum.
    pub(super) rtt_us: Option<u32>,
}

impl TcpTotals {
    pub(super) fn and(self, info: &TcpInfo) -> Self {
        let rtt_us = Some(info.rtt_min_us).filter(|rtt| *rtt > 0);
        Self {
            retransmits: self.retransmits + u64::from(info.retransmits),
            window_us: self.window_us + info.rwnd_limited_us,
            buffer_us: self.buffer_us + info.sndbuf_limited_us,
            rtt_us: self.rtt_us.into_iter().chain(rtt_us).min(),
        }
    }
}

/// Adds the time since `start` to `counter`, in microseconds.
pub(crate) fn add_since(counter: &AtomicU64, start: Instant) {
    let elapsed = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    counter.fetch_add(elapsed, Ordering::Relaxed);
}
