//! The controller: requests in, orders to nodes out, and the truth of both in a database.
//!
//! ```text
//! clients ── api ──┐                              ┌── api ── nodes (a report each second, orders in the answer)
//!                  ├── store (one writer) ── SQLite, PostgreSQL
//! round (leader) ──┘        snapshot → penstock-operations → settings, starts
//! ```
//!
//! For: the role controller of `penstock serve`. Not for: how rates are shared (`penstock-allocation`), what a round
//! decides (`penstock-operations`), moving files (`penstock-agent`).
//!
//! Fails at the start with one line. Later nothing ends it: while the database is away it answers 503 and goes on when
//! it is back; nodes go on meanwhile.

#![forbid(unsafe_code)]

pub mod access;
pub mod api;
pub mod circuits;
pub mod config;
mod controller;
mod counters;
mod deadline;
mod limiter;
mod metrics;
mod paths;
pub mod problem;
pub mod rehearsal;
mod round;
mod shared;
mod store;
pub mod telemetry;
mod waiting;

pub use api::document;
pub use controller::Controller;
