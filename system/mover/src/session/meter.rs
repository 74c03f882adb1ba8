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
    pub(crate) rtt_min_us: Option<u32>,
    /// Sum and number of the smoothed round-trip times of open connections.
    rtts_us: (u64, u32),
    /// Time with data outstanding, in microseconds.
    pub(crate) busy_us: u64,
    pub(crate) sent_segments: u64,
    /// Segments that arrived with a congestion mark.
    pub(crate) marked_segments: u64,
}

impl TcpTotals {
    /// Adds an open connection.
    pub(super) fn and(self, info: &TcpInfo) -> Self {
        let rtt_min_us = Some(info.rtt_min_us).filter(|rtt| *rtt > 0);
        let (sum, count) = self.rtts_us;
        Self {
            acked_bytes: self.acked_bytes + info.bytes_acked,
            retransmits: self.retransmits + u64::from(info.retransmits),
            window_us: self.window_us + info.rwnd_limited_us,
            buffer_us: self.buffer_us + info.sndbuf_limited_us,
            rtt_min_us: self.rtt_min_us.into_iter().chain(rtt_min_us).min(),
            rtts_us: (sum + u64::from(info.rtt_us), count + u32::from(info.rtt_us > 0)),
            busy_us: self.busy_us + info.busy_us,
            sent_segments: self.sent_segments + u64::from(info.segments_sent),
            marked_segments: self.marked_segments + u64::from(info.delivered_ce),
        }
    }

    /// Adds a connection that ends: its present round-trip time counts no more.
    pub(super) fn and_ended(self, info: &TcpInfo) -> Self {
        Self { rtts_us: self.rtts_us, ..self.and(info) }
    }

    /// Mean of the smoothed round-trip times of the open connections, in microseconds.
    pub(crate) fn mean_rtt_us(&self) -> Option<u32> {
        let (sum, count) = self.rtts_us;
        sum.checked_div(count.into()).and_then(|mean| u32::try_from(mean).ok())
    }
}

/// Adds the time since `start` to `counter`, in microseconds.
pub(crate) fn add_since(counter: &AtomicU64, start: Instant) {
    let elapsed = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    counter.fetch_add(elapsed, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_rtt_leaves_out_ended_connections() {
        let info = |rtt_us, rtt_min_us| TcpInfo {
            rtt_us,
            rtt_min_us,
            bytes_acked: 5,
            ..TcpInfo::default()
        };
        let ended = TcpTotals::default().and_ended(&info(900, 100));
        assert_eq!(ended.mean_rtt_us(), None);
        let all = ended.and(&info(300, 200)).and(&info(500, 150)).and(&info(0, 0));
        assert_eq!((all.mean_rtt_us(), all.rtt_min_us), (Some(400), Some(100)));
        assert_eq!(all.acked_bytes, 20);
    }
}
