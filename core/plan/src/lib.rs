//! Capacity planning: what experiments move from where to where, year by year and by several models of it, and what
//! that asks of the links of a network.
//!
//! For: reading a plan ([`Plan::read`]), rates of each year ([`Plan::growth`], [`forecast`]), loads of links and when
//! they overflow ([`Loads`]), a picture of the totals ([`chart`]). Not for: sharing what is too little, which is the
//! allocation's, or running anything.
//!
//! Rates are whole bits per second; growth compounds by the year and is rounded down each time.

#![forbid(unsafe_code)]

pub mod chart;
mod file;
pub mod forecast;
mod loads;
mod model;

pub use file::FILE_BYTES_MAX;
pub use loads::{LinkLoad, Loads, LoadsError};
pub use model::{Experiment, Factor, Flow, Model, Plan, Site, Target};
