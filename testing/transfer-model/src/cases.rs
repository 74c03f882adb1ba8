//! Random cases of the model, each from its seed.

use penstock_random::Random;
use penstock_tuner::{Parallelism, TuningLimits};

use crate::contest::{ControllerKind, steady_share, t90_s};
use crate::ideal::ideal_rate;
use crate::path::{CapKind, PathModel, StageModel};
use crate::scenario::{ModelScenario, PathSegment};
use crate::world::run;

/// Outcome of one random case.
#[derive(Debug, Clone)]
pub struct ModelCase {
    /// Path of the case; the seed alone gives it.
    pub path: PathModel,
    /// True if the path or its capacity changes halfway.
    pub changes: bool,
    /// Fewest streams that reach the best rate of the first path.
    pub optimum: u16,
    /// Seconds to 90 % of the best rate.
    pub t90_s: Option<f64>,
    /// Share of the best rate in the last half of each path's time.
    pub steady: f64,
    /// Rate over that of the fixed default.
    pub over_default: f64,
}

impl ModelCase {
    /// True if no others share the path: with others, the best rate is theirs, too.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.path.background_streams == 0
    }
}

/// Figures over many cases.
#[derive(Debug, Clone)]
pub struct CasesSummary {
    /// Number of cases without others on the path.
    pub alone: usize,
    /// Share of these that hold at least 0.97 of the best rate, and the least of all.
    pub steady_097: f64,
    /// Smallest share of the best rate.
    pub steady_min: f64,
    /// Mean share of the best rate.
    pub steady_mean: f64,
    /// Cases alone with an optimum up to 32 that need more than ten seconds to 90 % of the best rate.
    pub late: usize,
    /// Smallest rate over that of the fixed default, of all cases, with its seed.
    pub over_default_min: (u64, f64),
}

/// Runs the cases of these seeds.
#[must_use]
pub fn model_cases(seeds: std::ops::Range<u64>) -> CasesSummary {
    let cases: Vec<(u64, ModelCase)> = seeds.map(|seed| (seed, model_case(seed))).collect();
    let alone: Vec<&ModelCase> =
        cases.iter().map(|(_, case)| case).filter(|case| case.is_alone()).collect();
    let count = alone.len().max(1) as f64;
    let is_late = |case: &&&ModelCase| case.t90_s.is_none_or(|time| time > 10.0);
    let over_default = cases.iter().map(|(seed, case)| (*seed, case.over_default));
    CasesSummary {
        alone: alone.len(),
        steady_097: alone.iter().filter(|case| case.steady >= 0.97).count() as f64 / count,
        steady_min: alone.iter().map(|case| case.steady).fold(f64::INFINITY, f64::min),
        steady_mean: alone.iter().map(|case| case.steady).sum::<f64>() / count,
        late: alone.iter().filter(|case| case.optimum <= 32).filter(is_late).count(),
        over_default_min: over_default.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, f64::NAN)),
    }
}

/// Runs the product's controller on the case of this seed.
#[must_use]
pub fn model_case(seed: u64) -> ModelCase {
    let (scenario, changes) = seeded_scenario(seed);
    let path = scenario.segments[0].path;
    let auto = run(&scenario, vec![ControllerKind::Knee.transfer(&scenario)], seed).remove(0);
    let fixed = run(&scenario, vec![ControllerKind::Fixed.transfer(&scenario)], seed).remove(0);
    let all = 0..scenario.intervals;
    ModelCase {
        path,
        changes,
        optimum: ideal_rate(&path, &scenario.limits).1,
        t90_s: t90_s(&scenario, &auto),
        steady: steady_share(&scenario, &auto),
        over_default: auto.mean_bps(all.clone()) / fixed.mean_bps(all),
    }
}

/// Scenario of a seed, and true if its path changes halfway.
#[must_use]
pub fn seeded_scenario(seed: u64) -> (ModelScenario, bool) {
    let mut random = Random::named(seed, "transfer model");
    let mut between = |low: f64, high: f64| low + (high - low) * random.unit();
    let capacity_bps = 1e8 * 10_f64.powf(between(0.0, 2.0));
    // Optima from one to 48 streams, evenly in their logarithm.
    let knee = 48_f64.powf(between(0.0, 1.0));
    let kind = between(0.0, 10.0);
    let mut path = PathModel {
        stream_bps: capacity_bps / knee,
        capacity_bps,
        cap: match between(0.0, 3.0) as u8 {
            0 => CapKind::Window,
            1 => CapKind::Shaper,
            _ => CapKind::Policer,
        },
        rtt_us: (1_000.0 * 100_f64.powf(between(0.0, 1.0))) as u32,
        crowding: between(0.0, 0.04),
        noise: between(0.01, 0.08),
        noise_correlation: between(0.0, 0.4),
        ..PathModel::capped(1.0, 1.0)
    };
    match kind as u8 {
        0 => path.background_streams = between(1.0, 16.0) as u16,
        1 => path.cpu_bps = capacity_bps * between(0.1, 1.0),
        2 => path.limit_bps = capacity_bps * between(0.1, 1.0),
        3 => {
            let ceiling_bps = capacity_bps * between(0.2, 1.2);
            path.write = StageModel { worker_bps: ceiling_bps, ceiling_bps };
        }
        _ => {}
    }
    let start = Parallelism::streams(between(2.0, 9.0) as u16);
    let mut scenario = ModelScenario {
        start,
        limits: TuningLimits::streams_up_to(64, start),
        intervals: 200,
        ..ModelScenario::steady("seeded", "", path)
    };
    let changes = between(0.0, 1.0) < 0.25;
    if changes {
        let factor = 2_f64.powf(between(-1.5, 1.5));
        let later = PathModel { capacity_bps: path.capacity_bps * factor, ..path };
        scenario.segments.push(PathSegment { from_interval: 100, path: later });
    }
    (scenario, changes)
}
