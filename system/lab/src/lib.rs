//! A topology brought to life on one machine: hosts and switches as network namespaces, links with rate, delay, loss.
//!
//! For: making a lab of a [`Plan`](plan::Plan) ([`Lab`]), changing its links while traffic runs, saying how well it keeps what it
//! promises ([`Lab::calibrate`]). Not for: what runs in it, or what a topology is (`core/topology`).
//!
//! Namespaces have no names and no mounts: they go with the process that holds the lab, however it ends.
//!
//! Fails with the object (node, link, device) and the kernel's reason.

#![forbid(unsafe_code)]

mod backend;
mod calibrate;
mod circuit;
pub mod contention;
pub mod control;
mod direction;
pub mod keeper;
mod lab;
mod lateness;
pub mod line;
mod measuring;
mod node;
pub mod plan;
mod random;
pub mod scenario;
mod setting;

pub use backend::Backend;
pub use calibrate::Calibration;
pub use circuit::{CircuitPlan, LaneStatus};
pub use direction::Counters;
pub use lab::{Lab, LabError, LinkStatus};
pub use setting::{Setting, SettingError};
