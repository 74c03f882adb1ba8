//! One step a minute, after the optimizer of FTS3 (`OptimizerConnections.cpp`): an average of the throughput (weight 0.1)
//! that rose or held, with success above 97 %, allows one more; one that fell holds.

use crate::TransferController;
use crate::parallelism::{Parallelism, PipelineStage, TuningLimits};
use crate::reason::{ChangeReason, StageChange, TunerDecision};
use crate::sample::TunerSample;

const STEP_US: u64 = 60_000_000;
const AVERAGE_WEIGHT: f64 = 0.1;

/// Conservative mode of the optimizer of FTS3; simulated transfers do not fail, so that success is 100 %.
#[derive(Debug, Clone)]
pub struct FtsLikeController {
    limits: TuningLimits,
    target: Parallelism,
    elapsed_us: u64,
    bytes: u64,
    average: Option<f64>,
}

impl FtsLikeController {
    /// Creates a controller that begins at `start`.
    #[must_use]
    pub fn new(start: Parallelism, limits: TuningLimits) -> Self {
        Self { limits, target: limits.clamp(start), elapsed_us: 0, bytes: 0, average: None }
    }
}

impl TransferController for FtsLikeController {
    fn observe(&mut self, sample: &TunerSample) -> TunerDecision {
        self.elapsed_us = self.elapsed_us.saturating_add(sample.interval_us);
        self.bytes = self.bytes.saturating_add(sample.bytes);
        if self.elapsed_us < STEP_US {
            let reason = ChangeReason::Measuring { intervals: 0 };
            return TunerDecision { target: self.target, stream_pacing_bps: None, reason };
        }
        let rate = self.bytes as f64 * 8.0 / self.elapsed_us as f64;
        let former = self.average.unwrap_or(rate);
        let average = AVERAGE_WEIGHT * rate + (1.0 - AVERAGE_WEIGHT) * former;
        self.average = Some(average);
        (self.elapsed_us, self.bytes) = (0, 0);
        let from = self.target.streams;
        let to = if average >= former { from + 1 } else { from };
        self.target = self.limits.clamp(self.target.with(PipelineStage::Streams, to));
        let change = StageChange { stage: PipelineStage::Streams, from, to: self.target.streams };
        let reason = ChangeReason::PeerRule { change, score: average };
        TunerDecision { target: self.target, stream_pacing_bps: None, reason }
    }

    fn name(&self) -> &'static str {
        "fts-like"
    }
}
