//! Paths that change while a transfer runs, each from its seed: traces of them train and test models of sequences.
//!
//! The frequency of each kind of change is chosen, not measured on a network: figures on these traces compare models, and
//! say nothing about real paths.

use penstock_random::Random;

use crate::cases::seeded_scenario;
use crate::path::{PathModel, StageModel};
use crate::scenario::{ModelScenario, PathSegment};
use crate::world::INTERVAL_US;

/// Cause of the changes of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathVariation {
    /// One change of the capacity at most.
    Steady,
    /// Streams of others that come and go.
    Background,
    /// Storage that writes back its cache in bursts, at intervals.
    Stalls,
    /// Capacity that wanders.
    Drift,
}

impl PathVariation {
    /// All of them; a seed has that of its remainder.
    pub const ALL: [Self; 4] = [Self::Steady, Self::Background, Self::Stalls, Self::Drift];

    /// Name in the field `variation` of traces, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Background => "background",
            Self::Stalls => "stalls",
            Self::Drift => "drift",
        }
    }
}

/// Length of the scenarios, in intervals: 160 s.
const VARYING_INTERVALS: usize = 320;

/// Scenario of a seed, with its variation.
#[must_use]
pub fn varying_scenario(seed: u64) -> (ModelScenario, PathVariation) {
    let variation = PathVariation::ALL[(seed % PathVariation::ALL.len() as u64) as usize];
    let (mut scenario, _) = seeded_scenario(seed);
    let mut random = Random::named(seed, "varying path");
    let mut between = |low: f64, high: f64| low + (high - low) * random.unit();
    let (noise, noise_correlation) = (between(0.02, 0.20), between(0.0, 0.6));
    for segment in &mut scenario.segments {
        segment.path = PathModel { noise, noise_correlation, ..segment.path };
    }
    scenario.intervals = VARYING_INTERVALS;
    let path = scenario.segments[0].path;
    match variation {
        PathVariation::Steady => {}
        PathVariation::Background => scenario.segments = background(path, &mut random),
        PathVariation::Stalls => scenario.segments = stalls(path, &mut random),
        PathVariation::Drift => scenario.segments = drift(path, &mut random),
    }
    (scenario, variation)
}

/// Intervals of an exponential duration with this mean in seconds, at least one.
fn intervals(random: &mut Random, mean_s: f64) -> usize {
    (random.exponential(mean_s) * 1e6 / INTERVAL_US as f64).ceil().max(1.0) as usize
}

fn background(path: PathModel, random: &mut Random) -> Vec<PathSegment> {
    let (on_s, off_s) = (random.between(5, 40) as f64, random.between(5, 40) as f64);
    let (mut from_interval, mut is_on) = (0, random.chance(0.5));
    let mut segments = Vec::new();
    while from_interval < VARYING_INTERVALS {
        let background_streams = if is_on { random.between(1, 17) as u16 } else { 0 };
        segments
            .push(PathSegment { from_interval, path: PathModel { background_streams, ..path } });
        from_interval += intervals(random, if is_on { on_s } else { off_s });
        is_on = !is_on;
    }
    segments
}

/// Every 4 to 12 s the storage writes with a small share of its rate for 0.5 to 2 s.
fn stalls(path: PathModel, random: &mut Random) -> Vec<PathSegment> {
    let (period, length) = (random.between(8, 25) as usize, random.between(1, 5) as usize);
    let ceiling_bps = path.capacity_bps * (0.05 + 0.45 * random.unit());
    let write = StageModel { worker_bps: ceiling_bps, ceiling_bps };
    let mut from_interval = random.below(period as u64) as usize;
    let mut segments = vec![PathSegment { from_interval: 0, path }];
    while from_interval < VARYING_INTERVALS {
        segments.push(PathSegment { from_interval, path: PathModel { write, ..path } });
        segments.push(PathSegment { from_interval: from_interval + length, path });
        // Some periods are half a second longer.
        from_interval += period + usize::from(random.one_in(8));
    }
    segments
}

/// The logarithm of the capacity wanders and returns to its mean (an Ornstein-Uhlenbeck process).
fn drift(path: PathModel, random: &mut Random) -> Vec<PathSegment> {
    let kept = 1.0 - 1.0 / random.between(10, 120) as f64;
    let deviation = 0.1 + 0.4 * random.unit();
    let step = deviation * (1.0 - kept * kept).sqrt();
    let mut level = deviation * random.normal();
    let segment = |from_interval| {
        let capacity_bps = path.capacity_bps * level.exp();
        level = kept * level + step * random.normal();
        PathSegment { from_interval, path: PathModel { capacity_bps, ..path } }
    };
    (0..VARYING_INTERVALS).map(segment).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contest::ControllerKind;
    use crate::world::run;

    #[test]
    fn equal_seeds_give_equal_traces() {
        for seed in 0..8 {
            let (scenario, variation) = varying_scenario(seed);
            let again = varying_scenario(seed).0;
            let trace = |scenario: &ModelScenario| {
                run(scenario, vec![ControllerKind::Knee.transfer(scenario)], seed).remove(0)
            };
            let (one, other) = (trace(&scenario), trace(&again));
            assert_eq!(one.rate_bps, other.rate_bps, "{variation:?}");
            assert_eq!(one.rate_bps.len(), VARYING_INTERVALS);
            assert!(one.rate_bps.iter().all(|rate| *rate > 0.0), "{variation:?}");
        }
    }

    #[test]
    fn segments_follow_each_other() {
        for seed in 0..64 {
            let (scenario, variation) = varying_scenario(seed);
            let starts: Vec<usize> =
                scenario.segments.iter().map(|segment| segment.from_interval).collect();
            assert_eq!(starts[0], 0, "{variation:?}");
            assert!(starts.is_sorted(), "{variation:?} {starts:?}");
        }
    }
}
