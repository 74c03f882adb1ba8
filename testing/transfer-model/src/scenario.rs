//! Scenarios that the controller was tuned on; [`crate::held_out`] has others.

use penstock_tuner::{Parallelism, TuningLimits};

use crate::path::{CapKind, PathModel, StageModel};

/// Default of the product: four streams.
pub(crate) const START: Parallelism = Parallelism::streams(4);

/// Limits under which every stage may change.
pub(crate) const ALL_STAGES: TuningLimits = TuningLimits {
    min: Parallelism { readers: 1, streams: 1, writers: 1 },
    max: Parallelism { readers: 32, streams: 32, writers: 32 },
};

/// Path from an interval on.
#[derive(Debug, Clone, Copy)]
pub struct PathSegment {
    /// First interval on this path.
    pub from_interval: usize,
    /// Path until the next segment.
    pub path: PathModel,
}

/// Path over time, with what a transfer on it may use.
#[derive(Debug, Clone)]
pub struct ModelScenario {
    /// Identifier of the scenario set, such as `S1`.
    pub id: &'static str,
    /// Subject, in a few words.
    pub title: &'static str,
    /// Path over time, first segment at interval 0.
    pub segments: Vec<PathSegment>,
    /// Intervals of half a second.
    pub intervals: usize,
    /// Settings before the first decision: the fixed default.
    pub start: Parallelism,
    /// Limits of the operator.
    pub limits: TuningLimits,
}

impl ModelScenario {
    /// Scenario of one path for 120 s.
    #[must_use]
    pub fn steady(id: &'static str, title: &'static str, path: PathModel) -> Self {
        Self {
            id,
            title,
            segments: vec![PathSegment { from_interval: 0, path }],
            intervals: 240,
            start: START,
            limits: TuningLimits::streams_up_to(64, START),
        }
    }

    /// Changes the path at this second.
    #[must_use]
    pub(crate) fn then(mut self, at_s: usize, path: PathModel) -> Self {
        self.segments.push(PathSegment { from_interval: at_s * 2, path });
        self
    }
}

/// Scenarios of the tuned half.
#[must_use]
pub fn tuned_scenarios() -> Vec<ModelScenario> {
    let noisy = |path: PathModel| PathModel { noise: 0.10, ..path };
    let s6 = PathModel::capped(25.0, 400.0);
    let narrow = PathModel { capacity_bps: 100e6, ..s6 };
    let stage = |worker_mbps: f64| StageModel { worker_bps: worker_mbps * 1e6, ceiling_bps: 200e6 };
    let s5 = PathModel { read: stage(10.0), write: stage(40.0), ..PathModel::capped(25.0, 200.0) };
    vec![
        ModelScenario::steady("S1", "10 / 100 Mb/s", PathModel::capped(10.0, 100.0)),
        ModelScenario::steady("S3", "no cap / 400 Mb/s", PathModel::capped(4000.0, 400.0)),
        ModelScenario::steady(
            "S3c",
            "no cap / 400 Mb/s, crowding 3 %",
            PathModel { crowding: 0.03, ..PathModel::capped(4000.0, 400.0) },
        ),
        ModelScenario::steady("S4", "8 / 400 Mb/s", PathModel::capped(8.0, 400.0)),
        ModelScenario::steady(
            "S4n",
            "8 / 400 Mb/s, noise 10 %",
            noisy(PathModel::capped(8.0, 400.0)),
        ),
        ModelScenario {
            start: Parallelism { readers: 4, streams: 4, writers: 4 },
            limits: ALL_STAGES,
            ..ModelScenario::steady("S5", "read 10, net 25, write 40 / 200 Mb/s", s5)
        },
        ModelScenario::steady("S6", "25 / 400, 100, 400 Mb/s", s6).then(30, narrow).then(60, s6),
        ModelScenario::steady(
            "S12",
            "policer of 25 / 400 Mb/s",
            PathModel { cap: CapKind::Policer, ..PathModel::capped(25.0, 400.0) },
        ),
    ]
}
