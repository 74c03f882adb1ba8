//! Controller that finds the knee of the rate and holds it.
//!
//! ```text
//!            ┌────────── the rate shifted, or congestion ended ──────────┐
//!            v                                                           │
//!   Baseline ──> Doubling ──> Narrowing ──> Holding <──> Probing <──> Comparing
//!                  │  ^                       ^ │
//!                  └──┘ gained                └─┘ paired probes: before, out, back
//! ```
//!
//! Each state measures at one setting until the answer is outside the noise, or for [`INTERVALS_MAX`] intervals. A probe
//! takes the stage that [`BindingLimit`] names; where it names none, nothing grows. A step is judged by its elasticity
//! (`elasticity.rs`), a probe against the mean of the intervals before and after it. An interval without a byte is a stall
//! of the path and measures no setting (`stall.rs`). Where a doubling of the streams gains nothing, fewer are tried (`trim.rs`).
//! While it holds, streams that lose segments are paced (`pacing.rs`).

mod allotted;
mod group;
mod hold;
mod pacing;
mod probe;
mod slow;
mod stall;
mod trim;

use serde::{Deserialize, Serialize};

use crate::TransferController;
use crate::bottleneck::BindingLimit;
use crate::change_detector::RateShift;
use crate::elasticity::{elasticity, required_to_grow};
use crate::level::{NoiseMeter, RateLevel, log_rate};
use crate::parallelism::{Parallelism, PipelineStage, TuningLimits};
use crate::reason::{ChangeReason, StageChange, TunerDecision};
use crate::sample::TunerSample;
use hold::HoldState;
use pacing::{PaceCorrections, PacingState};
use probe::SHIFT_CLEAR;
use slow::JoinedSample;
use stall::StallState;

/// Fewest and most intervals measured at one setting.
const INTERVALS_MIN: u32 = 2;
const INTERVALS_MAX: u32 = 6;

/// Intervals to wait for streams to connect.
const CONNECT_INTERVALS_MAX: u32 = 10;

/// Round trips of a slow start, which are not measured, and a bound for them in intervals.
const SETTLE_ROUND_TRIPS: u64 = 10;
const SETTLE_INTERVALS_MAX: u64 = 4;

/// Elasticity of a doubling below which the knee lies within it.
const KNEE_WITHIN: f64 = 0.5;

/// Loss of rate, as a logarithm, that counts as none when the knee is narrowed.
const FLAT_LOSS: f64 = 0.025;

/// Loss of a doubling, as a logarithm, after which fewer workers than the default are worth a probe.
const CROWDED_LOSS: f64 = 0.015;

/// Margin over the predicted knee.
const KNEE_MARGIN: f64 = 1.06;

/// Most settings tried while narrowing, and most changes of the stage in one search.
const NARROWINGS_MAX: u32 = 5;
const STAGE_CHANGES_MAX: u32 = 4;

/// Loss, in deviations and as a logarithm, at which one interval is enough to reject.
const ABORT_DEVIATIONS: f64 = 4.0;
const ABORT_LOSS: f64 = 0.15;

/// Settings to begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmStart {
    /// Default of the product, below which a congested path does not push the streams.
    pub default: Parallelism,
    /// Settings that a prediction recommends; the default without one.
    pub predicted: Option<Parallelism>,
}

impl From<Parallelism> for WarmStart {
    fn from(default: Parallelism) -> Self {
        Self { default, predicted: None }
    }
}

/// State of the search.
#[derive(Debug, Clone)]
enum KneeState {
    /// Measures at the current settings.
    Baseline { level: RateLevel, may_grow: bool },
    /// Measures at twice the workers of `base`.
    Doubling { stage: PipelineStage, base: RateLevel, level: RateLevel },
    /// Measures between the last setting that gained and the first that did not.
    Narrowing {
        stage: PipelineStage,
        low: RateLevel,
        high: RateLevel,
        level: RateLevel,
        tried: u32,
    },
    /// Measures at fewer workers than those of `base`, beyond which nothing was gained.
    Trimming { stage: PipelineStage, base: RateLevel, level: RateLevel },
    /// Keeps the settings.
    Holding,
    /// Measures the setting of a paired probe.
    Probing { stage: PipelineStage, before: RateLevel, level: RateLevel },
    /// Measures again at the setting before the probe.
    Comparing { stage: PipelineStage, before: RateLevel, out: RateLevel, level: RateLevel },
    /// Measures streams whose pace is tried.
    Pacing { before: RateLevel, level: RateLevel, corrected: PaceCorrections },
}

