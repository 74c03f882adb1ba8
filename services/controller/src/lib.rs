//! The controller: accepts requests, issues orders to nodes, and keeps the state of both in a database.
//!
//! ```text
//! clients ── api ──┐                              ┌── api ── nodes (a report each second, orders in the response)
//!                  ├── store (one writer) ── SQLite, PostgreSQL
//! round (leader) ──┘        snapshot → penstock-operations → settings, starts
//! ```
//!
//! The role `controller` of `penstock serve`. `penstock-allocation` shares rates, `penstock-operations` plans rounds,
//! `penstock-agent` moves files.
//!
//! Startup fails with one line. Later, while the database is unavailable, the API answers 503, nodes continue, and the
//! controller resumes once the database is back.

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
pub mod simulation;
mod store;
pub mod telemetry;
mod waiting;

pub use api::document;
pub use controller::Controller;
