//! Exhaustive search of the best settings: what no controller can exceed on this model.

use penstock_tuner::{Parallelism, TuningLimits};

use crate::path::{Offered, PathModel, share};
use crate::scenario::ModelScenario;
use crate::world::segment_at;

/// Settings within the limits: every number of streams, and every number of the other workers where they limit.
fn settings(limits: &TuningLimits) -> impl Iterator<Item = Parallelism> + '_ {
    let range = |low: u16, high: u16| low.max(1)..=high;
    range(limits.min.streams, limits.max.streams).flat_map(move |streams| {
        range(limits.min.readers, limits.max.readers).flat_map(move |readers| {
            range(limits.min.writers, limits.max.writers).map(move |writers| Parallelism {
                readers,
                streams,
                writers,
            })
        })
    })
}

fn rate_of(path: &PathModel, workers: Parallelism) -> f64 {
    let streams = f64::from(workers.streams);
    let offered = Offered { workers, streams, pace_bps: f64::INFINITY };
    share(path, &[offered])[0].rate_bps
}

/// Best rate of one transfer on a path, and the fewest streams that reach it within a thousandth.
#[must_use]
pub fn ideal_rate(path: &PathModel, limits: &TuningLimits) -> (f64, u16) {
    let best = settings(limits).map(|workers| rate_of(path, workers)).fold(0.0, f64::max);
    let enough = settings(limits).find(|workers| rate_of(path, *workers) >= 0.999 * best);
    (best, enough.map_or(1, |workers| workers.streams))
}

/// Best settings that never change, and their mean rate over a scenario.
#[must_use]
pub fn best_static(scenario: &ModelScenario) -> (Parallelism, f64) {
    let mut weights: Vec<(PathModel, f64)> = Vec::new();
    for interval in 0..scenario.intervals {
        let path = *segment_at(&scenario.segments, interval);
        match weights.last_mut() {
            Some((last, weight)) if *last == path => *weight += 1.0,
            _ => weights.push((path, 1.0)),
        }
    }
    let mean = |workers: Parallelism| {
        let sum: f64 = weights.iter().map(|(path, weight)| rate_of(path, workers) * weight).sum();
        sum / scenario.intervals as f64
    };
    settings(&scenario.limits)
        .map(|workers| (workers, mean(workers)))
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .expect("limits hold at least one setting")
}
