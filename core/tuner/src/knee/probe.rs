//! Paired probes: some intervals at another setting, compared with those before and after it, so that a slow drift of the
//! path cancels.

use super::allotted::{BUSY_MARGIN, LIMITED_SHARE_MIN, is_allotted};
use super::hold::{
    DOWN_INTERVALS_MAX, STEP_DOWN, STEP_DOWN_MAX, STEP_UP, UP_INTERVALS_MAX, step_of,
};
use super::{KneeController, KneeState, percent};
use crate::elasticity::{elasticity, limit_to_shrink, required_to_grow};
use crate::level::RateLevel;
use crate::parallelism::PipelineStage;
use crate::reason::{ChangeReason, StageChange};
use crate::sample::TunerSample;

/// Intervals at the probed setting, and after it: more where the noise is above this deviation.
const PROBE_SAMPLES: std::ops::RangeInclusive<u32> = 3..=8;
const QUIET_SIGMA: f64 = 0.02;

/// Loss, as a logarithm, at which a probe ends early once it is clear.
const CLEAR_LOSS: f64 = 0.04;

/// Difference against the direction of a probe, as a logarithm, that is a change of the path.
pub(super) const SHIFT_CLEAR: f64 = 0.08;

/// Smallest gain, as a logarithm, that more workers need.
const GAIN_MIN: f64 = 0.025;

/// Loss that fewer workers may cost in one step, and in all steps since the search.
const STEP_LOSS_MAX: f64 = 0.015;
const GIVEN_UP_MAX: f64 = 0.02;

/// Elasticity from which the rate follows the workers, so that doubling is worth trying again.
const PROPORTIONAL_MIN: f64 = 0.7;

/// Elasticity of fewer workers from which they are needed.
const NEEDED_ELASTICITY: f64 = 0.4;

/// Probes of one setting after which its mean decides.
const REPEATS_MAX: u32 = 4;

impl KneeController {
    pub(super) fn probe(
        &mut self,
        stage: PipelineStage,
        before: RateLevel,
        to: u16,
    ) -> ChangeReason {
        let change = self.set(stage, to);
        self.state = KneeState::Probing { stage, before, level: RateLevel::at(change.to) };
        ChangeReason::Probing { change }
    }

    fn probe_samples(&self) -> u32 {
        let noise = (self.noise.sigma() / QUIET_SIGMA).powi(2).ceil() as u32;
        noise.clamp(*PROBE_SAMPLES.start(), *PROBE_SAMPLES.end())
    }

    pub(super) fn after_probing(
        &mut self,
        stage: PipelineStage,
        before: RateLevel,
        level: RateLevel,
    ) -> ChangeReason {
        let gain = level.mean() - before.mean();
        let error = level.error_of_difference(&before, self.noise.sigma());
        let is_loss = gain + 3.0 * error < -CLEAR_LOSS;
        let against = if level.workers < before.workers { gain } else { -gain };
        if against - 3.0 * error > SHIFT_CLEAR {
            // Fewer workers gain, or more lose, what no probe explains: the path has changed.
            self.set(stage, before.workers);
            self.restart(gain > 0.0 || !level.is_congested());
            return ChangeReason::RateShift { percent: percent(gain) };
        }
        let is_fewer = stage == PipelineStage::Streams && level.workers < before.workers;
        if is_fewer && before.is_limited() && (is_loss || level.count() >= *PROBE_SAMPLES.start()) {
            // Streams that wait for a rate limit reach it, and those that do not miss it: no rate needs to be compared.
            if level.limited_share() >= LIMITED_SHARE_MIN && !is_loss {
                self.note_busy(&before, &level);
                let change = StageChange { stage, from: before.workers, to: level.workers };
                self.state = KneeState::Holding;
                self.spare(&before);
                self.give_back(stage, level.workers, 0.0);
                return ChangeReason::NotNeeded { change, loss_percent: percent(gain) };
            }
            let is_too_few = before.busy_streams() > f64::from(level.workers) + BUSY_MARGIN;
            if is_loss || (is_too_few && level.limited_share() < LIMITED_SHARE_MIN) {
                let change = self.set(stage, before.workers);
                self.state = KneeState::Holding;
                self.hold.relearn();
                self.hold.needs_more = true;
                self.hold.down.back_off(DOWN_INTERVALS_MAX);
                self.hold.down.wait = DOWN_INTERVALS_MAX;
                return ChangeReason::LimitMissed { change };
            }
        }
        if level.count() < self.probe_samples() && !is_loss {
            self.state = KneeState::Probing { stage, before, level };
            return ChangeReason::Measuring { intervals: level.count() };
        }
        let change = self.set(stage, before.workers);
        let back = RateLevel::at(before.workers);
        self.state = KneeState::Comparing { stage, before, out: level, level: back };
        ChangeReason::Comparing { change, gain_percent: percent(gain) }
    }

    pub(super) fn after_comparing(
        &mut self,
        sample: &TunerSample,
        stage: PipelineStage,
        before: RateLevel,
        out: RateLevel,
        level: RateLevel,
    ) -> ChangeReason {
        let shift = level.mean() - before.mean();
        let error = level.error_of_difference(&before, self.noise.sigma());
        let is_shifted = shift.abs() - 3.0 * error > SHIFT_CLEAR;
        if level.count() < self.probe_samples() && !is_shifted {
            self.state = KneeState::Comparing { stage, before, out, level };
            return ChangeReason::Measuring { intervals: level.count() };
        }
        let both = before.joined(&level);
        let gain = out.mean() - both.mean();
        let error = out.error_of_difference(&both, self.noise.sigma());
        self.state = KneeState::Holding;
        if is_shifted {
            // The path changed meanwhile: the probe says nothing.
            self.hold.relearn();
            self.restart(shift > 0.0 || !level.is_congested());
            return ChangeReason::RateShift { percent: percent(shift) };
        }
        if out.workers > both.workers {
            self.judge_more(sample, stage, &both, &out, (gain, error))
        } else {
            self.judge_fewer(sample, stage, &both, &out, (gain, error))
        }
    }

