//! Test kit of the workspace: one seed variable for the random generator, one way to report that a test cannot run here,
//! topologies, devices of software RoCE, waiting and raw exchanges over TCP.
//!
//! The feature `services` adds what tests of whole programs need: processes, trees of files, the client of HTTP, a
//! fault-injecting proxy, certificates and a PostgreSQL server. Crates depend on the kit for their tests alone.

#![forbid(unsafe_code)]

#[cfg(feature = "services")]
pub mod certificates;
#[cfg(feature = "services")]
pub mod files;
#[cfg(feature = "services")]
pub mod http;
#[cfg(feature = "services")]
pub mod postgres;
#[cfg(feature = "services")]
pub mod process;
#[cfg(feature = "services")]
pub mod proxy;
pub mod raw;
mod requirement;
pub mod roce;
mod seed;
pub mod topologies;
mod wait;

pub use penstock_random::Random;
pub use requirement::{
    Requirement, SKIPPED_FILE_VARIABLE, is_installed, is_root, missing_program, skip,
};
pub use seed::{SEED_VARIABLE, properties, seed, seeded};
pub use wait::wait_until;