/// Controller that transfers use.
#[derive(Debug, Clone)]
pub struct KneeController {
    limits: TuningLimits,
    floor: Parallelism,
    target: Parallelism,
    state: KneeState,
    noise: NoiseMeter,
    hold: HoldState,
    /// Intervals left that are not measured after a change.
    settling: u32,
    /// Intervals spent waiting for streams to connect.
    connecting: u32,
    /// Changes of the stage since the search began.
    stage_changes: u32,
    stall: StallState,
    /// Intervals of a slow transfer that are not measured yet.
    joined: JoinedSample,
    /// Set once more workers lost rate, or fewer gained: fewer than the default may then be better.
    is_crowded: bool,
    /// Rate, as a logarithm, of more streams than those that were found to reach a rate limit; cleared when another limit
    /// binds.
    spared: Option<f64>,
    /// Set once a rate limit kept as many streams busy at two settings: each has a cap, and fewer do not reach the limit.
    is_capped: bool,
    /// Transfers that share the search.
    transfers: u16,
    /// Greatest rate of one stream that was measured, as a logarithm.
    stream_rate: f64,
    pacing: PacingState,
    /// True until a search begins anew.
    is_first: bool,
}

impl TransferController for KneeController {
    fn observe(&mut self, sample: &TunerSample) -> TunerDecision {
        let reason = self.step(sample);
        let stream_pacing_bps = self.pacing.stream_bps();
        TunerDecision { target: self.target, stream_pacing_bps, reason }
    }

    fn name(&self) -> &'static str {
        "knee"
    }
}

impl KneeController {
    /// Creates a controller that begins at `start`.
    #[must_use]
    pub fn new(start: impl Into<WarmStart>, limits: TuningLimits) -> Self {
        let start = start.into();
        let target = limits.clamp(start.predicted.unwrap_or(start.default));
        Self {
            limits,
            floor: limits.clamp(start.default),
            target,
            state: KneeState::Baseline { level: RateLevel::default(), may_grow: true },
            noise: NoiseMeter::default(),
            hold: HoldState::default(),
            settling: 1,
            connecting: 0,
            stage_changes: 0,
            stall: StallState::default(),
            joined: JoinedSample::default(),
            is_crowded: false,
            spared: None,
            is_capped: false,
            transfers: 1,
            stream_rate: 0.0,
            pacing: PacingState::default(),
            is_first: true,
        }
    }

    /// Settings of the last decision, within the limits.
    #[must_use]
    pub const fn target(&self) -> Parallelism {
        self.target
    }

    /// Changes the limits, such as the share of a host's budget; the next decision obeys them.
    pub fn set_limits(&mut self, limits: TuningLimits) {
        self.limits = limits;
        self.floor = limits.clamp(self.floor);
        let target = limits.clamp(self.target);
        if target != self.target {
            self.target = target;
            self.restart(true);
        }
    }

    fn step(&mut self, sample: &TunerSample) -> ChangeReason {
        let Some((sample, covered)) = self.join_slow(sample) else {
            return ChangeReason::Joining;
        };
        let sample = &sample;
        if let Some(reason) = self.skip_stall(sample, covered) {
            return reason;
        }
        if !self.is_settled(sample) {
            return ChangeReason::Measuring { intervals: 0 };
        }
        if !matches!(self.state, KneeState::Baseline { .. }) {
            // A fall before the search is no noise.
            self.noise.add(sample);
        }
        match self.state.clone() {
            KneeState::Baseline { mut level, may_grow } => {
                level.add(sample);
                self.after_baseline(sample, level, may_grow)
            }
            KneeState::Doubling { stage, base, mut level } => {
                level.add(sample);
                self.after_doubling(sample, stage, base, level)
            }
            KneeState::Narrowing { stage, low, high, mut level, tried } => {
                level.add(sample);
                self.after_narrowing(stage, low, high, level, tried)
            }
            KneeState::Trimming { stage, base, mut level } => {
                level.add(sample);
                self.after_trimming(stage, base, level)
            }
            KneeState::Holding => self.hold_on(sample),
            KneeState::Probing { stage, before, mut level } => {
                level.add(sample);
                self.after_probing(stage, before, level)
            }
            KneeState::Comparing { stage, before, out, mut level } => {
                level.add(sample);
                self.after_comparing(sample, stage, before, out, level)
            }
            KneeState::Pacing { before, mut level, corrected } => {
                level.add(sample);
                self.after_pacing(before, level, corrected)
            }
        }
    }

