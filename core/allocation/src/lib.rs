//! Weighted max-min fair rates over links, interfaces, storage and site limits, with guarantees, floors, soft
//! high-water marks, hard caps and tiers.
//!
//! [`allocate`] turns a [`Problem`] into an [`Allocation`] in which each rate names its bottleneck; [`Allocator`] keeps
//! one up to date while demands come and go; [`smoothing`] steps a running transfer towards its rate. Finding paths,
//! admitting demands and enforcing rates are the caller's.
//!
//! Every limit is a named capacity. Rates are whole bits per second. Levels at which capacities fill are compared as
//! exact integer fractions, so the allocation does not depend on the order of the input. No problem is infeasible:
//! guarantees and floors that do not fit together shrink in proportion, and the result reports the shortfall.
//!
//! docs/allocation.md has the procedure, its units and worked examples. Progressive filling after Bertsekas and
//! Gallager (Data Networks, 2nd ed., 6.5.2); multiple paths per demand after Soroush (NSDI 2024, "adaptive
//! waterfiller").

#![forbid(unsafe_code)]

mod allocator;
mod fill;
mod levels;
mod network;
mod outcome;
mod paths;
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
