//! Controllers that choose the parallelism of a running transfer from what it measures.
//!
//! A caller feeds one [`TunerSample`] per interval to a [`TransferController`] and applies the target of each
//! [`TunerDecision`]. [`KneeController`] is the one that transfers use: it doubles the bottleneck's workers while the rate
//! follows, finds the knee, holds it with paired probes, and searches again after a change. [`peers`] holds the published
//! controllers that it is compared with. No clock, no I/O and no randomness: equal samples give equal decisions, so that a
//! recorded trace can be replayed.

#![forbid(unsafe_code)]

mod bottleneck;
mod change_detector;
mod elasticity;
mod host_share;
mod knee;
mod level;
mod mode;
mod parallelism;
pub mod peers;
mod reason;
mod sample;

pub use bottleneck::BindingLimit;
pub use host_share::{MemberSample, SharedController, SharedDecision, StreamsDemand, share_budget};
pub use knee::{KneeController, WarmStart};
pub use mode::TuningMode;
pub use parallelism::{Parallelism, PipelineStage, TuningLimits};
pub use reason::{ChangeReason, StageChange, TunerDecision};
pub use sample::{QueueShares, TcpDifferences, TunerSample};

/// Controller of one transfer.
pub trait TransferController {
    /// Takes the measurements of one interval and returns the parallelism for the next one.
    fn observe(&mut self, sample: &TunerSample) -> TunerDecision;

    /// Name in tables and traces, such as `knee`.
    fn name(&self) -> &'static str;
}
