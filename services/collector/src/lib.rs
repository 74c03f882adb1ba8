//! The collector: receives telemetry over UDP, aggregates, stores and serves it.
//!
//! ```text
//! UDP ── receive ── penstock-flows' intake ── second_timer ── each second ──┬─ live ── api
//!        (threads)  (decoded, labelled, aggregated)                          └─ store (minutes, hours), clickhouse
//!           └─ archive (raw samples in files, if configured)
//! ```
//!
//! For: the role collector of `penstock serve`. Not for: decoding and estimating
//! (`penstock-flows`), serving HTTP (`penstock-http`).
//!
//! Errors at the start are one line. Later errors are counted and logged once a minute; the
//! collector continues.

#![forbid(unsafe_code)]

mod alert;
mod alerting;
mod api;
mod archive;
mod arrivals;
mod changes;
mod clickhouse;
mod collector;
pub mod config;
mod directory;
pub mod error;
mod event;
mod host_names;
mod live;
mod metrics;
mod minute;
mod part_file;
pub mod query;
mod query_executor;
pub mod receive;
mod row;
mod second;
mod second_timer;
mod shard;
mod shared;
mod steering;
mod store;
#[cfg(test)]
mod tests;
mod timeline;

pub use api::document;
pub use collector::CollectorRole;
