//! Test kit of the workspace: one random generator, one seed variable, one way to say that a test cannot run here.
//!
//! Crates depend on it for their tests alone.

#![forbid(unsafe_code)]

mod random;
mod requirement;

pub use random::Random;
pub use requirement::{Requirement, SKIPPED_FILE_VARIABLE, skip};
