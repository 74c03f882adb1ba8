//! Deterministic simulation of the control plane under faults.
//!
//! One seed determines a network, requests, clients' calls and faults. The controller's store and rounds, the agents'
//! execution of orders, their messages and the mover's protocol are production code in virtual time; simulated are hosts,
//! files and connections ([`data_plane`]), the network between agents and controller, and the clock. After each step [`invariants`] holds the
//! promises of SPECIFICATION.md against the state of everyone; a violation is a [`InvariantViolation`], which its seed reproduces.
//!
//! Start reading at [`world`], the event loop. docs/simulation.md explains the use.

#![forbid(unsafe_code)]

mod agent;
mod data_plane;
mod engine;
mod events;
mod invariants;
mod scenario;
mod session;
mod world;

pub use scenario::{Defect, Intensity, Options};
pub use world::{InvariantViolation, SimulationSummary, run};
