//! Classifier of the limit that binds a transfer, which decides whether a controller may move and which setting.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::parallelism::PipelineStage;
use crate::sample::TunerSample;

/// Share of the busy time from which a window or a buffer is the bottleneck.
const WAIT_SHARE_MIN: f64 = 0.3;

/// Share of the streams' time from which a queue between stages is: streams that wait for a sixth of their time could
/// move a fifth more.
const QUEUE_SHARE_MIN: f64 = 0.15;

/// Busy share of all processors from which a host is the bottleneck.
const CPU_BUSY_MIN: f64 = 0.93;

/// Share of retransmitted segments from which the path loses: half of what a cubic stream with a window of 50 segments needs.
const RETRANSMIT_SHARE_MIN: f64 = 3e-4;

/// Round-trip time over the smallest one from which a queue stands on the path, with this margin for short paths.
const RTT_INFLATION_MIN: f64 = 1.5;
const RTT_MARGIN_US: f64 = 1_000.0;

/// Limit that binds a transfer during an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BindingLimit {
    /// Rate limit of the user or the operator.
    RateLimit,
    /// Processors of the sending host.
    SenderCpu,
    /// Processors of the receiving host.
    ReceiverCpu,
    /// Reading at the source.
    SourceStorage,
    /// Writing at the destination.
    DestinationStorage,
    /// Receive window: `net.ipv4.tcp_rmem` is small for the path.
    ReceiveWindow,
    /// Send buffer: `net.ipv4.tcp_wmem` is small for the path.
    SendBuffer,
    /// Queue on the path, of a shared link or of a shaper for each connection.
    Queue,
    /// Loss without a queue: random loss or a policer.
    Loss,
    /// Nothing that the hosts see.
    Path,
}

impl BindingLimit {
    /// Classifies an interval. Limits that stop every stage come first, since everything behind them waits, too.
    #[must_use]
    pub fn of(sample: &TunerSample) -> Self {
        let queues = &sample.queues;
        let stream_us = sample.interval_us as f64 * f64::from(sample.active.streams.max(1));
        let busy_us = sample.tcp.busy_us.map_or(stream_us, |busy| busy as f64).max(1.0);
        let rwnd_share = sample.tcp.rwnd_limited_us as f64 / busy_us;
        let sndbuf_share = sample.tcp.sndbuf_limited_us as f64 / busy_us;
        match () {
            () if waits_for_rate_limit(sample) => Self::RateLimit,
            () if sample.sender_cpu > CPU_BUSY_MIN => Self::SenderCpu,
            () if sample.receiver_cpu > CPU_BUSY_MIN => Self::ReceiverCpu,
            () if queues.destination_full > QUEUE_SHARE_MIN
                && queues.destination_full >= queues.source_empty =>
            {
                Self::DestinationStorage
            }
            () if queues.source_empty > QUEUE_SHARE_MIN => Self::SourceStorage,
            () if rwnd_share > WAIT_SHARE_MIN => Self::ReceiveWindow,
            () if sndbuf_share > WAIT_SHARE_MIN => Self::SendBuffer,
            () if has_queue(sample) => Self::Queue,
            () if sample.retransmit_share() > RETRANSMIT_SHARE_MIN => Self::Loss,
            () => Self::Path,
        }
    }

    /// Stage whose workers can move this limit; none where more workers only cost.
    #[must_use]
    pub const fn stage(self) -> Option<PipelineStage> {
        match self {
            Self::RateLimit | Self::SenderCpu | Self::ReceiverCpu => None,
            Self::SourceStorage => Some(PipelineStage::Readers),
            Self::DestinationStorage => Some(PipelineStage::Writers),
            Self::ReceiveWindow | Self::SendBuffer | Self::Queue | Self::Loss | Self::Path => {
                Some(PipelineStage::Streams)
            }
        }
    }

    /// Returns the command that explains the setting of a host that binds, and at which end.
    #[must_use]
    pub const fn host_rule(self) -> Option<&'static str> {
        match self {
            Self::ReceiveWindow => Some("penstock host explain tcp-rmem, at the receiver"),
            Self::SendBuffer => Some("penstock host explain tcp-wmem, at the sender"),
            _ => None,
        }
    }
}

