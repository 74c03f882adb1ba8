//! Additive increase and multiplicative decrease of the streams: one more each second, a quarter fewer when the rate falls
//! by a tenth or the path loses one segment in a hundred.

use crate::TransferController;
use crate::parallelism::{Parallelism, PipelineStage, TuningLimits};
use crate::reason::{ChangeReason, StageChange, TunerDecision};
use crate::sample::TunerSample;

const STEP_US: u64 = 1_000_000;
const LOSS_MAX: f64 = 0.01;
const RATE_KEPT: f64 = 0.9;
const DECREASE_FACTOR: f64 = 0.75;

/// Controller by additive increase and multiplicative decrease.
#[derive(Debug, Clone)]
pub struct AimdController {
    limits: TuningLimits,
    target: Parallelism,
    elapsed_us: u64,
    bytes: u64,
    loss: f64,
    last: f64,
}

impl AimdController {
    /// Creates a controller that begins at `start`.
    #[must_use]
    pub fn new(start: Parallelism, limits: TuningLimits) -> Self {
        let target = limits.clamp(start);
        Self { limits, target, elapsed_us: 0, bytes: 0, loss: 0.0, last: 0.0 }
    }
}

impl TransferController for AimdController {
    fn observe(&mut self, sample: &TunerSample) -> TunerDecision {
        self.elapsed_us = self.elapsed_us.saturating_add(sample.interval_us);
        self.bytes = self.bytes.saturating_add(sample.bytes);
        self.loss = self.loss.max(sample.retransmit_share());
        if self.elapsed_us < STEP_US {
            let reason = ChangeReason::Measuring { intervals: 0 };
            return TunerDecision { target: self.target, stream_pacing_bps: None, reason };
        }
        let rate = self.bytes as f64 * 8.0 / self.elapsed_us as f64;
        let decreases = self.loss > LOSS_MAX || rate < self.last * RATE_KEPT;
        let from = self.target.streams;
        let to = if decreases {
            (f64::from(from) * DECREASE_FACTOR).floor() as u16
        } else {
            from.saturating_add(1)
        };
        self.target = self.limits.clamp(self.target.with(PipelineStage::Streams, to));
        (self.elapsed_us, self.bytes, self.loss, self.last) = (0, 0, 0.0, rate);
        let change = StageChange { stage: PipelineStage::Streams, from, to: self.target.streams };
        let reason = ChangeReason::PeerRule { change, score: rate };
        TunerDecision { target: self.target, stream_pacing_bps: None, reason }
    }

    fn name(&self) -> &'static str {
        "aimd"
    }
}
