//! Gradient search over a utility, after Falcon (Arifuzzaman and Arslan, Online optimization of file transfers in
//! high-speed networks, SC '21): `U(n) = T / K^n − B · L · T` with `K = 1.02` and `B = 10`, probes of three seconds of
//! which the first is discarded, and a step that grows while its sign persists.

use crate::TransferController;
use crate::parallelism::{Parallelism, PipelineStage, TuningLimits};
use crate::reason::{ChangeReason, StageChange, TunerDecision};
use crate::sample::TunerSample;

const UTILITY_BASE: f64 = 1.02;
const LOSS_WEIGHT: f64 = 10.0;
const PROBE_US: u64 = 3_000_000;
const DISCARDED_US: u64 = 1_000_000;
/// Streams above the best setting so far that a step may reach.
const REACH_STREAMS: u16 = 10;

/// Gradient search with one probe for each step.
#[derive(Debug, Clone)]
pub struct FalconLikeController {
    limits: TuningLimits,
    target: Parallelism,
    elapsed_us: u64,
    measured_us: u64,
    bytes: u64,
    sent: f64,
    retransmitted: f64,
    last: Option<(u16, f64)>,
    best: (u16, f64),
    run: f64,
}

impl FalconLikeController {
    /// Creates a controller that begins at one stream, as Falcon does.
    #[must_use]
    pub fn new(limits: TuningLimits) -> Self {
        let start = limits.clamp(limits.max.with(PipelineStage::Streams, 1));
        Self {
            limits,
            target: start,
            elapsed_us: 0,
            measured_us: 0,
            bytes: 0,
            sent: 0.0,
            retransmitted: 0.0,
            last: None,
            best: (1, f64::MIN),
            run: 0.0,
        }
    }

    fn next(&mut self, utility: f64) -> u16 {
        let now = self.target.streams;
        if utility > self.best.1 {
            self.best = (now, utility);
        }
        let Some((before, former)) = self.last.replace((now, utility)) else {
            return now + 1;
        };
        if before == now {
            return now + 1;
        }
        let direction = if now > before { 1.0 } else { -1.0 };
        let slope = direction * (utility - former) / f64::from(now.abs_diff(before));
        let gradient = (slope / former.abs().max(1.0)).abs();
        let sign = slope.signum();
        self.run = if self.run * sign > 0.0 { self.run + sign } else { sign };
        let step = self.run * (f64::from(now) * gradient).ceil();
        let limit = f64::from(self.best.0.saturating_add(REACH_STREAMS));
        (f64::from(now) + step).clamp(2.0, limit.max(2.0)) as u16
    }
}

impl TransferController for FalconLikeController {
    fn observe(&mut self, sample: &TunerSample) -> TunerDecision {
        self.elapsed_us = self.elapsed_us.saturating_add(sample.interval_us);
        if self.elapsed_us > DISCARDED_US {
            self.measured_us = self.measured_us.saturating_add(sample.interval_us);
            self.bytes = self.bytes.saturating_add(sample.bytes);
            self.sent += sample.tcp.sent_segments.unwrap_or(0) as f64;
            self.retransmitted += sample.tcp.retransmitted_segments as f64;
        }
        if self.elapsed_us < PROBE_US {
            let reason = ChangeReason::Measuring { intervals: 0 };
            return TunerDecision { target: self.target, stream_pacing_bps: None, reason };
        }
        let rate = self.bytes as f64 * 8.0 / self.measured_us.max(1) as f64;
        let loss = Some(self.retransmitted / self.sent.max(1.0)).filter(|loss| *loss < 1.0);
        let utility = rate / UTILITY_BASE.powi(i32::from(self.target.streams))
            - LOSS_WEIGHT * loss.unwrap_or(0.0) * rate;
        let from = self.target.streams;
        let wanted = self.next(utility);
        self.target = self.limits.clamp(self.target.with(PipelineStage::Streams, wanted));
        (self.elapsed_us, self.measured_us, self.bytes) = (0, 0, 0);
        (self.sent, self.retransmitted) = (0.0, 0.0);
        let change = StageChange { stage: PipelineStage::Streams, from, to: self.target.streams };
        let reason = ChangeReason::PeerRule { change, score: utility };
        TunerDecision { target: self.target, stream_pacing_bps: None, reason }
    }

    fn name(&self) -> &'static str {
        "falcon-like"
    }
}
