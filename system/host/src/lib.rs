//! This host as a data transfer node: facts about it, rules that judge them, a plan, its application and the way back.
//!
//! For: [`facts`] (of this machine or from a file), [`rules`] for a [`goal`], [`report`] (score and what matters most),
//! [`plan`], [`apply`] with a [`journal`] that [`restore`]s exactly what was, [`persist`] over restarts.
//!
//! Not for: printing, or the way packets take. Nothing is changed that a plan did not list. Facts, rules and plans
//! change nothing at all; a change goes through [`change::Knob`] alone, and by netlink, procfs or sysfs, never by
//! another program.
//!
//! Fails with errors that name rule and setting; facts that cannot be read are unknown, which is no failure.

#![forbid(unsafe_code)]

pub mod apply;
pub mod change;
pub mod facts;
pub mod goal;
pub mod journal;
pub mod persist;
pub mod placement;
pub mod plan;
pub mod report;
pub mod restore;
pub mod rules;
