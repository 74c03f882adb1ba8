//! All controllers on one scenario, in one table.

use penstock_tuner::peers::{
    AimdController, FalconLikeController, FixedController, FtsLikeController,
};
use penstock_tuner::{KneeController, TransferController};

use crate::ideal::{best_static, ideal_rate};
use crate::scenario::ModelScenario;
use crate::world::{ModelTransfer, TransferTrace, run, segment_at};

/// Controllers of a contest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControllerKind {
    /// The product's.
    Knee,
    /// The default without a tuner.
    Fixed,
    /// Gradient over a utility.
    Falcon,
    /// One step a minute.
    Fts,
    /// Additive increase, multiplicative decrease.
    Aimd,
}

impl ControllerKind {
    /// Every controller, the product's first.
    pub const ALL: [Self; 5] = [Self::Knee, Self::Fixed, Self::Falcon, Self::Fts, Self::Aimd];

    /// Creates the controller with the start and limits of a scenario.
    #[must_use]
    pub fn create(self, scenario: &ModelScenario) -> Box<dyn TransferController> {
        let (start, limits) = (scenario.start, scenario.limits);
        match self {
            Self::Knee => Box::new(KneeController::new(start, limits)),
            Self::Fixed => Box::new(FixedController::new(start)),
            Self::Falcon => Box::new(FalconLikeController::new(limits)),
            Self::Fts => Box::new(FtsLikeController::new(start, limits)),
            Self::Aimd => Box::new(AimdController::new(start, limits)),
        }
    }

    /// Returns a transfer with this controller for the whole scenario.
    #[must_use]
    pub fn transfer(self, scenario: &ModelScenario) -> ModelTransfer {
        ModelTransfer {
            controller: self.create(scenario),
            start: scenario.start,
            from_interval: 0,
            to_interval: scenario.intervals,
        }
    }
}

/// Result of one controller on one scenario; medians over the seeds.
#[derive(Debug, Clone, PartialEq)]
pub struct ContestRow {
    /// Name of the controller.
    pub controller: &'static str,
    /// Seconds until the true rate first reaches 90 % of the best on the first path; none if it never does.
    pub t90_s: Option<f64>,
    /// Mean rate over the last half of each path's time, as a share of the best rate there.
    pub steady: f64,
    /// 1 − mean rate over that of the best settings that never change.
    pub regret: f64,
    /// Mean rate over that of the fixed default, all probes included.
    pub over_default: f64,
    /// Mean number of streams over the last half.
    pub streams: f64,
}

/// Runs every controller on a scenario, once for each seed.
#[must_use]
pub fn contest(scenario: &ModelScenario, seeds: std::ops::Range<u64>) -> Vec<ContestRow> {
    let (_, static_bps) = best_static(scenario);
    let default = run(scenario, vec![ControllerKind::Fixed.transfer(scenario)], 0).remove(0);
    let default_bps = default.mean_bps(0..scenario.intervals);
    let row = |kind: ControllerKind| {
        let traces: Vec<TransferTrace> = seeds
            .clone()
            .map(|seed| run(scenario, vec![kind.transfer(scenario)], seed).remove(0))
            .collect();
        let over =
            |value: &dyn Fn(&TransferTrace) -> f64| median(traces.iter().map(value).collect());
        let t90_s = over(&|trace| t90_s(scenario, trace).unwrap_or(f64::INFINITY));
        let mean = |trace: &TransferTrace| trace.mean_bps(0..scenario.intervals);
        ContestRow {
            controller: kind.create(scenario).name(),
            t90_s: Some(t90_s).filter(|time| time.is_finite()),
            steady: over(&|trace| steady_share(scenario, trace)),
            regret: over(&|trace| 1.0 - mean(trace) / static_bps),
            over_default: over(&|trace| mean(trace) / default_bps),
            streams: over(&mean_streams),
        }
    };
    ControllerKind::ALL.into_iter().map(row).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Seconds until the true rate first reaches 90 % of the best rate of the first path.
pub(crate) fn t90_s(scenario: &ModelScenario, trace: &TransferTrace) -> Option<f64> {
    let (best, _) = ideal_rate(segment_at(&scenario.segments, 0), &scenario.limits);
    let at = trace.rate_bps.iter().position(|rate| *rate >= 0.9 * best)?;
    Some((at + 1) as f64 / 2.0)
}

/// Mean over the paths of a scenario of the share of the best rate, in the last half of each path's time.
pub(crate) fn steady_share(scenario: &ModelScenario, trace: &TransferTrace) -> f64 {
    let ends = scenario.segments.iter().skip(1).map(|segment| segment.from_interval);
    let ends = ends.chain(std::iter::once(scenario.intervals));
    let shares: Vec<f64> = scenario
        .segments
        .iter()
        .zip(ends)
        .map(|(segment, end)| {
            let half = segment.from_interval + (end - segment.from_interval) / 2;
            let (best, _) = ideal_rate(&segment.path, &scenario.limits);
            trace.mean_bps(half..end) / best
        })
        .collect();
    shares.iter().sum::<f64>() / shares.len() as f64
}

fn mean_streams(trace: &TransferTrace) -> f64 {
    let half = &trace.workers[trace.workers.len() / 2..];
    half.iter().map(|workers| f64::from(workers.streams)).sum::<f64>() / half.len().max(1) as f64
}
