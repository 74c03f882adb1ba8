//! Scenarios that no rule of the controller was chosen for.

use penstock_tuner::Parallelism;

use crate::path::{CapKind, PathModel, StageModel};
use crate::scenario::{ALL_STAGES, ModelScenario};

/// Scenarios of the held-out half.
#[must_use]
pub fn held_out_scenarios() -> Vec<ModelScenario> {
    let stage = |worker_mbps: f64| StageModel { worker_bps: worker_mbps * 1e6, ceiling_bps: 300e6 };
    let s5 = PathModel { read: stage(60.0), write: stage(15.0), ..PathModel::capped(30.0, 300.0) };
    let lossy = |random_loss: f64, rtt_us: u32| PathModel {
        random_loss,
        rtt_us,
        ..PathModel::capped(4000.0, 800.0)
    };
    let s2 = PathModel::capped(30.0, 700.0);
    let s8 = PathModel { background_streams: 10, ..s2 };
    vec![
        ModelScenario::steady("S2", "30 / 700 Mb/s", s2),
        ModelScenario::steady("S2n", "30 / 700 Mb/s, noise 10 %", PathModel { noise: 0.10, ..s2 }),
        ModelScenario::steady(
            "S2w",
            "window of 30 / 700 Mb/s",
            PathModel { cap: CapKind::Window, ..s2 },
        ),
        ModelScenario {
            start: Parallelism { readers: 4, streams: 4, writers: 4 },
            limits: ALL_STAGES,
            ..ModelScenario::steady("S5h", "read 60, net 30, write 15 / 300 Mb/s", s5)
        },
        ModelScenario::steady("S6h", "30 / 700, 350 Mb/s", s2)
            .then(60, PathModel { capacity_bps: 350e6, ..s2 }),
        ModelScenario::steady("S8", "S2 with 10 background streams on and off", s2)
            .then(30, s8)
            .then(70, s2),
        ModelScenario::steady("S9a", "loss 0.03 %, RTT 20 ms / 800 Mb/s", lossy(3e-4, 20_000)),
        ModelScenario::steady("S9b", "loss 0.1 %, RTT 30 ms / 800 Mb/s", lossy(1e-3, 30_000)),
        ModelScenario { intervals: 6, ..ModelScenario::steady("S11", "30 / 700 Mb/s for 3 s", s2) },
    ]
}
