//! Test kit of the workspace: one seed variable for the random generator, one way to report that a test cannot run here,
//! and topologies.
//!
//! Crates depend on it for their tests alone.

#![forbid(unsafe_code)]

mod requirement;
mod seed;
pub mod topologies;

pub use penstock_random::Random;
pub use requirement::{Requirement, SKIPPED_FILE_VARIABLE, skip};
pub use seed::{SEED_VARIABLE, properties, seed, seeded};