    /// True once the streams are connected and past their slow start.
    fn is_settled(&mut self, sample: &TunerSample) -> bool {
        let is_connected = sample.active.streams == self.target.streams;
        if self.settling == 0 {
            return true;
        }
        if !is_connected && self.connecting < CONNECT_INTERVALS_MAX {
            self.connecting += 1;
            return false;
        }
        if self.settling == u32::MAX {
            let rtt_us = u64::from(sample.tcp.rtt_us.or(sample.tcp.rtt_min_us).unwrap_or(0));
            let slow_start = rtt_us * SETTLE_ROUND_TRIPS / sample.interval_us.max(1);
            self.settling = slow_start.clamp(1, SETTLE_INTERVALS_MAX) as u32;
        }
        self.settling -= 1;
        false
    }

    /// Applies `workers` at `stage`; the next intervals settle.
    fn set(&mut self, stage: PipelineStage, workers: u16) -> StageChange {
        let from = self.target.at(stage);
        self.target = self.limits.clamp(self.target.with(stage, workers));
        self.settle();
        StageChange { stage, from, to: self.target.at(stage) }
    }

    /// Leaves out the next intervals, until a change has its effect.
    fn settle(&mut self) {
        (self.settling, self.connecting) = (u32::MAX, 0);
        self.noise.interrupt();
    }

    fn restart(&mut self, may_grow: bool) {
        self.state = KneeState::Baseline { level: RateLevel::default(), may_grow };
        self.hold = HoldState::default();
        self.stage_changes = 0;
        self.is_crowded = false;
        self.is_capped = false;
        self.is_first = false;
        self.pacing.fail();
        self.noise.interrupt();
    }

    fn enter_hold(&mut self) {
        self.state = KneeState::Holding;
        self.hold = HoldState::default();
        self.stage_changes = 0;
    }

    fn after_baseline(
        &mut self,
        sample: &TunerSample,
        mut level: RateLevel,
        may_grow: bool,
    ) -> ChangeReason {
        if level.count() < INTERVALS_MIN {
            self.state = KneeState::Baseline { level, may_grow };
            return ChangeReason::Measuring { intervals: level.count() };
        }
        if level.is_falling(self.noise.sigma()) {
            // The lower rate begins the next level: a rate that alternates between two values ends the fall.
            let mut level = RateLevel::default();
            level.add(sample);
            self.state = KneeState::Baseline { level, may_grow };
            return ChangeReason::Measuring { intervals: level.count() };
        }
        let limit = self.limit_of(sample, &level);
        self.note_stream_rate(&level, self.target.streams);
        let stage = PipelineStage::Streams;
        if limit != BindingLimit::RateLimit
            && self.spared.take().is_some()
            && self.target.at(stage) < self.floor.at(stage)
        {
            let change = self.set(stage, self.floor.at(stage));
            self.state = KneeState::Baseline { level: RateLevel::default(), may_grow };
            return ChangeReason::Restored { change, limit };
        }
        match limit.stage() {
            Some(stage) if may_grow && self.has_room(stage) => {
                level.workers = self.target.at(stage);
                self.double(stage, level, limit)
            }
            _ => {
                self.enter_hold();
                self.rest(limit)
            }
        }
    }

    fn rest(&self, limit: BindingLimit) -> ChangeReason {
        match limit.stage() {
            Some(PipelineStage::Streams) if let Some(stream_bps) = self.pacing.stream_bps() => {
                ChangeReason::HoldingPace { stream_bps }
            }
            Some(_) => ChangeReason::Holding { limit },
            None => ChangeReason::Bound { limit },
        }
    }

    fn has_room(&self, stage: PipelineStage) -> bool {
        self.target.at(stage) < self.limits.max.at(stage)
    }