    fn judge_more(
        &mut self,
        sample: &TunerSample,
        stage: PipelineStage,
        now: &RateLevel,
        out: &RateLevel,
        (gain, error): (f64, f64),
    ) -> ChangeReason {
        let (gain, error, repeats) = self.hold.up.add(out.workers, gain, error);
        let congested = now.is_congested() && stage == PipelineStage::Streams;
        let steps = (f64::from(out.workers) / f64::from(now.workers)).ln();
        let required = (required_to_grow(now.workers, congested) * steps).max(GAIN_MIN);
        let limit = self.limit_of(sample, now);
        let is_doubtful = repeats >= REPEATS_MAX && gain + error >= required;
        if (gain >= required || is_doubtful) && gain > 2.0 * error.max(GAIN_MIN / 2.0) {
            let ratio = elasticity(gain, now.workers, out.workers);
            if ratio < PROPORTIONAL_MIN && out.workers - now.workers > self.step_min(stage) {
                return self.narrow(stage, *now, *out, 0);
            }
            let change = self.set(stage, out.workers);
            self.enter_hold();
            if ratio >= PROPORTIONAL_MIN && self.has_room(stage) {
                return self.double(stage, *out, limit);
            }
            let gain_percent = percent(gain);
            return ChangeReason::Gained { change, gain_percent, elasticity: ratio };
        }
        if gain + 2.0 * error >= required && repeats < REPEATS_MAX {
            self.hold.up.repeat();
        } else {
            self.hold.up.back_off(UP_INTERVALS_MAX);
            // A large step may pass over the knee, a small one may hide in the noise: they alternate.
            let was_large = self.hold.up.step == STEP_UP;
            self.hold.up.step = if was_large { STEP_UP / 2.0 } else { STEP_UP };
        }
        self.rest(limit)
    }

    fn judge_fewer(
        &mut self,
        sample: &TunerSample,
        stage: PipelineStage,
        now: &RateLevel,
        out: &RateLevel,
        (gain, error): (f64, f64),
    ) -> ChangeReason {
        let (gain, error, repeats) = self.hold.down.add(out.workers, gain, error);
        let change = StageChange { stage, from: now.workers, to: out.workers };
        let budget = STEP_LOSS_MAX.min(GIVEN_UP_MAX - self.hold.given_up);
        let loss_percent = percent(gain);
        self.is_crowded |= gain > 1.5 * error;
        // Below the default only where fewer are better: a link may widen.
        let limit = self.limit_of(sample, now);
        let is_allotted = is_allotted(stage, limit);
        let is_below = out.workers < self.floor.at(stage);
        let (budget, deviations) =
            if is_below && !is_allotted { (0.0, 2.0) } else { (budget, 1.5) };
        if gain - deviations * error > -budget {
            if is_allotted {
                self.spare(now);
            }
            self.give_back(stage, out.workers, gain);
            let step = self.hold.down.step;
            self.hold.down.step = (step * 2.0).min(STEP_DOWN_MAX);
            return ChangeReason::NotNeeded { change, loss_percent };
        }
        let is_shared = now.is_congested() && stage == PipelineStage::Streams;
        let ratio = elasticity(gain, now.workers, out.workers);
        let ratio_error = elasticity(error, now.workers, out.workers).abs();
        let leaves_default = out.workers >= self.floor.at(stage);
        let shrinks_below = limit_to_shrink(now.workers);
        let tested_sharing = std::mem::replace(&mut self.hold.tests_sharing, false);
        if tested_sharing
            && is_shared
            && leaves_default
            && repeats > 1
            && ratio + 2.0 * ratio_error <= shrinks_below
        {
            self.give_back(stage, out.workers, 0.0);
            return ChangeReason::Shared { change, loss_percent };
        }
        let is_open = gain + 2.0 * error > -budget && repeats < REPEATS_MAX;
        let may_share = ratio - 2.0 * ratio_error <= shrinks_below && repeats < REPEATS_MAX;
        let smallest = step_of(now.workers, STEP_DOWN).max(self.step_min(stage));
        let has_smaller_step = now.workers - out.workers > smallest;
        if tested_sharing && is_shared && leaves_default && may_share {
            self.hold.tests_sharing = true;
            self.hold.down.repeat();
        } else if is_open {
            self.hold.down.repeat();
        } else if is_allotted && !self.hold.needs_more && has_smaller_step {
            self.hold.needs_more = true;
            self.hold.down.elapsed = 0;
        } else if has_smaller_step && !tested_sharing {
            // A smaller step may still be free.
            self.hold.down.step = STEP_DOWN;
            self.hold.down.elapsed = 0;
        } else if is_shared
            && !tested_sharing
            && now.workers > self.floor.at(stage)
            && ratio - ratio_error <= shrinks_below
        {
            self.hold.tests_sharing = true;
            self.hold.down.repeat();
        } else {
            // These workers are needed until something changes.
            self.hold.down.step = STEP_DOWN;
            self.hold.down.back_off(DOWN_INTERVALS_MAX);
            if ratio >= NEEDED_ELASTICITY {
                self.hold.down.wait = DOWN_INTERVALS_MAX;
            }
        }
        self.rest(limit)
    }

    fn give_back(&mut self, stage: PipelineStage, workers: u16, gain: f64) {
        self.set(stage, workers);
        self.hold.relearn();
        self.hold.given_up += (-gain).max(0.0);
        self.hold.down.elapsed = 0;
        self.hold.down.wait = 4;
    }
}
