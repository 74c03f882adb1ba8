//! Network emulation on one machine: hosts and switches as network namespaces, links with rate, delay and loss.
//!
//! For: running a [`plan::LabPlan`] ([`Lab`]), changing its links while traffic runs, measuring how well links match
//! their settings ([`Lab::calibrate`]). Not for: the programs that run in it, or topologies (`core/topology`).
//!
//! Namespaces have no names and no mounts: the kernel removes them when the supervising process ends.
//!
//! Fails with the object (node, link, device) and the kernel's error.

#![forbid(unsafe_code)]

mod backend;
mod calibrate;
mod calibration_task;
mod circuit;
pub mod contention;
pub mod control;
mod direction;
mod lab;
pub mod line;
mod node;
pub mod plan;
pub mod scenario;
mod setting;
pub mod supervisor;
mod timing_error;

pub use backend::Backend;
pub use calibrate::Calibration;
pub use circuit::{CircuitPlan, LaneStatus};
pub use direction::DirectionCounters;
pub use lab::{DirectionStatus, Lab, LabError};
pub use setting::{LinkSetting, LinkSettingError, LinkSettingFault};
