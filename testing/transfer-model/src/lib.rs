//! Model of transfers over a shared path, on which controllers of `penstock-tuner` are compared under one seed.
//!
//! A transfer is a pipeline of readers, streams and writers; each stage has a rate for each worker and a ceiling. Streams
//! of all transfers and of the background share the link by max-min fairness. Intervals of half a second carry noise. The
//! figures say how controllers compare on this model, not how fast a real path is.

#![forbid(unsafe_code)]

mod cases;
mod contest;
pub mod held_out;
mod ideal;
mod path;
mod scenario;
mod sharing;
mod varying;
mod world;

pub use cases::{CasesSummary, ModelCase, model_case, model_cases, seeded_scenario};
pub use contest::{ContestRow, ControllerKind, contest};
pub use ideal::{best_static, ideal_rate};
pub use path::{CapKind, PathModel, StageModel};
pub use scenario::{ModelScenario, PathSegment, tuned_scenarios};
pub use sharing::{SharingResult, SharingScenario, jain, joining};
pub use varying::{PathVariation, varying_scenario};
pub use world::{ModelTransfer, TransferTrace, run};
