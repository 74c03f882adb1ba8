//! Fewer streams where more gained nothing, and where a search on a congested path ends. Others may have left while a step was
//! measured, so that their part of the link counted as gained: fewer are then enough. Each rise of the rate begins a search
//! that only doubles; without steps back, traffic that comes and goes would leave some streams more each time.

use super::hold::step_of;
use super::{FLAT_LOSS, KNEE_MARGIN, KneeController, KneeState, is_network};
use crate::level::RateLevel;
use crate::parallelism::PipelineStage;
use crate::reason::ChangeReason;

/// Steps downwards, as a share of the workers: once more of them gained nothing or the search has ended, and once they lost.
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
        let fewest = if predicted < base.workers { predicted } else { trimmed(base.workers) };
        if let Some(reason) = self.try_fewer(stage, both, fewest) {
            return reason;
        }
        let is_crowded = self.is_crowded;
        let reason = self.take_back(stage, base.workers, more.mean() - base.mean(), required);
        if is_crowded {
            self.hold.down.step = STEP_CROWDED;
        }
        reason
    }

    /// Ends a search at `level`, once fewer streams were tried where others may share the path.
    pub(super) fn verify(&mut self, stage: PipelineStage, level: &RateLevel) -> ChangeReason {
        let may_share = is_network(stage) && level.is_congested();
        let tried = may_share.then(|| self.try_fewer(stage, *level, trimmed(level.workers)));
        tried.flatten().unwrap_or_else(|| self.settle_at(stage, level))
    }

    /// Tries `fewest` workers, which must keep the rate of `base`, where the default and the step allow it.
    fn try_fewer(
        &mut self,
        stage: PipelineStage,
        base: RateLevel,
        fewest: u16,
    ) -> Option<ChangeReason> {
        let fewest = fewest.max(self.floor.at(stage));
        if fewest.saturating_add(self.step_min(stage)) > base.workers {
            return None;
        }
        let change = self.set(stage, fewest);
        self.state = KneeState::Trimming { stage, base, level: RateLevel::at(change.to) };
        Some(ChangeReason::Probing { change })
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
        if level.mean() - base.mean() < -FLAT_LOSS {
            return self.settle_at(stage, &base);
        }
        // The next step is compared with the same rate, so that losses do not add up.
        let enough = base.of_workers(level.workers);
        let tried = self.try_fewer(stage, enough, trimmed(level.workers));
        tried.unwrap_or_else(|| self.settle_at(stage, &level))
    }

    /// Remembers the rate of one stream of `level`, if it is the best so far.
    pub(super) fn note_stream_rate(&mut self, level: &RateLevel, streams: u16) {
        self.stream_rate = self.stream_rate.max(level.mean() - f64::from(streams).ln());
    }
}

/// Workers after a step downwards.
fn trimmed(workers: u16) -> u16 {
    workers - step_of(workers, TRIM_STEP)
}
