//! Capacity planning: the traffic of experiments between sites, year by year and by several traffic models,
//! and the load that it puts on the links of a topology.
//!
//! For: reading a plan ([`DemandPlan::read`]), rates of each year ([`DemandPlan::growth`], [`forecast`]),
//! loads of links and the year in which they overflow ([`LinkLoads`]), a chart of the totals ([`chart`]). Not
//! for: dividing insufficient capacity (`core/allocation`).
//!
//! Rates are whole bits per second; growth compounds yearly and is rounded down each year.

#![forbid(unsafe_code)]

pub mod chart;
mod file;
pub mod forecast;
mod loads;
mod model;

pub use file::FILE_BYTES_MAX;
pub use loads::{LinkLoad, LinkLoads, LoadsError};
pub use model::{
    DemandPlan, ExperimentDemand, FlowTarget, PlanSite, PlannedFlow, RateFactor, TrafficModel,
};
