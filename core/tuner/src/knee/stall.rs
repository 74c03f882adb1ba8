//! Stalls: intervals without a byte. The path or an end stands still, which says nothing about the settings.

use super::{KneeController, KneeState};
use crate::bottleneck::{BindingLimit, waits_for_rate_limit};
use crate::level::log_rate;
use crate::parallelism::PipelineStage;
use crate::reason::ChangeReason;
use crate::sample::TunerSample;

/// Intervals without a byte after which a step that is being tried is taken back: nothing can be measured at it.
const STALL_INTERVALS_MAX: u32 = 6;

/// Fall from one interval to the next, as a logarithm, at which a stall may have begun: to less than half.
const SUDDEN_FALL: f64 = 0.7;

/// Memory of stalls.
#[derive(Debug, Clone, Default)]
pub(super) struct StallState {
    /// Latest intervals without a byte, one after another.
    intervals: u32,
    /// Rate of the latest interval with data, as a logarithm.
    last: Option<f64>,
    /// Rate of the latest interval with data, in bits per second, also before and after a stall.
    data_bps: Option<f64>,
}

impl StallState {
    /// Rate of the latest interval with data.
    pub(super) fn data_bps(&self) -> Option<f64> {
        self.data_bps
    }
}

impl KneeController {
    /// Handles intervals that are not measured: those of a stall, and those that a stall may cover in part, which are the
    /// one after it and the first of a sudden fall.
    ///
    /// `sample` covers so many intervals.
    pub(super) fn skip_stall(
        &mut self,
        sample: &TunerSample,
        covered: u32,
    ) -> Option<ChangeReason> {
        if sample.bytes == 0 && waits_for_rate_limit(sample) {
            return Some(ChangeReason::Bound { limit: BindingLimit::RateLimit });
        }
        if sample.bytes == 0 {
            let before = self.stall.intervals;
            self.stall.intervals = before.saturating_add(covered);
            self.stall.last = None;
            self.noise.interrupt();
            let is_long =
                before < STALL_INTERVALS_MAX && self.stall.intervals >= STALL_INTERVALS_MAX;
            return Some(self.while_stalled(is_long));
        }
        self.stall.data_bps = Some(sample.rate_bps());
        let intervals = std::mem::take(&mut self.stall.intervals);
        if intervals > 0 {
            return Some(ChangeReason::Resumed { intervals });
        }
        let rate = log_rate(sample);
        let last = self.stall.last.replace(rate);
        last.filter(|last| rate - last < -SUDDEN_FALL)
            .map(|last| ChangeReason::SuddenFall { percent: super::percent(rate - last) })
    }

    fn while_stalled(&mut self, is_long: bool) -> ChangeReason {
        let intervals = self.stall.intervals;
        match self.setting_before_step() {
            Some((stage, workers)) if is_long => {
                let change = self.set(stage, workers);
                self.restart(true);
                ChangeReason::StalledStep { change, intervals }
            }
            _ => ChangeReason::Stalled { intervals },
        }
    }

    /// Last setting with a measured rate, while another one is being tried.
    fn setting_before_step(&self) -> Option<(PipelineStage, u16)> {
        match &self.state {
            KneeState::Doubling { stage, base, .. } => Some((*stage, base.workers)),
            KneeState::Narrowing { stage, low, .. } => Some((*stage, low.workers)),
            KneeState::Probing { stage, before, .. } => Some((*stage, before.workers)),
            // No growth while nothing arrives.
            KneeState::Trimming { .. } => None,
            KneeState::Baseline { .. } | KneeState::Holding | KneeState::Comparing { .. } => None,
            // The streams stay.
            KneeState::Pacing { .. } => None,
        }
    }
}
