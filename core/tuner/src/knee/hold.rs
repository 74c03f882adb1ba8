//! Holding state: watches for changes and times the paired probes.

use std::collections::VecDeque;

use super::allotted::is_allotted;
use super::{KneeController, deviation};
use crate::bottleneck::{BindingLimit, is_congested};
use crate::change_detector::ChangeDetector;
use crate::level::{RateLevel, log_rate};
use crate::parallelism::PipelineStage;
use crate::reason::ChangeReason;
use crate::sample::TunerSample;

/// Intervals before a probe, which double up to a bound for each probe that changes nothing. Probes with more streams
/// cost nothing but fairness, those with fewer cost rate.
const PROBE_INTERVALS: u32 = 8;
pub(super) const UP_INTERVALS_MAX: u32 = 16;
pub(super) const DOWN_INTERVALS_MAX: u32 = 128;

/// Latest samples that a probe compares with.
const BEFORE_SAMPLES: usize = 4;

/// Samples that make the reference of the change detector.
const REFERENCE_SAMPLES: u32 = 4;

/// Weight of a sample in a reference that has these, so that it follows slow drifts.
const REFERENCE_GAIN: f64 = 0.05;

/// Schedule and memory of the probes in one direction.
#[derive(Debug, Clone)]
pub(super) struct ProbeSchedule {
    /// Intervals since the last probe.
    pub(super) elapsed: u32,
    /// Intervals to wait between two probes.
    pub(super) wait: u32,
    /// Size of a step as a share of the workers.
    pub(super) step: f64,
    /// Setting that `outcomes` compares with the present one.
    pub(super) to: u16,
    /// Sum of differences of logarithms, and of their variances, over the probes of this setting.
    pub(super) outcomes: (f64, f64, u32),
}

impl ProbeSchedule {
    fn new(step: f64) -> Self {
        Self { elapsed: 0, wait: PROBE_INTERVALS, step, to: 0, outcomes: (0.0, 0.0, 0) }
    }

    fn is_due(&self) -> bool {
        self.elapsed >= self.wait
    }

    /// Adds a probe's difference; returns the mean of all probes of this setting, its standard error and their number.
    pub(super) fn add(&mut self, to: u16, difference: f64, error: f64) -> (f64, f64, u32) {
        if self.to != to {
            (self.to, self.outcomes) = (to, (0.0, 0.0, 0));
        }
        self.outcomes.0 += difference;
        self.outcomes.1 += error * error;
        self.outcomes.2 += 1;
        let count = f64::from(self.outcomes.2);
        (self.outcomes.0 / count, self.outcomes.1.sqrt() / count, self.outcomes.2)
    }

    /// Waits longer after a probe that changed nothing.
    pub(super) fn back_off(&mut self, intervals_max: u32) {
        self.elapsed = 0;
        self.wait = (self.wait * 2).min(intervals_max);
        self.outcomes = (0.0, 0.0, 0);
    }

    /// Repeats a probe soon whose answer lies within the noise.
    pub(super) fn repeat(&mut self) {
        self.elapsed = self.wait.saturating_sub(PROBE_INTERVALS);
    }
}

/// Memory of the holding state.
#[derive(Debug, Clone)]
pub(super) struct HoldState {
    recent: VecDeque<TunerSample>,
    reference: f64,
    reference_count: u32,
    was_congested: bool,
    detector: ChangeDetector,
    pub(super) up: ProbeSchedule,
    pub(super) down: ProbeSchedule,
    /// Loss, as a logarithm, that fewer workers have cost since the search.
    pub(super) given_up: f64,
    /// True while the next probe downwards tests a shared link with a large step.
    pub(super) tests_sharing: bool,
    /// True once half of the streams did not reach a rate limit.
    pub(super) needs_more: bool,
}

/// Step of a probe upwards, of one downwards, and of one that tests a shared link.
pub(super) const STEP_UP: f64 = 0.25;
pub(super) const STEP_DOWN: f64 = 0.10;
pub(super) const STEP_DOWN_MAX: f64 = 0.50;
pub(super) const STEP_SHARED: f64 = 0.25;

/// Step of a probe downwards above which transfers that share the search do without.
const STEP_COARSE: f64 = 0.15;

impl Default for HoldState {
    fn default() -> Self {
        Self {
            recent: VecDeque::with_capacity(BEFORE_SAMPLES),
            reference: 0.0,
            reference_count: 0,
            was_congested: false,
            detector: ChangeDetector::default(),
            up: ProbeSchedule::new(STEP_UP),
            down: ProbeSchedule::new(STEP_DOWN),
            given_up: 0.0,
            tests_sharing: false,
            needs_more: false,
        }
    }
}

impl HoldState {
    /// Forgets the level after a change of settings; schedules stay.
    pub(super) fn relearn(&mut self) {
        self.recent.clear();
        self.reference_count = 0;
        self.detector = ChangeDetector::default();
    }

