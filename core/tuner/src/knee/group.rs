//! A search for several transfers together: its limits, and what they make of its decisions.

use super::{KneeController, KneeState};
use crate::parallelism::{Parallelism, PipelineStage, TuningLimits};

impl KneeController {
    /// Fewest workers of a step: streams are those of all transfers, and each gets as many; readers and writers are those of
    /// each.
    pub(super) fn step_min(&self, stage: PipelineStage) -> u16 {
        if stage == PipelineStage::Streams { self.transfers } else { 1 }
    }

    /// Continues the search for `transfers` that have `streams` together, and `floor` by default, within other limits.
    /// Measurements at other settings no longer count, unless the settings are held and stay.
    pub(crate) fn regroup(
        &mut self,
        limits: TuningLimits,
        floor: Parallelism,
        streams: u16,
        transfers: u16,
    ) {
        self.limits = limits;
        self.floor = limits.clamp(floor);
        self.transfers = transfers.max(1);
        let target = limits.clamp(self.target.with(PipelineStage::Streams, streams));
        if target != self.target {
            self.target = target;
            self.settle();
            self.restart(true);
        } else if !matches!(self.state, KneeState::Holding) {
            self.restart(true);
        }
    }

    /// Takes the number of streams that the caller applies where it cannot apply the target exactly.
    pub(crate) fn accept_streams(&mut self, streams: u16) {
        if self.target.streams == streams {
            return;
        }
        self.target.streams = streams;
        match &mut self.state {
            KneeState::Doubling { stage, level, .. }
            | KneeState::Narrowing { stage, level, .. }
            | KneeState::Trimming { stage, level, .. }
            | KneeState::Probing { stage, level, .. }
                if *stage == PipelineStage::Streams =>
            {
                level.workers = streams;
            }
            _ => {}
        }
    }
}
