//! Controller that never changes anything: the default without a tuner.

use crate::TransferController;
use crate::bottleneck::BindingLimit;
use crate::parallelism::Parallelism;
use crate::reason::{ChangeReason, TunerDecision};
use crate::sample::TunerSample;

/// Controller whose settings never change.
#[derive(Debug, Clone)]
pub struct FixedController(Parallelism);

impl FixedController {
    /// Creates a controller that keeps `settings`.
    #[must_use]
    pub const fn new(settings: Parallelism) -> Self {
        Self(settings)
    }
}

impl TransferController for FixedController {
    fn observe(&mut self, sample: &TunerSample) -> TunerDecision {
        let limit = BindingLimit::of(sample);
        TunerDecision {
            target: self.0,
            stream_pacing_bps: None,
            reason: ChangeReason::Holding { limit },
        }
    }

    fn name(&self) -> &'static str {
        "fixed"
    }
}