    fn add(&mut self, sample: &TunerSample) {
        if self.recent.len() == BEFORE_SAMPLES {
            self.recent.pop_front();
        }
        self.recent.push_back(*sample);
        self.reference_count += 1;
        let gain = REFERENCE_GAIN.max(1.0 / f64::from(self.reference_count));
        self.reference += gain * (log_rate(sample) - self.reference);
        if self.reference_count == REFERENCE_SAMPLES {
            self.was_congested = self.before(0).is_congested();
        }
    }

    /// Second highest rate of the latest samples, in bits per second: without its dips, and its one peak.
    pub(super) fn high_rate_bps(&self) -> f64 {
        let mut rates: Vec<f64> = self.recent.iter().map(TunerSample::rate_bps).collect();
        rates.sort_by(|a, b| b.total_cmp(a));
        rates.get(1).or(rates.first()).copied().unwrap_or_default()
    }

    pub(super) fn before(&self, workers: u16) -> RateLevel {
        let mut level = RateLevel::at(workers);
        self.recent.iter().for_each(|sample| level.add(sample));
        level
    }
}

impl KneeController {
    pub(super) fn hold_on(&mut self, sample: &TunerSample) -> ChangeReason {
        let sigma = self.noise.sigma();
        let has_reference = self.hold.reference_count >= REFERENCE_SAMPLES;
        if has_reference {
            let off = deviation(sample, self.hold.reference);
            self.noise.add_deviation(off);
            if let Some(shift) = self.hold.detector.observe(off, sigma) {
                return self.shifted(shift, sample, off);
            }
        }
        self.hold.add(sample);
        self.hold.up.elapsed += 1;
        self.hold.down.elapsed += 1;
        let limit = self.limit_of(sample, &self.hold.before(0));
        if self.hold.reference_count < REFERENCE_SAMPLES {
            return self.rest(limit);
        }
        if self.hold.was_congested
            && !self.pacing.is_on()
            && self.hold.up.elapsed >= PROBE_INTERVALS
            && limit.stage().is_some()
            && !self.hold.recent.iter().any(is_congested)
        {
            self.restart(true);
            return ChangeReason::CongestionEnded;
        }
        if let Some(reason) = self.pace_if_due(limit) {
            return reason;
        }
        // Paced streams would hide what a probe gains.
        let probed = if self.pacing.is_on() { None } else { self.probe_if_due(limit) };
        probed.unwrap_or_else(|| self.rest(limit))
    }

    fn probe_if_due(&mut self, limit: BindingLimit) -> Option<ChangeReason> {
        let is_stable = !self.hold.detector.is_falling();
        if self.hold.down.is_due()
            && let Some(stage) = self.stage_to_shrink(limit)
        {
            let now = self.target.at(stage);
            let before = self.hold.before(now);
            let lowest = self.lowest(stage, limit);
            let to = match () {
                () if is_allotted(stage, limit) => self.fewest_busy(&before),
                () if self.hold.tests_sharing => now.saturating_sub(step_of(now, STEP_SHARED)),
                () => now.saturating_sub(step_of(now, self.hold.down.step)),
            };
            let to = to.min(now.saturating_sub(self.step_min(stage))).max(lowest);
            // With few streams for each of several transfers a step of one for each is too large to be free.
            let is_coarse = self.step_min(stage) > 1
                && !is_allotted(stage, limit)
                && f64::from(now - to) > f64::from(now) * STEP_COARSE;
            if to < now && !is_coarse {
                return Some(self.probe(stage, before, to));
            }
            self.hold.down.back_off(DOWN_INTERVALS_MAX);
        }
        let stage = limit.stage().filter(|stage| is_stable && self.has_room(*stage))?;
        if !self.hold.up.is_due() {
            return None;
        }
        let now = self.target.at(stage);
        let to = now.saturating_add(step_of(now, self.hold.up.step).max(self.step_min(stage)));
        Some(self.probe(stage, self.hold.before(now), to))
    }

    /// Fewest workers that a probe tries: those of the default, unless fewer are better or reach the rate limit.
    fn lowest(&self, stage: PipelineStage, limit: BindingLimit) -> u16 {
        let is_below = self.is_crowded || is_allotted(stage, limit);
        let lowest = if is_below { &self.limits.min } else { &self.floor };
        lowest.at(stage).max(1)
    }

    /// Stage with workers to spare: not the one that binds, unless the path is congested.
    fn stage_to_shrink(&self, limit: BindingLimit) -> Option<PipelineStage> {
        let has_spare = |stage: &PipelineStage| self.target.at(*stage) > self.lowest(*stage, limit);
        let binds =
            |stage: &PipelineStage| limit.stage() == Some(*stage) && !self.hold.was_congested;
        // The stage with the most workers first: it costs the hosts most.
        let stages = PipelineStage::ALL.into_iter().filter(has_spare);
        stages.filter(|stage| !binds(stage)).max_by_key(|stage| self.target.at(*stage))
    }
}

/// Workers of a step, at least one.
pub(super) fn step_of(workers: u16, share: f64) -> u16 {
    ((f64::from(workers) * share).round() as u16).max(1)
}
