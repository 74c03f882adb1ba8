//! Streams within a rate limit: the fewest that reach it. The time that streams wait for the limit is exact; a rate has noise.

use super::KneeController;
use super::hold::{STEP_DOWN_MAX, step_of};
use crate::bottleneck::BindingLimit;
use crate::level::RateLevel;
use crate::parallelism::PipelineStage;
use crate::sample::TunerSample;

/// Share of time from which streams that wait for the rate limit reach it, and loss of rate, as a logarithm, from which
/// they do not where they wait less.
pub(super) const LIMITED_SHARE_MIN: f64 = 0.02;
const SPARED_LOSS: f64 = 0.05;

/// Busy streams by which a rate limit may be missed: their mean is not exact.
pub(super) const BUSY_MARGIN: f64 = 0.05;

/// Difference of busy streams of two settings, as a logarithm, up to which each stream has a cap of its own.
const BUSY_EQUAL: f64 = 0.15;

/// True if a rate limit says how many streams are enough: as many as reach it.
pub(super) fn is_allotted(stage: PipelineStage, limit: BindingLimit) -> bool {
    stage == PipelineStage::Streams && limit == BindingLimit::RateLimit
}

impl KneeController {
    /// Limit that binds at the present settings, of which `level` has the latest samples. Few streams wait little for a rate
    /// limit that they reach: it binds as long as they wait, and hardly wait at the rate of more.
    pub(super) fn limit_of(&self, sample: &TunerSample, level: &RateLevel) -> BindingLimit {
        let limit = BindingLimit::of(sample);
        let reaches = |rate: f64| {
            let waited = level.limited_share();
            waited >= LIMITED_SHARE_MIN || (waited > 0.0 && level.mean() > rate - SPARED_LOSS)
        };
        match limit.stage() {
            Some(PipelineStage::Streams) if self.spared.is_some_and(reaches) => {
                BindingLimit::RateLimit
            }
            _ => limit,
        }
    }

    /// Compares the busy streams of two settings within a rate limit.
    pub(super) fn note_busy(&mut self, one: &RateLevel, other: &RateLevel) {
        let is_limited = |level: &RateLevel| level.limited_share() >= LIMITED_SHARE_MIN;
        if is_limited(one) && is_limited(other) {
            self.is_capped = (one.busy_streams() / other.busy_streams()).ln().abs() < BUSY_EQUAL;
        }
    }

    /// Fewer streams that may reach a rate limit: those that were busy, else once half of them, since each may get more
    /// where there are fewer.
    pub(super) fn fewest_busy(&self, now: &RateLevel) -> u16 {
        let busy = (now.busy_streams() - BUSY_MARGIN).ceil().max(1.0) as u16;
        if busy < now.workers || self.hold.needs_more || self.is_capped {
            busy.min(now.workers)
        } else {
            now.workers.saturating_sub(step_of(now.workers, STEP_DOWN_MAX))
        }
    }

    /// Remembers the rate of more streams than reach a rate limit.
    pub(super) fn spare(&mut self, more: &RateLevel) {
        let rate = self.spared.map_or(more.mean(), |rate| rate.max(more.mean()));
        self.spared = Some(rate);
    }
}
