//! The collector: telemetry in by UDP, sums by whose and where kept and told.
//!
//! ```text
//! UDP ── receive ── penstock-flows' intake ── tick ── each second ──┬─ live ── api
//!        (threads)  (decoded, labelled, summed)                     └─ store (minutes, hours), clickhouse
//!           └─ archive (raw samples in files, where they are asked for)
//! ```
//!
//! For: what a node does in the role collector of `penstock serve`. Not for: decoding and estimating
//! (`penstock-flows`), serving HTTP (`penstock-http`).
//!
//! Fails at the start with one line. Later nothing ends it: what goes wrong is counted, told once a minute, and
//! the rest goes on.

#![forbid(unsafe_code)]

mod alert;
mod answer;
mod api;
mod archive;
mod arrivals;
mod changes;
mod clickhouse;
mod collector;
pub mod config;
mod directory;
mod event;
mod host_names;
mod live;
mod metrics;
mod minute;
pub mod query;
pub mod receive;
mod row;
mod second;
mod shared;
mod store;
#[cfg(test)]
mod tests;
mod tick;
mod timeline;
mod watch;

pub use api::document;
pub use collector::Collector;