    fn double(
        &mut self,
        stage: PipelineStage,
        base: RateLevel,
        limit: BindingLimit,
    ) -> ChangeReason {
        let change = self.set(stage, base.workers.saturating_mul(2));
        self.state = KneeState::Doubling { stage, base, level: RateLevel::at(change.to) };
        ChangeReason::Doubling { change, limit }
    }

    /// True once `level` was measured well enough to compare its difference to `other` with `threshold`.
    fn is_decided(&self, level: &RateLevel, other: &RateLevel, threshold: f64) -> bool {
        let sigma = self.noise.sigma();
        let difference = level.mean() - other.mean();
        let is_collapse =
            difference < -ABORT_LOSS && difference < -ABORT_DEVIATIONS * sigma.max(0.02);
        let error = level.error_of_difference(other, sigma);
        let is_clear = (difference - threshold).abs() > 2.0 * error;
        is_collapse
            || level.count() >= INTERVALS_MAX
            || (level.count() >= INTERVALS_MIN && is_clear)
    }

    fn after_doubling(
        &mut self,
        sample: &TunerSample,
        stage: PipelineStage,
        base: RateLevel,
        level: RateLevel,
    ) -> ChangeReason {
        let gain = level.mean() - base.mean();
        let steps = (f64::from(level.workers) / f64::from(base.workers)).ln();
        // In a search after a change others may have changed it: an equal share allows as many as the step leads to.
        let reached = if self.is_first { base.workers } else { level.workers };
        let required = required_to_grow(reached, level.is_congested() && is_network(stage));
        if !self.is_decided(&level, &base, required * steps) {
            self.state = KneeState::Doubling { stage, base, level };
            return ChangeReason::Measuring { intervals: level.count() };
        }
        self.note_busy(&base, &level);
        self.note_stream_rate(&level, self.target.streams);
        let ratio = elasticity(gain, base.workers, level.workers);
        let limit = BindingLimit::of(sample);
        let error = level.error_of_difference(&base, self.noise.sigma());
        if let Some(next) = limit.stage().filter(|next| *next != stage && self.has_room(*next))
            && gain > -2.0 * error
            && self.stage_changes < STAGE_CHANGES_MAX
        {
            // Another stage binds now: this one has enough, and may be trimmed later.
            self.stage_changes += 1;
            let mut level = level;
            level.workers = self.target.at(next);
            return self.double(next, level, limit);
        }
        if ratio >= required && gain > 0.0 {
            let change = StageChange { stage, from: base.workers, to: level.workers };
            if ratio < KNEE_WITHIN
                && level.workers.saturating_sub(base.workers) > self.step_min(stage)
            {
                return self.narrow(stage, base, level, 0);
            }
            if limit.stage() == Some(stage) && self.has_room(stage) {
                return self.double(stage, level, limit);
            }
            self.enter_hold();
            let gain_percent = percent(gain);
            return ChangeReason::Gained { change, gain_percent, elasticity: ratio };
        }
        self.is_crowded |= gain < -CROWDED_LOSS;
        if gain < -2.0 * error || level.workers.saturating_sub(base.workers) <= self.step_min(stage)
        {
            return self.take_back(stage, base.workers, gain, required * steps);
        }
        if gain < FLAT_LOSS && is_network(stage) {
            return self.trim(stage, &base, &level, required * steps);
        }
        self.narrow(stage, base, level, 0)
    }

    /// Returns to `workers` after a step that gained less than `required`, both as logarithms.
    fn take_back(
        &mut self,
        stage: PipelineStage,
        workers: u16,
        gain: f64,
        required: f64,
    ) -> ChangeReason {
        let change = self.set(stage, workers);
        self.enter_hold();
        let (gain_percent, required_percent) = (percent(gain), percent(required));
        ChangeReason::TooLittle { change, gain_percent, required_percent }
    }

    /// Tries the knee that the rates at both ends predict: `high.rate / (low.rate / low.workers)`.
    fn narrow(
        &mut self,
        stage: PipelineStage,
        low: RateLevel,
        high: RateLevel,
        tried: u32,
    ) -> ChangeReason {
        let rate_ratio = (high.mean() - low.mean()).exp();
        let predicted = (f64::from(low.workers) * rate_ratio * KNEE_MARGIN).ceil();
        debug_assert!(high.workers - low.workers > 1, "nothing lies between");
        let workers = (predicted as u16).clamp(low.workers + 1, high.workers - 1);
        let change = self.set(stage, workers);
        let level = RateLevel::at(change.to);
        let (low_workers, high_workers) = (low.workers, high.workers);
        self.state = KneeState::Narrowing { stage, low, high, level, tried: tried + 1 };
        ChangeReason::Narrowing { change, low: low_workers, high: high_workers }
    }