impl fmt::Display for BindingLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RateLimit => "the rate limit",
            Self::SenderCpu => "the sender's processors",
            Self::ReceiverCpu => "the receiver's processors",
            Self::SourceStorage => "the source's storage",
            Self::DestinationStorage => "the destination's storage",
            Self::ReceiveWindow => "the receive window",
            Self::SendBuffer => "the send buffer",
            Self::Queue => "a queue on the path",
            Self::Loss => "loss on the path",
            Self::Path => "the path",
        })
    }
}

/// True if the streams wait for a rate limit for a large part of their time.
pub(crate) fn waits_for_rate_limit(sample: &TunerSample) -> bool {
    sample.queues.rate_limit > WAIT_SHARE_MIN
}

/// True if others may share the bottleneck: the path queues, loses or marks packets of this transfer.
pub(crate) fn is_congested(sample: &TunerSample) -> bool {
    sample.tcp.delivered_ce > 0
        || has_queue(sample)
        || sample.retransmit_share() > RETRANSMIT_SHARE_MIN
}

fn has_queue(sample: &TunerSample) -> bool {
    let (Some(rtt_us), Some(rtt_min_us)) = (sample.tcp.rtt_us, sample.tcp.rtt_min_us) else {
        return false;
    };
    f64::from(rtt_us) > f64::from(rtt_min_us) * RTT_INFLATION_MIN + RTT_MARGIN_US
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallelism::Parallelism;
    use crate::sample::{QueueShares, TcpDifferences};

    fn idle() -> TunerSample {
        TunerSample {
            interval_us: 500_000,
            bytes: 50_000_000,
            active: Parallelism::streams(4),
            tcp: TcpDifferences { busy_us: Some(2_000_000), ..TcpDifferences::default() },
            queues: QueueShares::default(),
            sender_cpu: 0.1,
            receiver_cpu: 0.1,
        }
    }

    fn with_tcp(change: impl Fn(&mut TcpDifferences)) -> TunerSample {
        let mut sample = idle();
        change(&mut sample.tcp);
        sample
    }

    fn with_queues(source_empty: f64, destination_full: f64, rate_limit: f64) -> TunerSample {
        TunerSample { queues: QueueShares { source_empty, destination_full, rate_limit }, ..idle() }
    }

    #[test]
    fn slowest_stage_binds() {
        assert_eq!(BindingLimit::of(&idle()), BindingLimit::Path);
        assert_eq!(BindingLimit::of(&with_queues(0.5, 0.1, 0.0)), BindingLimit::SourceStorage);
        assert_eq!(BindingLimit::of(&with_queues(0.1, 0.5, 0.0)), BindingLimit::DestinationStorage);
        assert_eq!(BindingLimit::of(&with_queues(0.9, 0.0, 0.6)), BindingLimit::RateLimit);
        let busy = TunerSample { sender_cpu: 0.99, ..with_queues(0.5, 0.1, 0.0) };
        assert_eq!(BindingLimit::of(&busy), BindingLimit::SenderCpu);
    }

    #[test]
    fn tcp_counters_name_limit() {
        let of = |change: &dyn Fn(&mut TcpDifferences)| BindingLimit::of(&with_tcp(change));
        assert_eq!(of(&|tcp| tcp.rwnd_limited_us = 900_000), BindingLimit::ReceiveWindow);
        assert_eq!(of(&|tcp| tcp.sndbuf_limited_us = 900_000), BindingLimit::SendBuffer);
        assert_eq!(of(&|tcp| tcp.retransmitted_segments = 100), BindingLimit::Loss);
        let queue = |tcp: &mut TcpDifferences| {
            (tcp.rtt_us, tcp.rtt_min_us) = (Some(90_000), Some(20_000));
        };
        assert_eq!(of(&queue), BindingLimit::Queue);
        assert!(is_congested(&with_tcp(queue)));
        assert!(!is_congested(&idle()));
    }
}
