//! Measurements of one interval.

use serde::{Deserialize, Serialize};

use crate::parallelism::Parallelism;

/// Differences of the kernel's TCP counters over an interval, summed over the data streams. A field is absent where the
/// end that measures does not see it: a receiver does not see the sender's RTT.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TcpDifferences {
    /// Sum of the streams' most recent delivery rates, in bits per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_rate_bps: Option<u64>,
    /// Time with data outstanding, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_us: Option<u64>,
    /// Time limited by the receiver's window, in microseconds.
    pub rwnd_limited_us: u64,
    /// Time limited by the send buffer, in microseconds.
    pub sndbuf_limited_us: u64,
    /// Segments sent, retransmissions included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_segments: Option<u64>,
    /// Segments retransmitted, after a timeout or fast.
    pub retransmitted_segments: u64,
    /// Mean smoothed round-trip time of the streams, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<u32>,
    /// Smallest round-trip time of the transfer so far, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_min_us: Option<u32>,
    /// Segments that arrived with a congestion mark (ECN).
    pub delivered_ce: u64,
}

/// Fractions of the streams' time, 0 to 1, that show which queue between two stages is empty or full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueShares {
    /// Sending streams waited for a block: the queue behind the readers is empty.
    pub source_empty: f64,
    /// Receiving streams waited for a buffer: the queue before the writers is full.
    pub destination_full: f64,
    /// Sending streams waited for the rate limit.
    pub rate_limit: f64,
}

/// Measurements of one interval of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TunerSample {
    /// Length of the interval in microseconds.
    pub interval_us: u64,
    /// Payload bytes moved during the interval.
    pub bytes: u64,
    /// Workers in place at the end of the interval; streams count once they are connected.
    pub active: Parallelism,
    /// Differences of TCP counters.
    pub tcp: TcpDifferences,
    /// Queues between the stages.
    pub queues: QueueShares,
    /// Busy fraction of the sender's processors, 0 to 1; 0 where the sender hardly uses them.
    pub sender_cpu: f64,
    /// Busy fraction of the receiver's processors, likewise.
    pub receiver_cpu: f64,
}

impl TunerSample {
    /// Rate of the payload in bits per second.
    #[must_use]
    pub fn rate_bps(&self) -> f64 {
        self.bytes as f64 * 8e6 / self.interval_us.max(1) as f64
    }

    /// Both intervals as one: sums, means weighted by time, and the later state.
    pub(crate) fn joined(&self, later: &Self) -> Self {
        let interval_us = self.interval_us.saturating_add(later.interval_us);
        let part = later.interval_us as f64 / interval_us.max(1) as f64;
        let mean = |one: f64, other: f64| one + (other - one) * part;
        let sum = |one: Option<u64>, other: Option<u64>| Some(one?.saturating_add(other?));
        let (tcp, added) = (&self.tcp, &later.tcp);
        let (queues, next) = (&self.queues, &later.queues);
        Self {
            interval_us,
            bytes: self.bytes.saturating_add(later.bytes),
            active: later.active,
            tcp: TcpDifferences {
                busy_us: sum(tcp.busy_us, added.busy_us),
                rwnd_limited_us: tcp.rwnd_limited_us.saturating_add(added.rwnd_limited_us),
                sndbuf_limited_us: tcp.sndbuf_limited_us.saturating_add(added.sndbuf_limited_us),
                sent_segments: sum(tcp.sent_segments, added.sent_segments),
                retransmitted_segments: tcp
                    .retransmitted_segments
                    .saturating_add(added.retransmitted_segments),
                delivered_ce: tcp.delivered_ce.saturating_add(added.delivered_ce),
                ..*added
            },
            queues: QueueShares {
                source_empty: mean(queues.source_empty, next.source_empty),
                destination_full: mean(queues.destination_full, next.destination_full),
                rate_limit: mean(queues.rate_limit, next.rate_limit),
            },
            sender_cpu: mean(self.sender_cpu, later.sender_cpu),
            receiver_cpu: mean(self.receiver_cpu, later.receiver_cpu),
        }
    }

    /// Segments sent, retransmissions included; segments of 1,448 bytes where none were counted.
    #[must_use]
    pub fn sent_segments(&self) -> u64 {
        const SEGMENT_BYTES: u64 = 1448;
        self.tcp.sent_segments.unwrap_or(self.bytes / SEGMENT_BYTES)
    }

    /// Fraction of sent segments that were retransmitted, 0 to 1.
    #[must_use]
    pub fn retransmit_share(&self) -> f64 {
        let sent = self.sent_segments().max(1);
        (self.tcp.retransmitted_segments as f64 / sent as f64).clamp(0.0, 1.0)
    }
}
