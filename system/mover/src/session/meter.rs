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
pub(crate) struct TcpTotals {
    /// Bytes that the peer has acknowledged, those of TLS and frames included.
    pub(crate) acked_bytes: u64,
    pub(crate) retransmits: u64,
    pub(crate) window_us: u64,
    pub(crate) buffer_us: u64,
    /// Minimum over the connections, not a sum.
    pub(crate) rtt_us: Option<u32>,
    /// Time with data outstanding, in microseconds.
    pub(crate) busy_us: u64,
    pub(crate) sent_segments: u64,
    /// Segments that arrived with a congestion mark.
    pub(crate) marked_segments: u64,
}

impl TcpTotals {
    pub(super) fn and(self, info: &TcpInfo) -> Self {
        let rtt_us = Some(info.rtt_min_us).filter(|rtt| *rtt > 0);
        Self {
            acked_bytes: self.acked_bytes + info.bytes_acked,
            retransmits: self.retransmits + u64::from(info.retransmits),
            window_us: self.window_us + info.rwnd_limited_us,
            buffer_us: self.buffer_us + info.sndbuf_limited_us,
            rtt_us: self.rtt_us.into_iter().chain(rtt_us).min(),
            busy_us: self.busy_us + info.busy_us,
            sent_segments: self.sent_segments + u64::from(info.segments_sent),
            marked_segments: self.marked_segments + u64::from(info.delivered_ce),
        }
    }
}

/// Adds the time since `start` to `counter`, in microseconds.
pub(crate) fn add_since(counter: &AtomicU64, start: Instant) {
    let elapsed = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    counter.fetch_add(elapsed, Ordering::Relaxed);
}
