//! The controller: accepts requests, issues orders to nodes, and keeps the state of both in a database.
//!
//! ```text
//! clients ── api ──┐                              ┌── api ── nodes (a report each second, orders in the response)
//!                  ├── repository (one writer) ── SQLite, PostgreSQL
//! round (leader) ──┘        snapshot → penstock-control → settings, starts
//! ```
//!
//! Clients of FTS3 submit third-party copies of HTTP storages, which the controller drives itself (`fts`).
//!
//! The role `controller` of `penstock serve`. `penstock-allocation` shares rates, `penstock-control` plans rounds,
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
mod error;
mod fts;
pub mod issuers;
mod limiter;
mod metrics;
pub mod paths;
pub mod problem;
pub mod rehearsal;
mod repository;
mod round;
mod shared;
pub mod simulation;
pub mod telemetry;
mod use_cases;

pub use api::document;
pub use controller::Controller;
pub use error::ControllerError;
pub use fts::policy::FtsPolicy;
