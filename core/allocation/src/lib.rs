//! Who gets how much of what is shared: weighted max-min fair rates over links, interfaces, storage and limits of
//! sites, with guarantees, floors, soft high-water marks, hard caps and tiers.
//!
//! For: turning a [`Problem`] into an [`Allocation`] in which every rate says what bound it, at once ([`allocate`]) or
//! kept up to date while demands come and go ([`Allocator`]); the steps in which a running transfer follows its
//! allotment ([`smoothing`]). Not for: who asks, which paths there are, or making anything so.
//!
//! Everything that limits is one kind of thing, a capacity with a name. Rates are whole bits per second. Which
//! capacity fills first is decided by comparing fractions of integers exactly, so that the same problem has the same
//! allocation, in whatever order it is written down. No problem is infeasible: guarantees and floors that do not fit
//! together shrink in proportion, and the shortfall is told.
//!
//! docs/allocation.md has the procedure, its units and worked examples. The filling is that of Bertsekas and Gallager
//! (Data Networks, 2nd ed., 6.5.2); several paths for a demand after Soroush (NSDI 2024, "adaptive waterfiller").

#![forbid(unsafe_code)]

mod allocator;
mod fill;
mod network;
mod outcome;
mod problem;
mod procedure;
pub mod smoothing;
mod weights;

pub use allocator::{Allocator, allocate};
pub use outcome::{Allocation, Allotment, Bound, ClassUse, PathShare, ResourceUse};
pub use problem::{
    Class, DEMANDS_MAX, Demand, PATHS_MAX, Policy, Problem, ProblemError, RATE_MAX, Resource,
    WEIGHT_MAX,
};
