//! Host tuning for data transfer nodes: facts about a machine, rules that judge them, a plan, its application and undo.
//!
//! For: [`facts`] (of this machine or from a file), [`rules`] for a [`goal`], [`report`] (score and worst findings),
//! [`capacity`] (hardware that a rate needs), [`load`] (run queue and stalls now), [`plan`], [`apply`] with a [`journal`]
//! from which [`restore`] recovers the former values, [`persist`] over restarts.
//!
//! Not for: printing or routing. Facts, rules and plans change nothing; all changes are listed in a plan and go through
//! [`change::Tunable`], by netlink, procfs or sysfs, never by another program.
//!
//! Fails with errors that name rule and setting; facts that cannot be read are unknown, which is no failure.

#![forbid(unsafe_code)]

pub mod apply;
pub mod capacity;
pub mod change;
pub mod facts;
pub mod goal;
pub mod journal;
pub mod load;
pub mod persist;
pub mod placement;
pub mod plan;
pub mod report;
pub mod restore;
pub mod rules;
