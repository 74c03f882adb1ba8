//! Several transfers with the same controller on one path: what each gets.

use crate::contest::ControllerKind;
use crate::path::PathModel;
use crate::scenario::ModelScenario;
use crate::world::{ModelTransfer, TransferTrace, run_with};
use penstock_tuner::SharedController;

/// Intervals after the last join or leave before shares are judged: 60 s.
const SETTLE_INTERVALS: usize = 120;

/// Transfers that share a path.
#[derive(Debug, Clone)]
pub struct SharingScenario {
    /// Path, its start and limits.
    pub scenario: ModelScenario,
    /// First interval of each transfer, and the first without it.
    pub presence: Vec<(usize, usize)>,
}

/// Shares in the intervals from 60 s after the last change of the transfers.
#[derive(Debug, Clone, PartialEq)]
pub struct SharingResult {
    /// Name of the controller.
    pub controller: &'static str,
    /// Jain's index of the mean rates, 1 where all are equal.
    pub jain: f64,
    /// Sum of the rates over the capacity.
    pub utilisation: f64,
    /// Mean number of streams of all transfers together.
    pub streams: f64,
}

/// Transfers that join one after another, this far apart in seconds; `leaves` of them leave 60 s after the last joined.
#[must_use]
pub fn joining(
    title: &'static str,
    path: PathModel,
    transfers: usize,
    every_s: usize,
    leaves: usize,
) -> SharingScenario {
    let last_join = (transfers - 1) * every_s * 2;
    let leave = last_join + 120;
    let intervals = if leaves > 0 { leave + 240 } else { last_join + 240 };
    let presence = (0..transfers)
        .map(|at| (at * every_s * 2, if at < leaves { leave } else { intervals }))
        .collect();
    let scenario = ModelScenario { intervals, ..ModelScenario::steady("S7", title, path) };
    SharingScenario { scenario, presence }
}

/// Jain's fairness index (Jain, Chiu and Hawe, DEC-TR-301, 1984).
#[must_use]
pub fn jain(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    if squares == 0.0 { 1.0 } else { sum * sum / (rates.len() as f64 * squares) }
}

impl SharingScenario {
    /// Runs it with a controller of one kind for each transfer; the worst index, and means of the rest, over the seeds.
    #[must_use]
    pub fn run(&self, kind: ControllerKind, seeds: std::ops::Range<u64>) -> SharingResult {
        self.run_all(kind, false, seeds)
    }

    /// Runs it with one common controller, as for transfers of one host.
    #[must_use]
    pub fn run_together(&self, seeds: std::ops::Range<u64>) -> SharingResult {
        self.run_all(ControllerKind::Knee, true, seeds)
    }

    fn run_all(
        &self,
        kind: ControllerKind,
        together: bool,
        seeds: std::ops::Range<u64>,
    ) -> SharingResult {
        let changes = self.presence.iter().flat_map(|(from, to)| [*from, *to]);
        let last = changes.filter(|at| *at < self.scenario.intervals).max().unwrap_or(0);
        let judged = last + SETTLE_INTERVALS..self.scenario.intervals;
        let results: Vec<(f64, f64, f64)> =
            seeds.map(|seed| self.judge(kind, together, seed, &judged)).collect();
        let mean = |value: fn(&(f64, f64, f64)) -> f64| {
            results.iter().map(value).sum::<f64>() / results.len().max(1) as f64
        };
        SharingResult {
            controller: if together {
                "knee, one host"
            } else {
                kind.create(&self.scenario).name()
            },
            jain: results.iter().map(|result| result.0).fold(1.0, f64::min),
            utilisation: mean(|result| result.1),
            streams: mean(|result| result.2),
        }
    }

    fn judge(
        &self,
        kind: ControllerKind,
        together: bool,
        seed: u64,
        judged: &std::ops::Range<usize>,
    ) -> (f64, f64, f64) {
        let transfers = self.presence.iter().map(|(from, to)| ModelTransfer {
            from_interval: *from,
            to_interval: *to,
            ..kind.transfer(&self.scenario)
        });
        let common =
            together.then(|| SharedController::new(self.scenario.start, self.scenario.limits));
        let traces = run_with(&self.scenario, transfers.collect(), common, seed);
        let present: Vec<&TransferTrace> = traces
            .iter()
            .zip(&self.presence)
            .filter(|(_, (_, to))| *to >= judged.end)
            .map(|(trace, _)| trace)
            .collect();
        let local = |trace: &TransferTrace| {
            judged.start - trace.from_interval..judged.end - trace.from_interval
        };
        let rates: Vec<f64> = present.iter().map(|trace| trace.mean_bps(local(trace))).collect();
        let streams: f64 = present
            .iter()
            .map(|trace| {
                let part = &trace.workers[local(trace)];
                part.iter().map(|one| f64::from(one.streams)).sum::<f64>() / part.len() as f64
            })
            .sum();
        let capacity = self.scenario.segments[0].path.capacity_bps;
        (jain(&rates), rates.iter().sum::<f64>() / capacity, streams)
    }
}
