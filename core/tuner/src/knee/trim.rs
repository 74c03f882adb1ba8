//! Fewer streams where more gained nothing: the path is full. Each rise of the rate begins a search that only doubles; without
//! a step back, traffic that comes and goes would leave some streams more each time.

use super::hold::step_of;
use super::{FLAT_LOSS, KNEE_MARGIN, KneeController, KneeState};
use crate::level::RateLevel;
use crate::parallelism::PipelineStage;
use crate::reason::ChangeReason;

/// Steps downwards, as a share of the workers: once more of them gained nothing, and once they lost.
const TRIM_STEP: f64 = 0.25;
const STEP_CROWDED: f64 = 0.4;

impl KneeController {
    /// Tries fewer workers after a step from `base` that gained nothing: those that the rate of one predicts, else three
    /// quarters.
    pub(super) fn trim(
        &mut self,
        stage: PipelineStage,
        base: &RateLevel,
        more: &RateLevel,
        required: f64,
    ) -> ChangeReason {
        let both = base.joined(more);
        let predicted = ((both.mean() - self.stream_rate).exp() * KNEE_MARGIN).ceil() as u16;
        let smaller = base.workers - step_of(base.workers, TRIM_STEP);
        let fewest = if predicted < base.workers { predicted } else { smaller };
        let fewest = fewest.max(self.floor.at(stage));
        if fewest.saturating_add(self.step_min(stage)) <= base.workers {
            let change = self.set(stage, fewest);
            self.state = KneeState::Trimming { stage, base: both, level: RateLevel::at(change.to) };
            return ChangeReason::Probing { change };
        }
        let is_crowded = self.is_crowded;
        let reason = self.take_back(stage, base.workers, more.mean() - base.mean(), required);
        if is_crowded {
            self.hold.down.step = STEP_CROWDED;
        }
        reason
    }

    pub(super) fn after_trimming(
        &mut self,
        stage: PipelineStage,
        base: RateLevel,
        level: RateLevel,
    ) -> ChangeReason {
        if !self.is_decided(&level, &base, -FLAT_LOSS) {
            self.state = KneeState::Trimming { stage, base, level };
            return ChangeReason::Measuring { intervals: level.count() };
        }
        let loss = level.mean() - base.mean();
        let kept = if loss >= -FLAT_LOSS { &level } else { &base };
        self.settle_at(stage, kept)
    }

    /// Remembers the rate of one stream of `level`, if it is the best so far.
    pub(super) fn note_stream_rate(&mut self, level: &RateLevel, streams: u16) {
        self.stream_rate = self.stream_rate.max(level.mean() - f64::from(streams).ln());
    }
}