    fn after_narrowing(
        &mut self,
        stage: PipelineStage,
        low: RateLevel,
        high: RateLevel,
        level: RateLevel,
        tried: u32,
    ) -> ChangeReason {
        let congested = level.is_congested() && is_network(stage);
        let flat_loss = if congested { shared_loss(&low, &high, level.workers) / 2.0 } else { 0.0 };
        let flat_loss = flat_loss.max(FLAT_LOSS);
        if !self.is_decided(&level, &high, -flat_loss) {
            self.state = KneeState::Narrowing { stage, low, high, level, tried };
            return ChangeReason::Measuring { intervals: level.count() };
        }
        let difference = level.mean() - high.mean();
        let error = level.error_of_difference(&high, self.noise.sigma());
        if difference - 3.0 * error > SHIFT_CLEAR || level.is_jumping(self.noise.sigma()) {
            // Fewer gain what no setting explains: the path has changed.
            self.restart(true);
            return ChangeReason::RateShift { percent: percent(difference) };
        }
        if difference >= -flat_loss {
            let both = high.joined(&level);
            if is_network(stage) && both.mean() - low.mean() < FLAT_LOSS {
                return self.trim(stage, &low, &both, FLAT_LOSS);
            }
            return self.verify(stage, &level);
        }
        let gain = level.mean() - low.mean();
        let required = required_to_grow(low.workers, congested);
        let error = level.error_of_difference(&low, self.noise.sigma());
        let ratio = elasticity(gain, low.workers, level.workers);
        let doubt = elasticity(error, low.workers, level.workers);
        if ratio < required && ratio + doubt >= required {
            return self.settle_at(stage, &level);
        }
        if ratio < required {
            let steps = (f64::from(level.workers) / f64::from(low.workers)).ln();
            return self.take_back(stage, low.workers, gain, required * steps);
        }
        let width = high.workers.saturating_sub(level.workers);
        if width <= (level.workers / 10).max(self.step_min(stage)) || tried >= NARROWINGS_MAX {
            return self.settle_at(stage, &high);
        }
        self.narrow(stage, level, high, tried)
    }

    fn settle_at(&mut self, stage: PipelineStage, level: &RateLevel) -> ChangeReason {
        let change = if self.target.at(stage) == level.workers {
            StageChange { stage, from: level.workers, to: level.workers }
        } else {
            self.set(stage, level.workers)
        };
        self.enter_hold();
        ChangeReason::Knee { change, rate_bps: level.rate_bps() }
    }

    fn shifted(&mut self, shift: RateShift, sample: &TunerSample, deviation: f64) -> ChangeReason {
        // After a fall on a congested path others need the room; a paired probe finds out whether they do.
        let may_grow = shift == RateShift::Rise || !crate::bottleneck::is_congested(sample);
        self.restart(may_grow);
        ChangeReason::RateShift { percent: percent(deviation) }
    }
}

/// Loss against `high`, as a logarithm, that `workers` between both have if the rate is the share `n / (n + b)` of a link
/// with `b` streams of others. Where each stream has a cap instead, the predicted knee loses nothing.
fn shared_loss(low: &RateLevel, high: &RateLevel, workers: u16) -> f64 {
    let [low_n, high_n, n] = [low.workers, high.workers, workers].map(f64::from);
    let ratio = (high.mean() - low.mean()).exp();
    let others = low_n * high_n * (ratio - 1.0) / (high_n - ratio * low_n).max(1e-3);
    if others <= 0.0 {
        return 0.0;
    }
    let share = |streams: f64| streams / (streams + others);
    (share(high_n) / share(n)).ln()
}

fn is_network(stage: PipelineStage) -> bool {
    stage == PipelineStage::Streams
}

fn percent(log_ratio: f64) -> f64 {
    (log_ratio.exp() - 1.0) * 100.0
}

/// Deviation of a sample from a level's mean.
fn deviation(sample: &TunerSample, mean: f64) -> f64 {
    log_rate(sample) - mean
}
