//! One search for all transfers of a host over one path, and equal shares of what it finds.
//!
//! Transfers that search alone each see a share of the link that grows with their streams, and none sees what the link
//! needs. Their sum behaves as one transfer does.

use crate::TransferController;
use crate::knee::KneeController;
use crate::parallelism::{Parallelism, PipelineStage, TuningLimits};
use crate::reason::TunerDecision;
use crate::sample::{QueueShares, TcpDifferences, TunerSample};

/// Controller of the transfers of one host over one path. Its limits are the host's budget of streams.
#[derive(Debug, Clone)]
pub struct SharedController {
    search: KneeController,
    budget: TuningLimits,
    members: u16,
}

impl SharedController {
    /// Creates a controller without transfers; `start` is the default of each.
    #[must_use]
    pub fn new(start: Parallelism, budget: TuningLimits) -> Self {
        Self { search: KneeController::new(start, budget), budget, members: 0 }
    }

    /// Takes the samples of one interval, one for each transfer, and returns the settings of each: all are equal. A
    /// transfer joins or leaves by its sample.
    ///
    /// The number of streams is rounded up, at least one: with more transfers than streams in the budget each has one.
    pub fn observe(&mut self, samples: &[TunerSample]) -> Option<TunerDecision> {
        let members = u16::try_from(samples.len()).unwrap_or(u16::MAX);
        let together = sum(samples)?;
        if members != self.members {
            self.members = members;
            // The sum may keep its streams; the division changes.
            let least = self.budget.min.with(PipelineStage::Streams, members);
            self.search.set_limits(TuningLimits { min: least, ..self.budget });
        }
        let decision = self.search.observe(&together);
        let streams = decision.target.streams.div_ceil(members);
        let target = decision.target.with(PipelineStage::Streams, streams);
        // The division may ask for more than the search did: its next sample must agree.
        self.search.accept_streams(streams.saturating_mul(members));
        Some(TunerDecision { target, ..decision })
    }
}

/// Sum of the samples of one interval.
fn sum(samples: &[TunerSample]) -> Option<TunerSample> {
    let first = samples.first()?;
    let total = |value: fn(&TunerSample) -> u64| samples.iter().map(value).sum::<u64>();
    let optional = |value: fn(&TcpDifferences) -> Option<u64>| {
        samples.iter().map(|sample| value(&sample.tcp)).sum::<Option<u64>>()
    };
    let count = samples.len() as f64;
    let mean = |value: fn(&TunerSample) -> f64| samples.iter().map(value).sum::<f64>() / count;
    let most = |value: fn(&TunerSample) -> f64| samples.iter().map(value).fold(0.0, f64::max);
    let streams = total(|sample| u64::from(sample.active.streams));
    let rtt_us = samples.iter().filter_map(|sample| sample.tcp.rtt_us).max();
    Some(TunerSample {
        interval_us: first.interval_us,
        bytes: total(|sample| sample.bytes),
        active: first
            .active
            .with(PipelineStage::Streams, u16::try_from(streams).unwrap_or(u16::MAX)),
        tcp: TcpDifferences {
            delivery_rate_bps: optional(|tcp| tcp.delivery_rate_bps),
            busy_us: optional(|tcp| tcp.busy_us),
            rwnd_limited_us: total(|sample| sample.tcp.rwnd_limited_us),
            sndbuf_limited_us: total(|sample| sample.tcp.sndbuf_limited_us),
            sent_segments: optional(|tcp| tcp.sent_segments),
            retransmitted_segments: total(|sample| sample.tcp.retransmitted_segments),
            rtt_us,
            rtt_min_us: samples.iter().filter_map(|sample| sample.tcp.rtt_min_us).min(),
            delivered_ce: total(|sample| sample.tcp.delivered_ce),
        },
        queues: QueueShares {
            source_empty: mean(|sample| sample.queues.source_empty),
            destination_full: mean(|sample| sample.queues.destination_full),
            rate_limit: mean(|sample| sample.queues.rate_limit),
        },
        sender_cpu: most(|sample| sample.sender_cpu),
        receiver_cpu: most(|sample| sample.receiver_cpu),
    })
}
